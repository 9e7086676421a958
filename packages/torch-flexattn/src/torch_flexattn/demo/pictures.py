"""The demo's pictures, as SVG documents: the mask of a packed row, and the loss of the training."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from torch import Tensor

try:
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
except ImportError as error:
    raise ImportError("the demo draws with matplotlib: pip install 'torch-flexattn[plot]'") from error

from ..block_mask import BlockMask

OURS, PEER, INK = "#b4451f", "#33658a", "#1d2126"
PALE, MIDDLE = "#f3f3f3", "#e8b79f"


def mask(block_mask: BlockMask, row: int) -> dict[str, str]:
    """The mask of one row of text: its visible pairs, and its blocks by kind."""
    elements = block_mask.to_element_mask()[row, 0]
    kinds = block_mask.kinds()[row, 0]
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.imshow(elements.numpy(), cmap=ListedColormap([PALE, OURS]), interpolation="nearest", vmin=0, vmax=1)
    left.set(title="visible pairs", xlabel="key", ylabel="query")
    right.imshow(kinds.numpy(), cmap=ListedColormap([PALE, MIDDLE, OURS]), interpolation="nearest", vmin=0, vmax=2)
    for r, c in _cells(kinds):
        right.add_patch(Rectangle((c - 0.5, r - 0.5), 1, 1, fill=False, edgecolor="white", linewidth=0.6))
    right.set(title=f"blocks of {block_mask.block[0]} × {block_mask.block[1]}", xlabel="block of keys")
    counts = [int((kinds == kind).sum()) for kind in (0, 1, 2)]
    caption = (
        f"A row of {elements.shape[0]} characters with causal attention inside each molecule: "
        f"{float(elements.float().mean()):.1%} of the pairs are visible. Of its blocks {counts[0]} are hidden and "
        f"skipped (pale), {counts[1]} visible in part and {counts[2]} in full."
    )
    return _figure(figure, "The mask of a packed row", caption)


def losses(steps: Sequence[float], held_out: tuple[float, float]) -> dict[str, str]:
    """The training loss by step, with the loss of molecules that were held out before and after."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(steps) + 1), steps, color=OURS, linewidth=1, label="training, each step")
    axes.plot([0, len(steps)], held_out, "o", color=PEER, label="held-out molecules, before and after")
    axes.set(xlabel="step", ylabel="nats a character", ylim=(0, None))
    axes.legend(frameon=False, fontsize=8)
    return _figure(figure, "Learning to write molecules", "Lower is better.")


def _cells(kinds: Tensor) -> list[list[int]]:
    return (kinds > 0).nonzero().tolist()


def _figure(figure: Any, title: str, caption: str) -> dict[str, str]:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return {"title": title, "caption": caption, "svg": buffer.getvalue()}
