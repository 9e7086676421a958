"""Sums in float32 become results: multiplied, rounded, and put where they belong, in one pass over memory."""

from __future__ import annotations

from torch import Tensor

from ..launch.kernel import Kernel
from ..launch.launch import launch
from .chunks import next_power_of_2
from .layout import ordered_like

KERNEL = Kernel("rounded", module="torch_flexattn.kernels.triton.rounded_kernel")
ROWS = 32
LEAST = 16


def rounded_like(like: Tensor, sums: Tensor, factor: float) -> Tensor:
    """``factor · sums`` in the type and the dimension order of ``like``; ``sums`` is contiguous ``[B, H, L, E]``."""
    (batch, heads, rows, width), out = sums.shape, ordered_like(like, sums.shape[3])
    if out.numel():
        launch(
            KERNEL, (-(-rows // ROWS), batch * heads), [sums, out, factor, *out.stride()[:3], heads, rows],
            WIDTH=width, PADDED=max(next_power_of_2(width), LEAST), ROWS=ROWS,
        )  # fmt: skip
    return out
