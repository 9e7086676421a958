"""Multi-head latent attention: keys and values of all heads from one narrow vector a token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..functional import flex_attention
from ..masks import causal as causal_mask
from ..mods import MaskLike
from ..mods import mask_mod as as_mask
from .arguments import check_features, check_sizes
from .given_masks import all_of
from .kv_cache import KVCache, check_cache
from .rotary import RopeScaling, frequencies, rotate


class MultiheadLatentAttention(nn.Module):
    """DeepSeek-V2's attention: a token is kept as ``kv_lora_rank`` numbers and one rotated key that all heads share.

    It has two forms of equal results. In training keys and values of every head are expanded from the latent vector. In
    decoding the expansion moves into queries and outputs, and all heads attend to the latent vectors themselves:
    with a cache, memory and reads shrink by the number of heads.

    Args:
        embed_dim: width of inputs and outputs.
        num_heads: query heads.
        kv_lora_rank: width of the latent vector of a token.
        qk_nope_head_dim: features of queries and keys that are not rotated.
        qk_rope_head_dim: features that are; even.
        v_head_dim: features of a value.
        q_lora_rank: width of a latent vector of queries; ``None``: they are projected directly.
        rope_base: of the rotary embedding. Pairs are ``(n, n + E/2)``; DeepSeek's checkpoints pair neighbours.
        rope_scaling: for rows longer than a model was trained on.
        causal: a query sees no key behind it.
        device: of the parameters.
        dtype: of the parameters.

    Shapes:
        ``x`` ``[B, L, embed_dim]`` gives ``[B, L, embed_dim]``. ``mask_mod`` of a call applies beside the causal one.
        ``positions``, integers ``[L]`` or ``[B, L]``, as of :class:`GroupedQueryAttention`. ``cache``: from
        :meth:`new_cache`. ``absorbed``: which form; by default the second where there is a cache.

    Raises:
        InputError: sizes that do not fit.
        KindError: no cache.

    Example:
        >>> import torch
        >>> from torch_flexattn.nn import MultiheadLatentAttention
        >>> layer = MultiheadLatentAttention(16, 4, 8, qk_nope_head_dim=6, qk_rope_head_dim=2, v_head_dim=5)
        >>> x, cache = torch.randn(1, 5, 16), layer.new_cache(1, max_length=8)
        >>> step_by_step = torch.cat([layer(x[:, n : n + 1], cache=cache) for n in range(5)], 1)
        >>> torch.allclose(step_by_step, layer(x), atol=1e-5)
        True

    Reference:
        DeepSeek-AI 2024 (DeepSeek-V2), section 2.1 and appendix C.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        kv_lora_rank: int,
        *,
        qk_nope_head_dim: int,
        qk_rope_head_dim: int,
        v_head_dim: int,
        q_lora_rank: int | None = None,
        rope_base: float = 10000.0,
        rope_scaling: RopeScaling | None = None,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(
            embed_dim=embed_dim, num_heads=num_heads, kv_lora_rank=kv_lora_rank, qk_nope_head_dim=qk_nope_head_dim,
            qk_rope_head_dim=qk_rope_head_dim, v_head_dim=v_head_dim,
        )  # fmt: skip
        if qk_rope_head_dim % 2 or not rope_base > 0:
            raise InputError(
                f"qk_rope_head_dim must be even and rope_base positive, got {qk_rope_head_dim} and {rope_base!r}"
            )
        self.embed_dim, self.num_heads, self.kv_lora_rank = embed_dim, num_heads, kv_lora_rank
        self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim = qk_nope_head_dim, qk_rope_head_dim, v_head_dim
        self.q_lora_rank, self.rope_base, self.rope_scaling = q_lora_rank, rope_base, rope_scaling
        self.causal = causal
        self.mask_mod = causal_mask() if causal else None
        made = {"device": device, "dtype": dtype}
        width = qk_nope_head_dim + qk_rope_head_dim
        self.q_a_proj = self.q_a_norm = None
        if q_lora_rank is not None:
            check_sizes(q_lora_rank=q_lora_rank)
            self.q_a_proj = nn.Linear(embed_dim, q_lora_rank, bias=False, **made)
            self.q_a_norm = nn.RMSNorm(q_lora_rank, **made)
        self.q_proj = nn.Linear(q_lora_rank or embed_dim, num_heads * width, bias=False, **made)
        self.kv_a_proj = nn.Linear(embed_dim, kv_lora_rank + qk_rope_head_dim, bias=False, **made)
        self.kv_a_norm = nn.RMSNorm(kv_lora_rank, **made)
        self.kv_b_proj = nn.Linear(kv_lora_rank, num_heads * (qk_nope_head_dim + v_head_dim), bias=False, **made)
        self.o_proj = nn.Linear(num_heads * v_head_dim, embed_dim, bias=False, **made)

    def new_cache(self, batch: int, max_length: int) -> KVCache:
        """An empty cache of latent vectors, beside the parameters.

        Args:
            batch: sequences.
            max_length: tokens of the longest.
        """
        weight = self.kv_a_proj.weight
        width = self.kv_lora_rank + self.qk_rope_head_dim
        return KVCache(batch, 1, max_length, width, v_head_dim=0, dtype=weight.dtype, device=weight.device)

    def forward(
        self,
        x: Tensor,
        *,
        mask_mod: MaskLike | None = None,
        positions: Tensor | None = None,
        cache: KVCache | None = None,
        absorbed: bool | None = None,
    ) -> Tensor:
        check_features("x", x, "[B, L, embed_dim]", 3, self.embed_dim)
        check_cache(cache, x)
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device)
            positions = positions if cache is None else cache.lengths.unsqueeze(1) + positions
        q_nope, q_rope = self._queries(x, positions)
        latent = self._latent(x, positions)  # [B, 1, L, rank + rope]
        offset = lens = None
        if cache is not None:
            offset = cache.append(latent)
            latent, lens = cache.keys, cache.lengths
        absorbed = cache is not None if absorbed is None else absorbed
        of_keys, of_values = self.kv_b_proj.weight.unflatten(0, (self.num_heads, -1)).split(
            [self.qk_nope_head_dim, self.v_head_dim], 1
        )  # [H, features, rank]
        seen, k_rope = latent.split([self.kv_lora_rank, self.qk_rope_head_dim], -1)
        if absorbed:
            q = torch.cat([q_nope @ of_keys, q_rope], -1)
            k, v = latent, seen
        else:
            k_rope = k_rope.expand(-1, self.num_heads, -1, -1)
            q, k = torch.cat([q_nope, q_rope], -1), torch.cat([seen @ of_keys.mT, k_rope], -1)
            v = seen @ of_values.mT
        out = flex_attention(
            q,
            k,
            v,
            mask_mod=self.mask_mod if mask_mod is None else all_of(self.mask_mod, as_mask(mask_mod)),
            scale=(self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5,
            enable_gqa=True,
            q_offset=offset,
            kv_lens=lens,
        )
        if absorbed:
            out = out @ of_values.mT
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def _queries(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, H, L, nope]`` and, rotated, ``[B, H, L, rope]``."""
        if self.q_a_proj is not None and self.q_a_norm is not None:
            x = self.q_a_norm(self.q_a_proj(x))
        q = self.q_proj(x).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
        nope, rope = q.split([self.qk_nope_head_dim, self.qk_rope_head_dim], -1)
        return nope, rotate(rope, positions, self._turned(q))

    def _latent(self, x: Tensor, positions: Tensor) -> Tensor:
        """The vector of each token and its rotated key, ``[B, 1, L, rank + rope]``."""
        latent, rope = self.kv_a_proj(x).unsqueeze(1).split([self.kv_lora_rank, self.qk_rope_head_dim], -1)
        return torch.cat([self.kv_a_norm(latent).to(rope.dtype), rotate(rope, positions, self._turned(rope))], -1)

    def _turned(self, like: Tensor) -> Tensor:
        return frequencies(self.qk_rope_head_dim, self.rope_base, self.rope_scaling, like)

    def extra_repr(self) -> str:
        """Sizes."""
        names = ("num_heads", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        return ", ".join([str(self.embed_dim), *(f"{name}={getattr(self, name)}" for name in names)])
