"""What attention MEANS, in plain PyTorch: dense, in float64, slow, and the oracle of all kernel tests.

For batch ``b``, query head ``h`` of the group that shares key head ``g = h // (Hq // Hkv)``, query ``i`` and key ``j``:
``s = scale · <q[b, h, i], k[b, g, j]>``, then ``score_mod``, then −inf where ``mask_mod`` is False; ``p`` is the
softmax of that over ``j`` and ``out[b, h, i] = Σ_j p · v[b, g, j]``. Gradients are autograd's, of any order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .errors import OutOfRangeError
from .evaluate import evaluator
from .filled import Mod
from .masks import from_dense
from .mods import MaskLike, ScoreLike, ScoreMod, mask_mod, score_mod
from .widen import widened

MINUS_INFINITY = float("-inf")


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score_mod: ScoreLike | None = None,
    mask_mod: MaskLike | None = None,
    scale: float | None = None,
    sinks: Tensor | None = None,
    dropout_mask: Tensor | None = None,
    q_offset: int | Tensor = 0,
    kv_lens: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention with a score modification and a mask.

    Args:
        q: ``[B, Hq, L, E]``.
        k: ``[B, Hkv, S, E]`` or ``[1, Hkv, S, E]``; ``Hkv`` divides ``Hq``.
        v: ``[B, Hkv, S, Ev]`` or ``[1, Hkv, S, Ev]``.
        score_mod: ``(score, b, h, q_idx, kv_idx) -> score``.
        mask_mod: ``(b, h, q_idx, kv_idx) -> bool``; True where visible.
        scale: of the products; default ``1/√E``.
        sinks: ``[Hq]``: one more score a row, of a key whose value is 0.
        dropout_mask: factors of the softmax, of a shape that broadcasts to ``[B, Hq, L, S]``: 0 or ``1/(1 - p)``.
        q_offset: what is added to the number of a query, one for all or ``[B]``.
        kv_lens: ``[B]``: how many keys there are; those after are never read.

    Returns:
        In float64: ``out`` ``[B, Hq, L, Ev]``, the logarithm of the sum of exponentials ``lse`` ``[B, Hq, L]`` (with
        the sink) and the largest score ``[B, Hq, L]`` (without it, and without gradient). Where nothing is visible: 0,
        −inf (the sink, if there is one), −inf, and no gradient.

    Raises:
        OutOfRangeError: a captured tensor is read out of range at a visible position.
    """
    (batch, heads, rows, width), (_, groups, columns, _) = q.shape, k.shape
    is_wide = q.dtype == torch.float64
    q, k, v = (t.double() for t in (q, k, v))
    k, v = (t.expand(batch, -1, -1, -1).repeat_interleave(heads // max(groups, 1), dim=1) for t in (k, v))
    index = _positions(q, columns, q_offset)
    seen = _visible(mask_mod, index, kv_lens)

    scores = _products(q.unsqueeze(-2), k.unsqueeze(-3), seen.unsqueeze(-1)) * (width**-0.5 if scale is None else scale)
    scores, seen = _modified(scores, seen, score_mod, index, is_wide)
    largest = scores.detach().amax(-1) if columns else scores.new_full((batch, heads, rows), MINUS_INFINITY)

    # The sink is one more column; without sinks it is invisible.
    sink = q.new_full((heads,), MINUS_INFINITY) if sinks is None else sinks.double()
    scores = torch.cat([scores, sink.view(1, -1, 1, 1).expand(batch, -1, rows, 1)], -1)
    seen = torch.cat([seen, (scores[..., -1:] != MINUS_INFINITY)], -1)
    top = scores.detach().amax(-1, keepdim=True)
    top = torch.where(top == MINUS_INFINITY, 0, top)
    weight = torch.where(seen, (scores - top).exp(), 0)
    total = weight.sum(-1, keepdim=True)
    empty = ~seen.any(-1, keepdim=True)
    total = torch.where(empty, 1, total)
    lse = torch.where(empty, MINUS_INFINITY, total.log() + top).squeeze(-1)
    p = (weight / total)[..., :-1]
    if dropout_mask is not None:
        p = p * dropout_mask
    out = _products(p.unsqueeze(-2), v.mT.unsqueeze(-3), seen[..., :-1].unsqueeze(-2))
    return out, lse, largest


def selected_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_indices: Tensor,
    block_counts: Tensor | int | None = None,
    *,
    block_size: int = 64,
    scale: float | None = None,
    causal: bool = True,
    q_offset: int = 0,
) -> tuple[Tensor, Tensor]:
    """Attention of each query to the keys of blocks of its own.

    Args:
        q: ``[B, Hq, L, E]``.
        k: ``[B, Hkv, S, E]`` or ``[1, Hkv, S, E]``; ``Hkv`` divides ``Hq``.
        v: ``[B, Hkv, S, Ev]`` or ``[1, Hkv, S, Ev]``.
        block_indices: integers ``[B, Hkv, L, n]``: blocks that a query sees; outside the blocks that there are: none.
        block_counts: integers ``[B, Hkv, L]``, or one: how many of the ``n`` count.
        block_size: keys of a block.
        scale: of the products; default ``1/√E``.
        causal: a query sees no key behind it.
        q_offset: what is added to the number of a query.

    Returns:
        In float64 ``out`` ``[B, Hq, L, Ev]`` and ``lse`` ``[B, Hq, L]``.
    """
    seen = torch.zeros(*block_indices.shape[:3], k.shape[2], dtype=torch.bool, device=q.device)
    query, key = (torch.arange(n, device=q.device) for n in seen.shape[2:])
    for n in range(block_indices.shape[3]):
        counts = torch.ones_like(block_indices[..., n], dtype=torch.bool)
        if block_counts is not None:
            counts = n < torch.as_tensor(block_counts, device=q.device).expand_as(counts)
        seen |= (key // block_size == block_indices[..., n, None]) & counts.unsqueeze(-1)
    if causal:
        seen &= key <= query.unsqueeze(1) + q_offset
    seen = seen.repeat_interleave(q.shape[1] // max(k.shape[1], 1), 1)
    return attention(q, k, v, mask_mod=from_dense(seen) if seen.numel() else None, scale=scale)[:2]


def merge_attention(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Attention over all keys from attention over parts of them: ``Σ_r exp(lse_r − lse) · out_r``.

    Args:
        parts: ``out`` ``[..., Ev]`` and ``lse`` ``[...]`` of each part. Rows with ``lse`` −inf contribute nothing.

    Returns:
        ``out`` and ``lse`` of the whole, in float64.
    """
    outs = torch.stack([out for out, _ in parts]).double()
    lses = torch.stack([lse for _, lse in parts]).double()
    seen = lses != MINUS_INFINITY
    top = lses.detach().amax(0)
    top = torch.where(top == MINUS_INFINITY, 0, top)
    weight = torch.where(seen, (lses - top).exp(), 0)
    empty = ~seen.any(0)
    total = torch.where(empty, 1, weight.sum(0))
    out = ((weight / total).unsqueeze(-1) * torch.where(seen.unsqueeze(-1), outs, 0)).sum(0)
    return out, torch.where(empty, MINUS_INFINITY, total.log() + top)


def _positions(q: Tensor, columns: int, q_offset: int | Tensor) -> tuple[Tensor, ...]:
    """``b``, ``h``, ``i`` and ``j`` as mods see them, of shapes that broadcast to ``[B, Hq, L, S]``."""
    b, h, i, j = (
        torch.arange(size, dtype=torch.int32, device=q.device).view([-1 if d == own else 1 for d in range(4)])
        for own, size in enumerate((*q.shape[:3], columns))
    )
    offset = torch.as_tensor(q_offset, dtype=torch.int32, device=q.device)
    return b, h, i + offset.view(-1, 1, 1, 1), j


def _visible(mask: MaskLike | None, index: tuple[Tensor, ...], kv_lens: Tensor | None) -> Tensor:
    """``[B, Hq, L, S]``."""
    shape = torch.broadcast_shapes(*(x.shape for x in index))
    inside = torch.ones(shape, dtype=torch.bool, device=index[0].device)
    if kv_lens is not None:
        inside = inside & (index[3] < kv_lens.view(-1, 1, 1, 1))
    if mask is None:
        return inside
    result, outside = _apply(mask_mod(mask), dict(zip(("b", "h", "q", "kv"), index)))
    _check_inside(outside, result & inside)
    return result & inside


def _modified(
    scores: Tensor, seen: Tensor, mod: ScoreLike | None, index: tuple[Tensor, ...], is_wide: bool
) -> tuple[Tensor, Tensor]:
    """Scores, −inf where nothing is seen, and what is seen: not where ``mod`` makes −inf.

    ``mod`` is applied to visible scores alone, so what it would make of others (NaN, an error) cannot matter.
    """
    if mod is None:
        return torch.where(seen, scores, MINUS_INFINITY), seen & (scores != MINUS_INFINITY)
    mod, (b, h, q, kv) = score_mod(mod), (x.expand(seen.shape) for x in index)
    if is_wide:
        mod = ScoreMod(widened(mod.program), mod.captures, mod.scalars)

    def apply(where: Tensor) -> Tensor:
        inputs = {"score": scores[where], "b": b[where], "h": h[where], "q": q[where], "kv": kv[where]}
        result, outside = _apply(mod, inputs)
        _check_inside(outside, torch.ones_like(result, dtype=torch.bool))
        full = torch.full_like(scores, MINUS_INFINITY)
        return full.index_put((where,), result.double().expand(inputs["score"].shape))

    with torch.no_grad():
        seen = seen & (apply(seen) != MINUS_INFINITY)
    return apply(seen), seen


def _apply(mod: Mod, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    (result,), outside = evaluator(mod.program)(inputs, mod.captures, mod.scalars)
    return result, outside


def _check_inside(outside: Tensor | None, seen: Tensor) -> None:
    if outside is not None and bool((outside & seen).any()):
        raise OutOfRangeError("a captured tensor is read out of range at a visible position")


def _products(a: Tensor, b: Tensor, seen: Tensor) -> Tensor:
    """``Σ_x a · b``, of ``a`` ``[..., n, 1, x]`` and ``b`` ``[..., 1, m, x]``, to ``[..., n, m]``.

    What of ``b`` is not ``seen`` (of a shape that broadcasts to ``[..., n, m, x]``) counts as 0, also where it is NaN:
    if there is such a number, each product is made by itself.
    """
    if bool(a.isfinite().all()) and bool(b.isfinite().all()):
        return a.squeeze(-2) @ b.squeeze(-3).mT
    return (a * torch.where(seen, b, 0)).sum(-1)
