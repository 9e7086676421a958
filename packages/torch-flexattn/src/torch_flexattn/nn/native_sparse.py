"""Native Sparse Attention: compressed blocks, selected blocks and a window, added up as gates say."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..functional import flex_attention, selected_attention
from ..masks import sliding_window
from ..mods import mask_mod
from .arguments import check_features, check_sizes
from .block_selection import Blocks, select_blocks
from .compression import BlockCompression
from .rotary import RopeScaling, frequencies, rotate

COMPRESSIONS = ("mlp", "mean")
LEAST_SELECTED = 3
"""The first block and two local ones."""


class NativeSparseAttention(nn.Module):
    """Causal self-attention in three branches with the same queries, each with keys and values of its own.

    *Compressed*: overlapping blocks of tokens become one key and value each, seen once their last token is not behind
    the query. *Selected*: the tokens of a few blocks, chosen by a query for all heads that share a key head: the first
    block, its own and the one before, and those to whose compressed blocks these heads gave most weight. *Window*: the
    last tokens. Gates between 0 and 1, from the input, say how much of each branch a head takes. The choice of blocks
    carries no gradient; the compressed branch learns what is worth choosing.

    Keys are compressed before they are rotated, and turn by the position of the last token of their block: the paper
    leaves this open. With ``qk_norm`` they are normalised after they are compressed. The gates are one linear map.

    Args:
        embed_dim: width of inputs and outputs.
        num_heads: query heads.
        num_kv_heads: key heads of each branch, which divide ``num_heads``; default: as many. Kernels of the selected
            branch read a block once for all heads of a group: a tile of theirs is full with 16.
        head_dim: features of a head; default ``embed_dim // num_heads``.
        compression: ``"mlp"``: by a learnt map with positions inside the block; ``"mean"``.
        compress_block: tokens of a compressed block (the paper's ``l``), a multiple of ``compress_stride``.
        compress_stride: tokens from one compressed block to the next (``d``).
        select_block: tokens of a selected block (``l'``), a multiple of ``compress_stride`` and of 16.
        num_selected: blocks that a query selects (``n``), at least 3.
        window: tokens that the window branch sees, the query's own among them (``w``).
        bias: of the projections.
        rope_base: of the rotary embedding's wave lengths; ``None``: no rotation.
        rope_scaling: for rows longer than a model was trained on.
        qk_norm: normalise queries and keys of each head (RMS) before they are rotated.
        device: of the parameters.
        dtype: of the parameters.

    Shapes:
        ``x`` ``[B, L, embed_dim]`` gives ``[B, L, embed_dim]``. ``positions``, integers ``[L]`` or ``[B, L]``, turn
        queries and keys; default: from 0.

    Raises:
        InputError: sizes that do not fit, an odd ``head_dim`` with rotation, an unknown compression.
        KindError: sizes that are no integers.

    Example:
        >>> import torch
        >>> from torch_flexattn.nn import NativeSparseAttention
        >>> layer = NativeSparseAttention(32, num_heads=4, num_kv_heads=1, num_selected=3, window=64)
        >>> layer(torch.randn(1, 200, 32)).shape
        torch.Size([1, 200, 32])

    Reference:
        Yuan et al. 2025 (Native Sparse Attention, arXiv 2502.11089): section 3.2, equation 5 for the gates; 3.3.1 for
        compression; 3.3.2, equations 8 to 12, for selection; 3.3.3 for the window; section 4.1 for the default sizes.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        compression: Literal["mlp", "mean"] = "mlp",
        compress_block: int = 32,
        compress_stride: int = 16,
        select_block: int = 64,
        num_selected: int = 16,
        window: int = 512,
        bias: bool = False,
        rope_base: float | None = 10000.0,
        rope_scaling: RopeScaling | None = None,
        qk_norm: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(embed_dim=embed_dim, num_heads=num_heads, window=window)
        check_sizes(compress_block=compress_block, compress_stride=compress_stride, select_block=select_block)
        groups = num_heads if num_kv_heads is None else num_kv_heads
        width = embed_dim // num_heads if head_dim is None else head_dim
        check_sizes(num_kv_heads=groups, head_dim=width, num_selected=num_selected)
        if num_heads % groups:
            raise InputError(f"num_heads must be a multiple of num_kv_heads, got {num_heads} and {groups}")
        if rope_base is not None and (width % 2 or not rope_base > 0):
            raise InputError(f"rope_base needs an even head_dim and a positive base, got {width} and {rope_base!r}")
        if rope_base is None and rope_scaling is not None:
            raise InputError(f"rope_scaling needs rope_base, got {rope_scaling} and None")
        if compression not in COMPRESSIONS:
            raise InputError(f"compression must be one of {', '.join(COMPRESSIONS)}; got {compression!r}")
        if compress_block % compress_stride:
            raise InputError(
                f"compress_block must be a multiple of compress_stride, got {compress_block} and {compress_stride}"
            )
        if select_block % compress_stride or select_block % 16:
            raise InputError(
                f"select_block must be a multiple of 16 and of compress_stride={compress_stride}, got {select_block}"
            )
        if num_selected < LEAST_SELECTED:
            raise InputError(
                f"num_selected must be at least {LEAST_SELECTED} (the first block, two local ones), got {num_selected}"
            )
        self.embed_dim, self.num_heads, self.num_kv_heads, self.head_dim = embed_dim, num_heads, groups, width
        self.rope_base, self.rope_scaling = rope_base, rope_scaling
        self.compression, self.window = compression, window
        self.blocks = Blocks(compress_block, compress_stride, select_block, num_selected)
        self.compressed_mask = mask_mod(
            lambda b, h, q_idx, kv_idx: kv_idx * compress_stride + (compress_block - 1) <= q_idx
        )
        self.window_mask = sliding_window(window)
        made = {"device": device, "dtype": dtype}
        self.q_proj = nn.Linear(embed_dim, num_heads * width, bias=bias, **made)
        self.k_proj = nn.Linear(embed_dim, 3 * groups * width, bias=bias, **made)  # compressed, selected, window
        self.v_proj = nn.Linear(embed_dim, 3 * groups * width, bias=bias, **made)
        self.gate_proj = nn.Linear(embed_dim, 3 * num_heads, **made)
        self.o_proj = nn.Linear(num_heads * width, embed_dim, bias=bias, **made)
        learned = compression == "mlp"
        self.k_compress = BlockCompression(width, compress_block, compress_stride, learned=learned, **made)
        self.v_compress = BlockCompression(width, compress_block, compress_stride, learned=learned, **made)
        self.q_norm = nn.RMSNorm(width, **made) if qk_norm else None
        self.k_norm = nn.RMSNorm(width, **made) if qk_norm else None

    def forward(self, x: Tensor, *, positions: Tensor | None = None) -> Tensor:
        check_features("x", x, "[B, L, embed_dim]", 3, self.embed_dim)
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device)
        q = self.q_proj(x).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
        k, k_selected, k_window = self._branches(self.k_proj(x))
        v, v_selected, v_window = self._branches(self.v_proj(x))
        k, v = self.k_compress(k), self.v_compress(v)
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q)
            k, k_selected, k_window = self.k_norm(k), self.k_norm(k_selected), self.k_norm(k_window)
        if self.rope_base is not None:
            turned = frequencies(self.head_dim, self.rope_base, self.rope_scaling, q)
            q, k_selected, k_window = (rotate(t, positions, turned) for t in (q, k_selected, k_window))
            last = positions[..., self.blocks.compressed - 1 :: self.blocks.stride]
            k = rotate(k, last, turned)
        grouped = self.num_heads != self.num_kv_heads
        compressed, lse = flex_attention(q, k, v, mask_mod=self.compressed_mask, enable_gqa=grouped, return_lse=True)
        chosen = select_blocks(q, k, lse, self.head_dim**-0.5, self.blocks)
        selected = selected_attention(q, k_selected, v_selected, chosen, block_size=self.blocks.selected, check=False)
        recent = flex_attention(q, k_window, v_window, mask_mod=self.window_mask, enable_gqa=grouped)
        gates = self.gate_proj(x).sigmoid().unflatten(2, (self.num_heads, 3)).transpose(1, 2).unsqueeze(-1).unbind(3)
        out = gates[0] * compressed + gates[1] * selected + gates[2] * recent
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def _branches(self, projected: Tensor) -> tuple[Tensor, ...]:
        """Of each branch ``[B, Hkv, L, E]``."""
        return projected.unflatten(2, (3, self.num_kv_heads, -1)).transpose(1, 3).unbind(2)

    def extra_repr(self) -> str:
        """Sizes and options."""
        said = f"{self.embed_dim}, num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}"
        said += f", head_dim={self.head_dim}, compression={self.compression!r}, select_block={self.blocks.selected}"
        said += f", num_selected={self.blocks.count}, window={self.window}"
        for name in ("rope_base", "rope_scaling"):
            value = getattr(self, name)
            said += "" if value is None else f", {name}={value}"
        return said
