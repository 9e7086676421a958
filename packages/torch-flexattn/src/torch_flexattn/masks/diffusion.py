"""Language models that denoise block by block."""

from __future__ import annotations

import torch
from torch import Tensor

from ..factory_arguments import check_count
from ..mods import MaskMod, mask_mod


def block_diffusion(n: int, block: int) -> MaskMod:
    """Training on ``[noisy ; clean]``, twice the same ``n`` tokens.

    A noisy token sees the noisy tokens of its block and the clean ones of earlier blocks; a clean token sees the clean
    tokens of its block and of earlier ones.

    Args:
        n: number of tokens; there are ``2n`` queries and keys.
        block: tokens of a block.

    Raises:
        InputError: a number below 1.
        KindError: no integer.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(4), torch.tensor(0)
        >>> block_diffusion(2, 1)(zero, zero, i[:, None], i).int()
        tensor([[1, 0, 0, 0],
                [0, 1, 1, 0],
                [0, 0, 1, 0],
                [0, 0, 1, 1]], dtype=torch.int32)

    Reference:
        Arriola et al. 2025 (block diffusion, BD3-LM), section 4 and appendix B.6.
    """
    n, block = check_count("n", n, 1), check_count("block", block, 1)

    def mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        noisy = q_idx < n
        start = torch.where(noisy, q_idx, q_idx - n) // block * block
        own_noise = noisy & (kv_idx >= start) & (kv_idx < start + block) & (kv_idx < n)
        clean = (kv_idx >= n) & (kv_idx < start + torch.where(noisy, n, n + block))
        return own_noise | clean

    return mask_mod(mask)
