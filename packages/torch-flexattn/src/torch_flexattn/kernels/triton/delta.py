"""What every row of the backward pass subtracts: the product of its output and the output's gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from ..launch.kernel import Kernel
from ..launch.launch import launch
from .chunks import next_power_of_2

KERNEL = Kernel("row_products", module="torch_flexattn.kernels.triton.delta_kernel")
ROWS = 32
LEAST = 16


def row_products(out: Tensor, grad_out: Tensor, grad_lse: Tensor | None, sums: Tensor) -> Tensor:
    """``Σ_d out · grad_out - grad_lse`` of each row, float32 ``[B, H, L]``; features lie side by side.

    ``sums``, contiguous ``[B, H, L, E]``, which tiles are going to be added to, is filled with zeros on the way.
    """
    batch, heads, rows, width = out.shape
    found = torch.empty(batch, heads, rows, dtype=torch.float32, device=out.device)
    if found.numel():
        padded, padded_sums = (max(next_power_of_2(n), LEAST) for n in (width, sums.shape[3]))
        launch(
            KERNEL, (-(-rows // ROWS), batch * heads),
            [out, grad_out, grad_lse, found, sums, *out.stride()[:3], *grad_out.stride()[:3], heads, rows],
            WIDTH=width, PADDED=padded, SUMS=sums.shape[3], PADDED_SUMS=padded_sums, HAS_LSE=grad_lse is not None,
            ROWS=ROWS,
        )  # fmt: skip
    return found
