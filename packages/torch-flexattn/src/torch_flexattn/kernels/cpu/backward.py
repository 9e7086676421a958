"""Gradients of attention on the CPU: rows of blocks again, the softmax recomputed from ``lse``.

``Δ = Σ out · grad_out − grad_lse``; ``dS = p · (grad_out · vᵀ − Δ)``, through the derivative of the score modification;
``grad_q = scale · dS k``, ``grad_k = scale · dSᵀ q``, ``grad_v = pᵀ grad_out``: five matrix products a step. With sinks
``lse`` and ``out`` are those that contain them, and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...mods import ScoreMod
from ...stats import serving
from .fused import fused_backward, is_served
from .programs import tile_derivative
from .scatter import CaptureGradient
from .steps import Step
from .tile import MINUS_INFINITY, Attention, Tile, exponential, product

if TYPE_CHECKING:
    from ...block_mask import BlockMask

Gradients = tuple[Tensor, Tensor, Tensor, list[Tensor | None], Tensor | None]


@torch.no_grad()
def backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
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
    needed: Sequence[bool] | None = None,
    deterministic: bool = False,
) -> Gradients:
    """Gradients of :func:`~.forward.forward`.

    Args:
        grad_out: ``[B, Hq, L, Ev]``.
        grad_lse: ``[B, Hq, L]``; ``None``: none reached it.
        q: as in forward; so are the options.
        k: as in forward.
        v: as in forward.
        out: what forward gave.
        lse: what forward gave.
        mask: what is visible.
        score: modification of scores.
        scale: of the products.
        q_offset: what is added to the number of a query.
        kv_lens: number of keys of each batch entry.
        sinks: one more score a row.
        dropout_p: share of the softmax that is dropped.
        seed: of the dropout.
        check: not used: forward has checked.
        needed: which captured tensors of ``score`` need a gradient; default: those that require one.
        deterministic: not used: two runs give equal bits.

    Returns:
        Gradients of ``q``, ``k``, ``v``, of the captured tensors of ``score`` (``None`` where none is needed) and of
        ``sinks`` (``None`` without), each in the type of what it belongs to.
    """
    serving("cpu")
    call = Attention(q, k, v, mask, score, scale, q_offset, kv_lens, dropout_p, seed, check)
    captures = () if score is None else score.captures
    if needed is None:
        needed = [c.requires_grad for c in captures]
    if q.shape[:3].numel() == 0:
        of_captures = [torch.zeros_like(c) if need else None for c, need in zip(captures, needed)]
        of_sinks = None if sinks is None else torch.zeros_like(sinks)
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v), of_captures, of_sinks
    pass_ = _Backward(call, grad_out, grad_lse, out, lse, sinks, needed)
    pass_.run(careful=False)
    if not pass_.is_finite():
        pass_ = _Backward(call, grad_out, grad_lse, out, lse, sinks, needed)
        pass_.run(careful=True)
    return pass_.results()


class _Backward:
    """One pass over all tiles, and the gradients so far."""

    def __init__(
        self,
        call: Attention,
        grad_out: Tensor,
        grad_lse: Tensor | None,
        out: Tensor,
        lse: Tensor,
        sinks: Tensor | None,
        needed: Sequence[bool],
    ) -> None:
        self.call, self.sinks = call, sinks
        self.out, self.grad_out = call.by_lane(out), call.by_lane(grad_out)
        self.lse = call.by_lane(lse.unsqueeze(-1))
        self.grad_lse = None if grad_lse is None else call.by_lane(grad_lse.unsqueeze(-1))
        order = sorted(range(3), key=lambda d: -call.q.stride(d))
        self.grad_q = torch.empty_permuted(call.q.shape, (*order, 3), dtype=call.q.dtype)
        self.grad_k, self.grad_v = (torch.zeros(x.shape, dtype=call.dtype) for x in (call.k, call.v))
        self.grad_sinks = None
        if sinks is not None:
            self.sink = call.by_lane(sinks.to(call.dtype).view(1, -1, 1, 1).expand(*lse.shape, 1))
            self.grad_sink = torch.zeros((*lse.shape, 1), dtype=call.dtype)
        self.is_fused = is_served(call) and grad_lse is None
        self.derivative = None
        self.captures: dict[int, CaptureGradient] = {}
        if call.score is not None:
            self.derivative = tile_derivative(call.score.program, tuple(needed), call.dtype)
            of_captures = enumerate(zip(call.score.captures, needed))
            self.captures = {n: CaptureGradient(c, call.dtype) for n, (c, need) in of_captures if need}

    def run(self, *, careful: bool) -> None:
        for lane, rows in self.call.rows():
            self._rows(Tile(self.call, lane, rows, careful=careful))

    def is_finite(self) -> bool:
        """Whether all gradients are: what is invisible, and NaN, makes one NaN."""
        found = [self.grad_q, self.grad_k, self.grad_v, *(c.total for c in self.captures.values())]
        if self.sinks is not None:
            found.append(self.grad_sink)
        return all(bool(x.sum(dtype=self.call.dtype).isfinite()) for x in found)

    def results(self) -> Gradients:
        call = self.call
        of_sinks = None if self.sinks is None else self.grad_sink.sum((0, 2, 3)).to(self.sinks.dtype)
        count = 0 if call.score is None else len(call.score.captures)
        of_captures = [self.captures[n].result() if n in self.captures else None for n in range(count)]
        return self.grad_q, self.grad_k.to(call.k.dtype), self.grad_v.to(call.v.dtype), of_captures, of_sinks

    def _rows(self, tile: Tile) -> None:
        """All that the queries of one tile contribute."""
        lse, grad_out, out = tile.take(self.lse), tile.view(self.grad_out), tile.view(self.out)
        empty = lse == MINUS_INFINITY
        if self.sinks is not None:
            weight = (tile.view(self.sink) - lse).masked_fill_(empty, MINUS_INFINITY).exp_()
            of_sink = weight.mul_(self._delta(tile, out, grad_out, empty)).neg_()
            tile.put(self.call.by_lane(self.grad_sink), of_sink)
        lse.masked_fill_(empty, -MINUS_INFINITY)
        # The fused operation works on one head a thread.
        if self.is_fused and not tile.careful and tile.products >= torch.get_num_threads():
            grad_query = self._fused(tile, grad_out, out, lse)
        else:
            grad_query, delta = torch.zeros_like(tile.query), self._delta(tile, out, grad_out, empty)
            for step in tile.steps():
                self._step(tile, step, grad_query, lse, grad_out, delta)
            grad_query *= self.call.scale
        tile.put(self.call.by_lane(self.grad_q), grad_query)

    def _delta(self, tile: Tile, out: Tensor, grad_out: Tensor, empty: Tensor) -> Tensor:
        """``Δ``, ``[products, height, 1]``."""
        delta = (out * grad_out).sum(-1, keepdim=True)
        if self.grad_lse is not None:
            delta -= tile.view(self.grad_lse)
        return delta.masked_fill_(empty, 0) if tile.careful else delta

    def _fused(self, tile: Tile, grad_out: Tensor, out: Tensor, lse: Tensor) -> Tensor:
        """Adds to the gradients of keys and values; that of the tile's queries."""
        grad_query: Tensor | None = None
        for step in tile.steps(shared=True):
            of_query, of_key, of_value = fused_backward(tile, step, grad_out, out, lse)
            grad_query = of_query if grad_query is None else grad_query.add_(of_query)
            for total, part in ((self.grad_k, of_key), (self.grad_v, of_value)):
                for keys, at in self._places(total, tile, step):
                    keys += part[:, at : at + keys.shape[1]]
        if grad_query is None:
            return torch.zeros(tile.products, tile.height, self.call.q.shape[-1], dtype=self.call.dtype)
        return grad_query

    def _step(self, tile: Tile, step: Step, grad_query: Tensor, lse: Tensor, grad_out: Tensor, delta: Tensor) -> None:
        call, mod, derivative = self.call, self.call.score, self.derivative
        key, value = tile.of_keys(call.keys, step), tile.of_keys(call.values, step)
        scores, finish, hidden = tile.times(tile.query, key, "scores"), None, None
        if derivative is not None and mod is not None:
            inputs = tile.inputs(tile.wide(scores), step)
            result, finish = derivative(inputs, mod.captures, mod.scalars, step.pieces)
            # In memory of its own: the gradient may need what the modification gave.
            scores = call.memory("weight", *scores.shape).copy_(tile.narrow(result, step))
        if tile.careful:
            tile.hide(scores, step)
            hidden = scores == MINUS_INFINITY
        weight = scores.sub_(lse)
        if not tile.careful:
            tile.hide(weight, step)
        exponential(weight)
        grad = tile.times(grad_out, value, "grad")
        visible = None
        if hidden is not None:
            weight.masked_fill_(hidden, 0)
            visible = ~hidden
        dropped = weight
        if call.dropout_p:
            factor = tile.keep(step)
            dropped = factor * weight
            grad *= factor
        self._add(self.grad_v, tile, step, dropped.mT, grad_out, visible)
        grad.sub_(delta).mul_(weight)
        if hidden is not None:
            grad.masked_fill_(hidden, 0)
        if finish is not None and derivative is not None:
            results = finish(tile.wide(grad))
            seen = None if visible is None else tile.wide(visible)
            for scatter in derivative.scatters:
                indices = [results[n] for n in scatter.indices]
                self.captures[scatter.capture].add(indices, results[scatter.value], step.pieces, seen)
            if results[1].dim() == 0:  # the modification does not depend on the score
                return
            grad = tile.narrow(results[1], step)
            if hidden is not None:
                grad = grad.masked_fill(hidden, 0)
        self._add(self.grad_k, tile, step, grad.mT, tile.query, visible)
        if visible is None:
            grad_query.baddbmm_(grad, key)
        else:
            grad_query += product(grad, key, visible)

    def _add(self, total: Tensor, tile: Tile, step: Step, a: Tensor, b: Tensor, visible: Tensor | None) -> None:
        """``total[keys] += a @ b``."""
        for keys, at in self._places(total, tile, step):
            part = slice(at, at + keys.shape[1])
            if visible is None:
                keys.baddbmm_(a[:, part], b)
            else:
                keys += product(a[:, part], b, visible.mT[:, part])

    def _places(self, total: Tensor, tile: Tile, step: Step) -> Iterator[tuple[Tensor, int]]:
        """The keys of a step in ``total``, ``[products, keys, width]``, piece by piece, and where each piece starts."""
        of_lane = total[tile.lane.batch, tile.lane.heads].view(tile.lane.products, *total.shape[2:])
        at = 0
        for start, stop in step.pieces:
            yield of_lane[:, start:stop], at
            at += stop - start
