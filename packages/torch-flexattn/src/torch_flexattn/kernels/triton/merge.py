"""Two parts of a softmax put together in one pass over memory."""

from __future__ import annotations

import torch
from torch import Tensor

from ..launch.kernel import Kernel
from ..launch.launch import launch
from .chunks import next_power_of_2

KERNEL = Kernel("merge_rows", module="torch_flexattn.kernels.triton.merge_kernel")
NUMBERS = 4096
"""Of a tile: rows times padded features."""
DIMENSIONS = 4


def serves(out: Tensor, other: Tensor) -> bool:
    """Whether the kernel reads tensors of these layouts: features side by side, at most four dimensions."""
    return 1 < out.dim() <= DIMENSIONS and out.stride(-1) == 1 == other.stride(-1)


def merged(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    """See ``kernels.cpu.merge``; summed in float32.

    Args:
        out: ``[..., Ev]``.
        lse: ``[...]``.
        other: ``[..., Ev]``.
        other_lse: ``[...]``.
    """
    whole, total = torch.empty_like(out), torch.empty(lse.shape, dtype=torch.float32, device=out.device)
    width, lines = out.shape[-1], lse.numel()
    if lines and width:
        missing = (1,) * (DIMENSIONS - out.dim())
        tiled = [t.view(*missing, *t.shape) for t in (out, other, whole)]
        padded = next_power_of_2(width)
        rows = max(NUMBERS // padded, 1)
        strides = [stride for t in tiled for stride in t.stride()[:3]]
        launch(
            KERNEL, (-(-lines // rows), 1),
            [
                out, lse.contiguous(), other, other_lse.contiguous(), whole, total, *strides, *tiled[0].shape[1:3],
                lines,
            ],
            WIDTH=width, PADDED=padded, ROWS=rows,
        )  # fmt: skip
    return whole, total
