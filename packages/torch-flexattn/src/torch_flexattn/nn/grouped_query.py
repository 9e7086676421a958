"""Self-attention of decoders: heads that share keys, rotary positions, windows, a cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..functional import flex_attention
from ..masks import causal as causal_mask
from ..masks import sliding_window
from ..mods import MaskLike, ScoreLike
from ..mods import mask_mod as as_mask
from ..mods import score_mod as as_score
from .arguments import check_features, check_share, check_sizes
from .given_masks import all_of
from .kv_cache import KVCache, check_cache
from .moving_mods import MovesMods
from .rotary import RopeScaling, frequencies, rotate


class GroupedQueryAttention(MovesMods):
    """Self-attention in which groups of query heads share a key head; causal, with rotary positions, unless told not.

    Args:
        embed_dim: width of inputs and outputs.
        num_heads: query heads.
        num_kv_heads: key heads, which divide ``num_heads``; default: as many.
        head_dim: features of a head; default ``embed_dim // num_heads``.
        bias: of the projections.
        rope_base: of the rotary embedding's wave lengths; ``None``: no rotation.
        rope_scaling: for rows longer than a model was trained on.
        qk_norm: normalise queries and keys of each head (RMS) before they are rotated.
        causal: a query sees no key behind it.
        window: a query sees so many keys up to its own.
        sinks: a learnt score a head that takes part in the softmax, of a value 0.
        dropout: share of the softmax that is dropped in training.
        score_mod: ``(score, b, h, q_idx, kv_idx) -> score``. Tensors that it captures stay where they are when the
            module moves, and are not in its state_dict.
        mask_mod: ``(b, h, q_idx, kv_idx) -> bool``, True where visible; applies beside ``causal`` and ``window``.
        device: of the parameters.
        dtype: of the parameters.

    Shapes:
        ``x`` ``[B, L, embed_dim]`` gives ``[B, L, embed_dim]``. ``mask_mod`` of a call applies beside the others.
        ``positions``, integers ``[L]`` or ``[B, L]``, turn queries and keys; default: from 0, or from where the cache
        ends. ``cache``: a :class:`KVCache` that the tokens are added to, all of whose tokens are seen. ``counts``, int
        ``[B]``: how many of the ``L`` tokens are real, the first ones; the output of others means nothing.

    Raises:
        InputError: sizes that do not fit, an odd ``head_dim`` with rotation, ``counts`` without a cache.
        KindError: no mods; no cache.

    Example:
        >>> import torch
        >>> from torch_flexattn.nn import GroupedQueryAttention, KVCache
        >>> layer = GroupedQueryAttention(16, num_heads=4, num_kv_heads=2)
        >>> x, cache = torch.randn(1, 5, 16), KVCache(1, 2, max_length=8, head_dim=4)
        >>> step_by_step = torch.cat([layer(x[:, n : n + 1], cache=cache) for n in range(5)], 1)
        >>> torch.allclose(step_by_step, layer(x), atol=1e-5)
        True

    Reference:
        Ainslie et al. 2023 (GQA); Su et al. 2021 (RoFormer), section 3.2; Jiang et al. 2023 (Mistral 7B), section 2.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        bias: bool = False,
        rope_base: float | None = 10000.0,
        rope_scaling: RopeScaling | None = None,
        qk_norm: bool = False,
        causal: bool = True,
        window: int | None = None,
        sinks: bool = False,
        dropout: float = 0.0,
        score_mod: ScoreLike | None = None,
        mask_mod: MaskLike | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(embed_dim=embed_dim, num_heads=num_heads)
        groups = num_heads if num_kv_heads is None else num_kv_heads
        width = embed_dim // num_heads if head_dim is None else head_dim
        check_sizes(num_kv_heads=groups, head_dim=width)
        check_share("dropout", dropout)
        if num_heads % groups:
            raise InputError(f"num_heads must be a multiple of num_kv_heads, got {num_heads} and {groups}")
        if rope_base is not None and (width % 2 or not rope_base > 0):
            raise InputError(f"rope_base needs an even head_dim and a positive base, got {width} and {rope_base!r}")
        if rope_base is None and rope_scaling is not None:
            raise InputError(f"rope_scaling needs rope_base, got {rope_scaling} and None")
        self.embed_dim, self.num_heads, self.num_kv_heads, self.head_dim = embed_dim, num_heads, groups, width
        self.rope_base, self.rope_scaling, self.dropout = rope_base, rope_scaling, dropout
        self.causal, self.window = causal, window
        self.score_mod = None if score_mod is None else as_score(score_mod)
        self.mask_mod = all_of(
            None if window is None else sliding_window(left=window - 1, right=0 if causal else window - 1),
            causal_mask() if causal and window is None else None,
            None if mask_mod is None else as_mask(mask_mod),
        )
        made = {"device": device, "dtype": dtype}
        self.q_proj = nn.Linear(embed_dim, num_heads * width, bias=bias, **made)
        self.k_proj = nn.Linear(embed_dim, groups * width, bias=bias, **made)
        self.v_proj = nn.Linear(embed_dim, groups * width, bias=bias, **made)
        self.o_proj = nn.Linear(num_heads * width, embed_dim, bias=bias, **made)
        self.q_norm = nn.RMSNorm(width, **made) if qk_norm else None
        self.k_norm = nn.RMSNorm(width, **made) if qk_norm else None
        self.sinks = nn.Parameter(torch.zeros(num_heads, **made)) if sinks else None  # type: ignore[arg-type]

    def forward(
        self,
        x: Tensor,
        *,
        mask_mod: MaskLike | None = None,
        positions: Tensor | None = None,
        cache: KVCache | None = None,
        counts: Tensor | None = None,
    ) -> Tensor:
        check_features("x", x, "[B, L, embed_dim]", 3, self.embed_dim)
        check_cache(cache, x)
        if counts is not None and cache is None:
            raise InputError(f"counts say what a cache keeps, and there is no cache: got {counts.tolist()}")
        q = self.q_proj(x).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
        k = self.k_proj(x).unflatten(2, (self.num_kv_heads, -1)).transpose(1, 2)
        v = self.v_proj(x).unflatten(2, (self.num_kv_heads, -1)).transpose(1, 2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rope_base is not None:
            if positions is None:
                positions = torch.arange(x.shape[1], device=x.device)
                positions = positions if cache is None else cache.lengths.unsqueeze(1) + positions
            turned = frequencies(self.head_dim, self.rope_base, self.rope_scaling, q)
            q, k = rotate(q, positions, turned), rotate(k, positions, turned)
        offset = lens = None
        if cache is not None:
            offset = cache.append(k, v, counts)
            k, v, lens = cache.keys, cache.values, cache.lengths
        out = flex_attention(
            q,
            k,
            v,
            self.score_mod,
            mask_mod=self.mask_mod if mask_mod is None else all_of(self.mask_mod, as_mask(mask_mod)),
            enable_gqa=self.num_heads != self.num_kv_heads,
            q_offset=offset,
            kv_lens=lens,
            sinks=self.sinks,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def extra_repr(self) -> str:
        """Sizes and options."""
        said = f"{self.embed_dim}, num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}"
        said += f", head_dim={self.head_dim}, causal={self.causal}"
        for name in ("window", "rope_base", "rope_scaling", "score_mod"):
            value = getattr(self, name)
            said += "" if value is None else f", {name}={value}"
        return said + ("" if self.sinks is None else ", sinks=True")
