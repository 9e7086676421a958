"""Blocks of keys (or values) become one each: the tokens that a compressed branch attends to."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BlockCompression(nn.Module):
    """Overlapping blocks of ``block`` tokens, ``stride`` apart, each become one vector; one map for all heads.

    With ``learned``, by two linear maps and a GELU between them, of the tokens of a block side by side, to each of
    which a vector of its place in the block is added; otherwise by their mean.

    Args:
        head_dim: features of a token.
        block: tokens of a block.
        stride: tokens from the start of one block to that of the next.
        learned: by a map that is learnt.
        device: of the parameters.
        dtype: of the parameters.

    Shapes:
        ``x`` ``[B, H, L, E]`` gives ``[B, H, C, E]``, ``C = ⌊(L - block) / stride⌋ + 1``, or 0 where ``L < block``.

    Reference:
        Yuan et al. 2025 (Native Sparse Attention), section 3.3.1, equation 7.
    """

    def __init__(
        self,
        head_dim: int,
        block: int,
        stride: int,
        *,
        learned: bool,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        made = {"device": device, "dtype": dtype}
        self.block, self.stride = block, stride
        self.position = self.map = None
        if learned:
            self.position = nn.Parameter(torch.empty(block, head_dim, **made))  # type: ignore[arg-type]
            self.map = nn.Sequential(
                nn.Linear(block * head_dim, 2 * head_dim, **made), nn.GELU(), nn.Linear(2 * head_dim, head_dim, **made)
            )
            nn.init.normal_(self.position, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] < self.block:
            blocks = x.new_zeros(*x.shape[:2], 0, self.block, x.shape[3])
        else:
            blocks = x.unfold(2, self.block, self.stride).transpose(3, 4)  # [B, H, C, block, E]
        if self.position is None or self.map is None:
            return blocks.mean(3)
        return self.map((blocks + self.position).flatten(3))

    def extra_repr(self) -> str:
        """Sizes."""
        return f"block={self.block}, stride={self.stride}, learned={self.map is not None}"
