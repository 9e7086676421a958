"""The demo's pictures, as SVG documents: a window of the translated graph, speed-ups, training curves."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import torch

try:
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
except ImportError as error:
    raise ImportError("the demo draws with matplotlib: pip install 'torch-tcgnn[plot]'") from error

from ..bitblock import WIDTH
from ..graph import TCGraph

if TYPE_CHECKING:
    from .training import Run

OURS, PEERS = "#b4451f", ("#33658a", "#8d99ae", "#5c946e")


def window(name: str, graph: TCGraph) -> dict[str, str]:
    """The window of median reuse, before and after condensation, decoded from the blocks' masks."""
    blocks = graph.blocks
    columns = (blocks.block_col >= 0).sum(1)
    block_window = torch.arange(blocks.win_ptr.shape[0] - 1).repeat_interleave(blocks.win_ptr.long().diff())
    vectors = torch.zeros(blocks.win_ptr.shape[0] - 1).index_add(0, block_window, columns.float())
    entries = torch.zeros_like(vectors).index_add(0, block_window, blocks.block_slot.diff().float())
    reuse = entries / vectors.clamp(min=1)
    chosen = int(reuse.argsort()[reuse.shape[0] // 2])
    first, last = (int(blocks.win_ptr[chosen + i]) for i in (0, 1))
    bits = (blocks.block_mask[first:last, 0, None] >> torch.arange(blocks.height * WIDTH)) & 1
    filled = bits.view(-1, blocks.height, WIDTH).movedim(0, 1).reshape(blocks.height, -1).bool()
    column = blocks.block_col[first:last].flatten()

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    above, below = figure.subplots(2)
    row, condensed = filled.nonzero(as_tuple=True)
    above.scatter(column[condensed], row, s=9, marker="s", color=OURS, linewidths=0)
    above.set(xlim=(0, graph.num_cols), xlabel=f"column of the adjacency (0 to {graph.num_cols - 1:,})")
    for r, c in zip(row.tolist(), condensed.tolist()):
        below.add_patch(Rectangle((c, r - 0.5), 1, 1, facecolor=OURS, edgecolor="white", linewidth=0.4))
    padded = int((column < 0).sum())
    below.axvspan(column.shape[0] - padded, column.shape[0], facecolor="#dddddd", hatch="//", edgecolor="white")
    for edge in range(0, column.shape[0] + 1, WIDTH):
        below.axvline(edge, color="#1d2126", linewidth=0.8)
    below.set(xlim=(0, column.shape[0]), xlabel="condensed column; lines part the blocks of 8 × 8, hatching is padding")
    for axes in (above, below):
        axes.set(ylim=(blocks.height - 0.5, -0.5), ylabel="row", yticks=range(0, blocks.height, 2))
    rows = f"Rows {chosen * blocks.height} to {chosen * blocks.height + blocks.height - 1}"
    caption = (
        f"{rows} of {name}: {int(entries[chosen])} entries in {int(vectors[chosen])} of {graph.num_cols:,} columns, "
        f"condensed to {last - first} blocks. Each block is one 64-bit mask and eight column numbers. "
        "This window is the median one by entries a gathered column."
    )
    return _figure(figure, "One window of eight rows, before and after translation", caption)


def ratios(measured: dict[str, dict[str, float]]) -> dict[str, str]:
    """Bars of peer time over ours, by graph."""
    figure = Figure(figsize=(8, 1.2 + 0.75 * len(measured)), layout="constrained")
    axes = figure.subplots()
    peers = list(dict.fromkeys(peer for graph in measured.values() for peer in graph))
    height = 0.8 / len(peers)
    for i, peer in enumerate(peers):
        places = [row - 0.4 + (i + 0.5) * height for row in range(len(measured))]
        values = [graph[peer] for graph in measured.values()]
        bars = axes.barh(places, values, height=0.9 * height, color=PEERS[i % len(PEERS)], label=peer)
        axes.bar_label(bars, labels=[f"{value:.1f}×" for value in values], padding=3, fontsize=8)
    axes.axvline(1.0, color=OURS, linewidth=1.2)
    axes.set_yticks(range(len(measured)), list(measured))
    axes.set(xlabel="peer's time / ours (at the line both are equal)", ylim=(len(measured) - 0.5, -0.5))
    axes.margins(x=0.12)
    axes.legend(frameon=False, fontsize=8)
    return _figure(figure, "Aggregation with its gradient: how much faster ours is", "Longer is better for ours.")


def training(name: str, runs: list[Run], step_ms: dict[str, float]) -> dict[str, str]:
    """Validation accuracy against the time that training steps take."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots()
    for run, color, line in zip(runs, (OURS, *PEERS), ("-", "-", "-", "--")):
        ms = step_ms[run.name]
        seconds = [ms * (epoch + 1) / 1e3 for epoch in range(len(run.val_accuracy))]
        axes.plot(seconds, run.val_accuracy, line, color=color, label=f"{run.name}: {ms:.1f} ms a step")
    axes.set(xlabel="seconds in training steps (epochs × median step)", ylabel="validation accuracy, %")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    caption = "The models compute the same function; the curves differ in how fast they are passed."
    return _figure(figure, f"Training a GCN on {name}", caption)


def _figure(figure: Any, title: str, caption: str) -> dict[str, str]:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return {"title": title, "caption": caption, "svg": buffer.getvalue()}
