"""Attention on the CPU: for each row of blocks, the softmax over the keys that it sees, step by step.

Most rows are one step. Where there are more, the largest score, the sum of exponentials and the output so far are
carried along and rescaled (Milakov and Gimelshein, *Online normalizer calculation for softmax*, 2018).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...fp8 import result_dtype
from ...mods import ScoreMod
from ...stats import serving
from ...widen import widened
from .entries import entries
from .fused import fused_forward, has_numbers, is_served, merged
from .programs import tile_program
from .steps import Step
from .tile import MINUS_INFINITY, Attention, Tile, check_inside, exponential, product

if TYPE_CHECKING:
    from ...block_mask import BlockMask


@torch.no_grad()
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: BlockMask | None,
    score: ScoreMod | None,
    scale: float,
    q_offset: Tensor | int = 0,
    kv_lens: Tensor | None = None,
    sinks: Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int | Tensor = 0,
    check: bool = True,
    want_max: bool = True,
    descales: Tensor | None = None,
    batch_invariant: bool = False,
    first_entry: int = 0,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Attention over the runs of a block mask.

    Args:
        q: ``[B, Hq, L, E]``, of any float type and strides.
        k: ``[B or 1, Hkv, S, E]``; ``Hkv`` divides ``Hq``. Keys and values may be of 8 bits, and queries with them.
        v: ``[B or 1, Hkv, S, Ev]``.
        mask: what is visible, of queries ``L`` and keys ``S``; its mod sees ``q_offset + i``. ``None``: all.
        score: modification of scores; sees ``q_offset + i`` as well.
        scale: of the products.
        q_offset: what is added to the number of a query, one or ``[B]``.
        kv_lens: ``[B]``: how many keys there are; those behind are never read.
        sinks: ``[Hq]``: one more score a row, of a key whose value is 0.
        dropout_p: share of the softmax that is dropped.
        seed: of the dropout (see :mod:`..dropout`).
        check: whether reading a captured tensor out of range at a visible position is an error; else it gives 0.
        want_max: whether the largest score is wanted: without it, and without score modification and dropout, PyTorch's
            fused attention can serve.
        descales: of 8-bit features: float32 ``[2, B, Hq]``, factors of the products and of the values.
        batch_invariant: each batch entry is computed by itself, so that its bits do not depend on the others.
        first_entry: number of the first batch entry, as mods see it.

    Returns:
        ``out`` ``[B, Hq, L, Ev]`` in the type (of 8 bits: bfloat16) and dimension order of ``q``; in float32
        (float64 for float64) the logarithm of the sum of exponentials, with the sink, ``[B, Hq, L]``, and the largest
        score ``[B, Hq, L]``, or ``None``. Where nothing is visible: 0, −inf (the sink, if there is one), −inf.

    Raises:
        OutOfRangeError: a captured tensor is read out of range at a visible position.
    """
    if batch_invariant:
        return _one_by_one(
            q, k, v, mask, q_offset, kv_lens, descales, score=score, scale=scale, sinks=sinks, dropout_p=dropout_p,
            seed=seed, check=check, want_max=want_max,
        )  # fmt: skip
    serving("cpu")
    call = Attention(q, k, v, mask, score, scale, q_offset, kv_lens, dropout_p, seed, check, descales, first_entry)
    if q.shape[:3].numel() == 0:
        lse, largest = (q.new_empty(q.shape[:3], dtype=call.dtype) for _ in range(2))
        out = q.new_empty(*q.shape[:3], v.shape[-1], dtype=result_dtype(q.dtype))
        return out, lse, largest if want_max else None
    results = _forward(call, sinks, want_max, careful=False)
    if bool(results[0].sum(dtype=call.dtype).isfinite()):
        return results
    return _forward(call, sinks, want_max, careful=True)


def _one_by_one(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: BlockMask | None,
    q_offset: Tensor | int,
    kv_lens: Tensor | None,
    descales: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Each batch entry in a call of its own."""
    found = [
        forward(
            *features,
            mask=blocks,
            q_offset=offset,
            first_entry=number,
            descales=None if descales is None else descales[:, number : number + 1],
            **options,
        )
        for number, (features, blocks, offset) in enumerate(entries(q, k, v, mask, q_offset, kv_lens))
    ]
    if not found:
        return forward(q, k, v, mask=mask, **options)
    order = sorted(range(3), key=lambda d: -q.stride(d))
    out = torch.empty_permuted((*q.shape[:3], v.shape[-1]), (*order, 3), dtype=result_dtype(q.dtype), device=q.device)
    outs, lses, tops = zip(*found)
    torch.cat(outs, out=out)
    return out, torch.cat(lses), torch.cat(tops) if options["want_max"] else None


def _forward(
    call: Attention, sinks: Tensor | None, want_max: bool, *, careful: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    shape, width = call.q.shape[:3], call.v.shape[-1]
    order = sorted(range(3), key=lambda d: -call.q.stride(d))
    out = torch.empty_permuted((*shape, width), (*order, 3), dtype=result_dtype(call.q.dtype))
    lse = torch.empty(*shape, 1, dtype=call.dtype)
    largest = torch.empty_like(lse) if want_max else None
    sink = None if sinks is None else call.by_lane(sinks.to(call.dtype).view(1, -1, 1, 1).expand(*shape, 1))
    is_fused = not want_max and not careful and is_served(call) and has_numbers(call)
    softmax = _fused if is_fused else _softmax
    for lane, rows in call.rows():
        tile = Tile(call, lane, rows, careful=careful)
        of_out, of_lse, top = softmax(tile)
        if call.descales is not None:
            of_out *= tile.descale(1)
        if sink is not None:
            share = tile.take(sink)
            of_out *= torch.sigmoid(of_lse - share).masked_fill_(of_lse == MINUS_INFINITY, 0)
            of_lse = torch.logaddexp(of_lse, share)
        tile.put(call.by_lane(out), of_out)
        tile.put(call.by_lane(lse), of_lse)
        if largest is not None and top is not None:
            tile.put(call.by_lane(largest), top)
    return out, lse.squeeze(-1), None if largest is None else largest.squeeze(-1)


def _fused(tile: Tile) -> tuple[Tensor, Tensor, None]:
    """``out`` and ``lse`` of a tile's rows, by PyTorch's fused attention."""
    known: tuple[Tensor, Tensor] | None = None
    for step in tile.steps(shared=True):
        part = fused_forward(tile, step)
        known = part if known is None else merged(*known, *part)
    out, lse = _nothing(tile)[:2] if known is None else known
    return out, lse, None


def _softmax(tile: Tile) -> tuple[Tensor, Tensor, Tensor]:
    """``out``, ``lse`` and the largest score of a tile's rows."""
    known: tuple[Tensor, Tensor, Tensor] | None = None  # unscaled output, sum of exponentials, largest score
    for step in tile.steps():
        scores, visible = _scores(tile, step)
        top = scores.amax(-1, keepdim=True)
        if known is not None:
            top = torch.maximum(top, known[2])
        finite = top.masked_fill(top == MINUS_INFINITY, 0)
        weight = exponential(scores.sub_(finite))
        total = weight.sum(-1, keepdim=True)
        if tile.call.dropout_p:
            weight *= tile.keep(step)
        value = tile.of_keys(tile.call.values, step)
        if known is None:
            out = product(weight, value, visible)
        else:
            shrunk = (known[2] - finite).exp_()
            out, total = known[0].mul_(shrunk), known[1].mul_(shrunk).add_(total)
            if visible is None:
                out.baddbmm_(weight, value)
            else:
                out += product(weight, value, visible)
        known = out, total, top
    if known is None:
        return _nothing(tile)
    out, total, top = known
    empty = top == MINUS_INFINITY
    lse = total.log() + top.masked_fill(empty, 0)
    return out.div_(total.masked_fill_(empty, 1)), lse, top


def _nothing(tile: Tile) -> tuple[Tensor, Tensor, Tensor]:
    """What rows get that see no key."""
    out = torch.zeros(tile.products, tile.height, tile.call.v.shape[-1], dtype=tile.call.dtype)
    lowest = torch.full((tile.products, tile.height, 1), MINUS_INFINITY, dtype=tile.call.dtype)
    return out, lowest, lowest


def _scores(tile: Tile, step: Step) -> tuple[Tensor, Tensor | None]:
    """Modified scores with −inf at what is invisible; with care, what is visible."""
    call, mod = tile.call, tile.call.score
    scores = tile.times(tile.query, tile.of_keys(call.keys, step), "scores")
    if mod is None:
        tile.hide(scores, step)
    else:
        inputs = tile.inputs(tile.wide(scores), step)
        program = widened(mod.program) if call.dtype == torch.float64 else mod.program
        result, outside = tile_program(program)(inputs, mod.captures, mod.scalars, step.pieces)
        if any(result.untyped_storage().data_ptr() == c.untyped_storage().data_ptr() for c in mod.captures):
            result = result.clone()  # what is read may be the captured tensor itself, and scores are overwritten
        scores = tile.narrow(result, step)
        tile.hide(scores, step)
        if call.check and outside is not None:
            check_inside("score_mod", outside, tile.wide(scores) != MINUS_INFINITY, inputs)
    return scores, scores != MINUS_INFINITY if tile.careful else None
