"""``nn.MultiheadAttention`` on this package's kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from ..errors import InputError, KindError, UnsupportedError
from ..functional import flex_attention
from ..mods import MaskLike, MaskMod, ScoreLike, ScoreMod
from ..mods import mask_mod as as_mask
from ..mods import score_mod as as_score
from .dense_weights import attention_weights
from .given_masks import Table, as_mods
from .moving_mods import MovesMods


class FlexMultiheadAttention(MovesMods, nn.MultiheadAttention):
    """PyTorch's multi-head attention with a mask and a score modification, in time and memory of what is visible.

    Parameters, their names and their initialisation are those of ``torch.nn.MultiheadAttention``, of which this is a
    subclass: state_dicts go both ways. What differs: a query that sees nothing gets 0 where PyTorch gives NaN;
    ``is_causal`` needs no ``attn_mask`` beside it, and does not read one; PyTorch's fused encoder layer, which knows no
    mods, is not taken.

    Args:
        embed_dim: width of queries and outputs.
        num_heads: divides ``embed_dim``.
        dropout: share of the softmax that is dropped in training.
        bias: of the projections.
        add_bias_kv: one learnt key and value more, visible to all.
        add_zero_attn: one key and value of zeros more, visible to all.
        kdim: width of keys; default ``embed_dim``.
        vdim: width of values; default ``embed_dim``.
        batch_first: ``[N, L, E]`` instead of ``[L, N, E]``.
        device: of the parameters.
        dtype: of the parameters.
        score_mod: ``(score, b, h, q_idx, kv_idx) -> score``, applied in every call that brings none of its own.
            Tensors that it captures stay where they are when the module moves, and are not in its state_dict.
        mask_mod: ``(b, h, q_idx, kv_idx) -> bool``, True where visible; likewise.

    Shapes (``batch_first=False``):
        ``query`` ``[L, N, embed_dim]``, ``key`` ``[S, N, kdim]``, ``value`` ``[S, N, vdim]``, or all without ``N``;
        ``key_padding_mask`` ``[N, S]`` and ``attn_mask`` ``[L, S]`` or ``[N · num_heads, L, S]``, each bool (True where
        hidden) or floating point (added to scores). Returns ``[L, N, embed_dim]``, and with ``need_weights`` the
        softmax ``[N, L, S]`` (``[N, num_heads, L, S]`` if not averaged), made densely; ``None`` without it.

    Raises:
        InputError: shapes that do not fit; no positive sizes.
        KindError: masks of another type.
        UnsupportedError: nested tensors.

    Example:
        >>> import torch
        >>> from torch_flexattn import masks
        >>> from torch_flexattn.nn import FlexMultiheadAttention
        >>> layer = FlexMultiheadAttention(8, 2, batch_first=True, mask_mod=masks.sliding_window(3))
        >>> x = torch.randn(4, 10, 8)
        >>> layer(x, x, x, need_weights=False)[0].shape
        torch.Size([4, 10, 8])

    Reference:
        Vaswani et al. 2017, section 3.2.2; arguments as ``torch.nn.MultiheadAttention``.
    """

    score_mod: ScoreMod | None
    mask_mod: MaskMod | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        score_mod: ScoreLike | None = None,
        mask_mod: MaskLike | None = None,
    ) -> None:
        for name, size in (("embed_dim", embed_dim), ("num_heads", num_heads)):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise InputError(f"{name} must be an integer of at least 1, got {size!r}")
        if embed_dim % num_heads:
            raise InputError(f"embed_dim must be a multiple of num_heads, got {embed_dim} and {num_heads}")
        if not 0 <= dropout < 1:
            raise InputError(f"dropout must be in [0, 1), got {dropout!r}")
        super().__init__(
            embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        )
        self.become_flexible(score_mod, mask_mod)

    def become_flexible(self, score_mod: ScoreLike | None = None, mask_mod: MaskLike | None = None) -> None:
        """Take mods, and keep the encoder layer around this one from passing it by; for those that were PyTorch's.

        Args:
            score_mod: as of the class.
            mask_mod: as of the class.
        """
        self.score_mod = None if score_mod is None else as_score(score_mod)
        self.mask_mod = None if mask_mod is None else as_mask(mask_mod)
        self._qkv_same_embed_dim = False  # what PyTorch's encoder layer asks before it takes its fused path

    def _reset_parameters(self) -> None:
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        self._qkv_same_embed_dim = False

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        score_mod: ScoreLike | None = None,
        mask_mod: MaskLike | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        self._check(query, key, value)
        score = self.score_mod if score_mod is None else as_score(score_mod)
        mask = self.mask_mod if mask_mod is None else as_mask(mask_mod)
        batched = query.dim() == 3
        q, k, v = self._projected(query, key, value, batched)
        keys = k.shape[2]
        tables = _tables(key_padding_mask, attn_mask, q, keys, is_causal, batched)
        k, v, others = self._with_others(k, v)
        if need_weights:
            weights = attention_weights(q, k, tables, is_causal, mask, score, others)
            weights = dropout(weights, self.dropout, self.training)
            out = weights @ v
        else:
            mods = as_mods(tables, self.num_heads, is_causal, mask, score, keys if others else None)
            share = self.dropout if self.training else 0.0
            out, weights = flex_attention(q, k, v, mods[1], mask_mod=mods[0], dropout_p=share), None
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        if weights is not None:
            weights = weights.mean(1) if average_attn_weights else weights
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        widths = {"query": self.embed_dim, "key": self.kdim, "value": self.vdim}
        for (name, width), x in zip(widths.items(), (query, key, value)):
            if x.is_nested:
                raise UnsupportedError(f"{name} is a nested tensor: use flex_attention_varlen on packed sequences")
            if x.dim() not in (2, 3) or x.dim() != query.dim() or x.shape[-1] != width:
                wanted = f"{query.dim()} dimensions, as query, and {width} features"
                raise InputError(f"{name} must have 2 or 3 dimensions, {wanted}; got {tuple(x.shape)}")
        batch_dim = 0 if self.batch_first else 1
        if key.shape[:-1] != value.shape[:-1] or (query.dim() == 3 and query.shape[batch_dim] != key.shape[batch_dim]):
            raise InputError(
                f"query, key and value must have one batch, key and value one length; got {tuple(query.shape)}, "
                f"{tuple(key.shape)}, {tuple(value.shape)}"
            )

    def _projected(self, query: Tensor, key: Tensor, value: Tensor, batched: bool) -> list[Tensor]:
        """Queries, keys and values, ``[N, H, L, E]`` each."""
        weights: tuple[Any, ...]
        if self.in_proj_weight is None:
            weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        else:
            weights = self.in_proj_weight.chunk(3)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        if query is key and key is value and self.in_proj_weight is not None:
            made = linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        else:
            made = [linear(x, w, bias) for x, w, bias in zip((query, key, value), weights, biases)]
        if not batched:
            made = [x.unsqueeze(0) for x in made]
        elif not self.batch_first:
            made = [x.transpose(0, 1) for x in made]
        return [x.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2) for x in made]

    def _with_others(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
        """Keys and values with those that all see behind them, and how many these are."""
        others = 0
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (
                torch.cat([x, self._one_for_all(bias).to(x.dtype).expand(x.shape[0], -1, 1, -1)], 2)
                for x, bias in ((k, self.bias_k), (v, self.bias_v))
            )
            others += 1
        if self.add_zero_attn:
            k, v = (torch.cat([x, x.new_zeros(*x.shape[:2], 1, x.shape[3])], 2) for x in (k, v))
            others += 1
        return k, v, others

    def _one_for_all(self, bias: Tensor) -> Tensor:
        return bias.view(1, 1, self.num_heads, self.head_dim).transpose(1, 2)

    def extra_repr(self) -> str:
        """Sizes and options."""
        said = f"{self.embed_dim}, {self.num_heads}, dropout={self.dropout}, batch_first={self.batch_first}"
        if (self.kdim, self.vdim) != (self.embed_dim, self.embed_dim):
            said += f", kdim={self.kdim}, vdim={self.vdim}"
        for name in ("mask_mod", "score_mod"):
            mod = getattr(self, name)
            said += "" if mod is None else f", {name}={mod}"
        return said


def _tables(
    key_padding_mask: Tensor | None, attn_mask: Tensor | None, q: Tensor, keys: int, is_causal: bool, batched: bool
) -> dict[Table, Tensor]:
    """The masks of a call by their kind; with ``is_causal`` the tensor says nothing more."""
    batch, heads, rows, _ = q.shape
    tables: dict[Table, Tensor] = {}
    if attn_mask is not None:
        _check_table("attn_mask", attn_mask, [(rows, keys), (batch * heads, rows, keys)])
        if not is_causal:
            tables["pairs" if attn_mask.dim() == 2 else "heads"] = attn_mask
    if key_padding_mask is not None:
        _check_table("key_padding_mask", key_padding_mask, [(batch, keys) if batched else (keys,)])
        tables["padding"] = key_padding_mask if batched else key_padding_mask.unsqueeze(0)
    return tables


def _check_table(name: str, table: Tensor, shapes: list[tuple[int, ...]]) -> None:
    if not isinstance(table, Tensor) or not (table.dtype == torch.bool or table.is_floating_point()):
        got = table.dtype if isinstance(table, Tensor) else type(table).__name__
        raise KindError(f"{name} must be a tensor of bool or floating point, got {got}")
    if tuple(table.shape) not in shapes:
        raise InputError(f"{name} must have the shape {' or '.join(map(str, shapes))}, got {tuple(table.shape)}")
