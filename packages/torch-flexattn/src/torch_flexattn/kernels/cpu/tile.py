"""Scores of a tile: queries times keys, modified and masked; what forward and backward share.

Two ways of masking. *Quick*: −inf is added where a key is invisible, many times faster than choosing. NaN and
infinities of invisible keys come through it, and make the result NaN: then all is done again with *care*, where what is
invisible is overwritten and left out of every sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...errors import OutOfRangeError
from ...fp8 import FP8
from ...mods import MaskMod, ScoreMod
from ..dropout import keep
from .lanes import Lanes, by_lane, lanes
from .programs import TileProgram, tile_program
from .steps import FULL, NONE, AllRows, Rows, RowsOfMask, Span, Step

if TYPE_CHECKING:
    from ...block_mask import BlockMask

TILE = 1 << 19
"""Scores of a step, at most (unless a single head's rows times :data:`~.lanes.FEWEST_KEYS` keys are more)."""
MINUS_INFINITY = float("-inf")
LOG2_E = math.log2(math.e)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(frozen=True, eq=False)
class Attention:
    """One call: the tensors and what is asked of them.

    Attributes:
        q: ``[B, Hq, L, E]``.
        k: ``[B or 1, Hkv, S, E]``.
        v: ``[B or 1, Hkv, S, Ev]``.
        mask: what is visible; ``None``: all.
        score: modification of scores.
        scale: of the products.
        q_offset: of queries, for all batch entries or for each.
        kv_lens: number of keys of each batch entry.
        dropout_p: share of the weights that is dropped.
        seed: of the dropout.
        check: whether reading a captured tensor out of range is an error.
        descales: of 8-bit features: float32 ``[2, B, Hq]``, factors of products and of values.
        first_entry: number of the first batch entry, as mods see it.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: BlockMask | None
    score: ScoreMod | None
    scale: float
    q_offset: Tensor | int
    kv_lens: Tensor | None
    dropout_p: float
    seed: int | Tensor
    check: bool
    descales: Tensor | None = None
    first_entry: int = 0
    _held: dict[str, Tensor] = field(init=False, default_factory=dict, repr=False)

    def memory(self, name: str, *shape: int) -> Tensor:
        """Memory that is used again at every step: new pages cost as much as what is written to them."""
        size = math.prod(shape)
        if name not in self._held or self._held[name].numel() < size:
            self._held[name] = torch.empty(size, dtype=self.dtype)
        return self._held[name][:size].view(shape)

    @cached_property
    def dtype(self) -> torch.dtype:
        return compute_dtype(self.q.dtype)

    @cached_property
    def shape(self) -> tuple[int, int, int, int]:
        """Key batch, key heads, copies, group."""
        (batch, heads), (key_batch, key_heads) = self.q.shape[:2], self.k.shape[:2]
        return key_batch, key_heads, batch // key_batch, heads // key_heads

    def by_lane(self, x: Tensor) -> Tensor:
        """``[B, Hq, …]`` as ``[key batch, key heads, copies, group, …]``."""
        return by_lane(x, *self.k.shape[:2])

    @cached_property
    def keys(self) -> Tensor:
        """``k`` in the type of the computation, unless every key is read once only, or is of 8 bits: then it is
        converted as it is read, so that no wide copy of it is held."""
        return self.k if self.q.shape[2] == 1 or self.k.dtype == FP8 else self.k.to(self.dtype)

    @cached_property
    def values(self) -> Tensor:
        return self.v if self.q.shape[2] == 1 or self.v.dtype == FP8 else self.v.to(self.dtype)

    def rows(self) -> Iterator[tuple[Lanes, Rows]]:
        """All work: which heads, which queries."""
        q_len, num_keys = self.q.shape[2], self.k.shape[2]
        known = AllRows(q_len, num_keys) if self.mask is None else RowsOfMask(self.mask)
        found = lanes(
            self.shape,
            rows=max(rows.stop - rows.start for rows in known.of(0)),
            row_stride=known.count,
            mask_shape=(1, 1) if self.mask is None else self.mask.shape[:2],
            q_offset=_numbers(self.q_offset),
            num_keys=[num_keys] if self.kv_lens is None else _numbers(self.kv_lens),
            tile=TILE,
        )
        for lane in found:
            for rows in known.of(lane.first_row):
                yield lane, rows

    @cached_property
    def mask_program(self) -> tuple[MaskMod, TileProgram] | None:
        """What says which keys of partial blocks are visible; ``None``: the blocks say it all."""
        mod = None if self.mask is None else self.mask.mod
        return None if mod is None else (mod, tile_program(mod.program))

    @cached_property
    def positions(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Batch entries and heads by lane, queries and keys: int32."""
        key_batch, key_heads, copies, group = self.shape
        b = torch.arange(key_batch * copies, dtype=torch.int32).view(key_batch, 1, copies, 1, 1, 1) + self.first_entry
        h = torch.arange(key_heads * group, dtype=torch.int32).view(1, key_heads, 1, group, 1, 1)
        q = torch.arange(self.q.shape[2], dtype=torch.int32).unsqueeze(1)
        return b, h, q, torch.arange(self.k.shape[2], dtype=torch.int32)


class Tile:
    """Some queries of some heads; keys come step by step.

    Attributes:
        products: matrix products side by side.
        height: rows of each: queries times the heads and batch entries that share keys.
    """

    def __init__(self, call: Attention, lane: Lanes, rows: Rows, *, careful: bool) -> None:
        self.call, self.lane, self.rows, self.careful = call, lane, rows, careful
        self.products, self.height = lane.products, (rows.stop - rows.start) * lane.shape[2] * lane.shape[3]
        b, h, q, self._kv = call.positions
        self._b, self._h = b[lane.batch, :, lane.copies], h[:, lane.heads, :, lane.group]
        self._q = q[rows.start : rows.stop] + lane.q_offset

    def take(self, x: Tensor) -> Tensor:
        """This tile's rows of ``[key batch, key heads, copies, group, L, width]``, as ``[products, rows, width]``."""
        part = x[*self._lanes, self.rows.start : self.rows.stop]
        return torch.empty(part.shape, dtype=self.call.dtype).copy_(part).view(self.products, self.height, x.shape[-1])

    def view(self, x: Tensor) -> Tensor:
        """As :meth:`take`, without a copy where there is no need; not to be written to."""
        part = x[*self._lanes, self.rows.start : self.rows.stop]
        return part.to(self.call.dtype).reshape(self.products, self.height, x.shape[-1])

    @cached_property
    def query(self) -> Tensor:
        """``[products, height, E]``, scaled."""
        query = self.take(self.call.by_lane(self.call.q)).mul_(self.call.scale)
        return query if self.call.descales is None else query.mul_(self.descale(0))

    def descale(self, which: int) -> Tensor:
        """Factors of products (0) or of values (1), for each row: ``[products, height, 1]``."""
        assert self.call.descales is not None
        of_heads = self.call.descales[which][..., None, None]
        return self.take(self.call.by_lane(of_heads.expand(*self.call.q.shape[:3], 1)))

    def put(self, x: Tensor, result: Tensor) -> None:
        """Write ``[products, rows, width]`` to this tile's rows of ``x``, as :meth:`take` reads them."""
        part = x[*self._lanes, self.rows.start : self.rows.stop]
        part.copy_(result.view(part.shape))

    @property
    def _lanes(self) -> tuple[slice, slice, slice, slice]:
        return self.lane.batch, self.lane.heads, self.lane.copies, self.lane.group

    def steps(self, *, shared: bool = False) -> list[Step]:
        """The stretches of keys that these queries see; ``shared``: what is held at once is one for all heads."""
        held = self.height * (1 if shared else self.products)
        return self.rows.steps(self.lane.num_keys, max(TILE // held, 16), apart=shared)

    def times(self, x: Tensor, of_keys: Tensor, name: str) -> Tensor:
        """``x`` ``[products, height, width]`` times keys or values, in the memory called ``name``."""
        return torch.bmm(x, of_keys.mT, out=self.call.memory(name, *x.shape[:2], of_keys.shape[1]))

    def of_keys(self, x: Tensor, step: Step) -> Tensor:
        """``[products, keys, width]`` of ``[key batch, key heads, S, width]``."""
        parts = [x[self.lane.batch, self.lane.heads, start:stop] for start, stop in step.pieces]
        part = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
        return part.to(self.call.dtype).reshape(self.products, step.width, x.shape[-1])

    def wide(self, scores: Tensor) -> Tensor:
        """``[products, height, keys]`` as ``[key batch, key heads, copies, group, rows, keys]``."""
        return scores.view(*self.lane.shape, -1, scores.shape[-1])

    def narrow(self, x: Tensor, step: Step) -> Tensor:
        """The inverse of :meth:`wide`, of anything that broadcasts to it, in the type of the computation."""
        shape = (*self.lane.shape, self.rows.stop - self.rows.start, step.width)
        if x.shape != shape:
            x = torch.empty(shape, dtype=self.call.dtype).copy_(x)
        return x.to(self.call.dtype).reshape(self.products, self.height, step.width)

    def inputs(self, score: Tensor, step: Step) -> dict[str, Tensor]:
        """What a score modification reads."""
        return {"score": score, "b": self._b, "h": self._h, "q": self._q, "kv": self._of_pieces(step.pieces)}

    def hide(self, scores: Tensor, step: Step) -> None:
        """Put −inf where keys are invisible, in place."""
        if not step.partial:
            return
        visible = self._visible(step)
        wide, at = self.wide(scores), 0
        if not self.careful:
            visible = self._added(visible)
        for span, place in step.partial:
            width = span.stop - span.start
            here, part = wide[..., place : place + width], visible[..., at : at + width]
            if self.careful:
                here.masked_fill_(~part, MINUS_INFINITY)
            else:
                here += part
            at += width

    def bias(self, step: Step) -> Tensor | None:
        """What hides invisible keys when it is added, the same for all heads: ``[1, 1, height, keys]``."""
        if not step.partial:
            return None
        added = self._added(self._visible(step)).view(self._q.shape[0], -1)
        if added.shape[-1] < step.width:
            whole, at = added.new_zeros(added.shape[0], step.width), 0
            for span, place in step.partial:
                width = span.stop - span.start
                whole[:, place : place + width] = added[:, at : at + width]
                at += width
            added = whole
        return added.expand(self.height // added.shape[0], -1, -1).reshape(1, 1, -1, step.width)

    def _added(self, visible: Tensor) -> Tensor:
        return torch.zeros(visible.shape, dtype=self.call.dtype).masked_fill_(~visible, MINUS_INFINITY)

    def _visible(self, step: Step) -> Tensor:
        """Of the keys of the partial parts of ``step``, side by side."""
        spans = [span for span, _ in step.partial]
        pieces = [(span.start, span.stop) for span in spans]
        kv = self._of_pieces(pieces)
        inputs = {"b": self._b, "h": self._h, "q": self._q, "kv": kv}
        shape = (self._q.shape[0], kv.shape[-1])
        if self.call.mask_program is None:
            visible = torch.ones(shape, dtype=torch.bool)
        else:
            mod, program = self.call.mask_program
            visible, outside = program(inputs, mod.captures, mod.scalars, pieces)
            if self.call.check and outside is not None:
                check_inside("mask_mod", outside, visible, inputs)
            visible = visible.expand(torch.broadcast_shapes(visible.shape, shape))
        if len(spans[0].kinds) > 1:
            visible = visible.clone()
            self._fill_whole_blocks(visible, spans)
        return visible

    def _fill_whole_blocks(self, visible: Tensor, spans: list[Span]) -> None:
        """Where rows of blocks are taken together, a stretch may be partial for one and full, or none, for another."""
        height, at = self.rows.height, 0
        for span in spans:
            width = span.stop - span.start
            for number, kind in enumerate(span.kinds):
                if kind in (NONE, FULL):
                    visible[..., number * height : (number + 1) * height, at : at + width] = kind == FULL
            at += width

    def keep(self, step: Step) -> Tensor:
        """The factors of dropout: 0 or ``1 / (1 − p)``, ``[products, height, keys]``."""
        call = self.call
        parts = [keep(call.seed, self._b, self._h, self._q, *piece, call.dropout_p) for piece in step.pieces]
        kept = (parts[0] if len(parts) == 1 else torch.cat(parts, -1)).to(call.dtype).mul_(1 / (1 - call.dropout_p))
        return kept.reshape(self.products, self.height, step.width)

    def _of_pieces(self, pieces: list[tuple[int, int]]) -> Tensor:
        """``[1, keys]``."""
        parts = [self._kv[start:stop] for start, stop in pieces]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).unsqueeze(0)


def exponential(x: Tensor) -> Tensor:
    """``exp(x)``, in place.

    PyTorch's ``exp`` takes ten times as long where the result is 0 or nearly; ``exp2`` does not.
    """
    return x.mul_(LOG2_E).exp2_()


def check_inside(name: str, outside: Tensor, visible: Tensor, inputs: dict[str, Tensor]) -> None:
    """Raise where a captured tensor was read out of range although the key is visible.

    Args:
        name: of the mod.
        outside: where it was.
        visible: bool; with ``outside`` and ``inputs`` of shapes that broadcast.
        inputs: of the mod: the indices.

    Raises:
        OutOfRangeError: there is such a place; the message names the first.
    """
    if not bool(outside.any()):
        return
    wrong = outside & visible
    if bool(wrong.any()):
        names = ("b", "h", "q", "kv")
        wrong, *indices = torch.broadcast_tensors(wrong, *(inputs[name] for name in names))
        place = tuple(wrong.nonzero()[0].tolist())
        b, h, q, kv = (int(index[place]) for index in indices)
        raise OutOfRangeError(
            f"{name} reads a captured tensor out of range at a visible position (b={b}, h={h}, q={q}, kv={kv})"
        ).at((b, h, q, kv))


def product(a: Tensor, b: Tensor, visible: Tensor | None) -> Tensor:
    """``a @ b``; where ``visible`` (of ``a``'s shape) is given, invisible terms are left out, also where ``b`` is NaN.

    ``a`` is 0 at what is invisible, or NaN in all of its row.
    """
    if visible is None or bool(b.isfinite().all()):
        return torch.bmm(a, b)
    seen = visible.to(b.dtype)
    kinds = b.isnan(), b == -MINUS_INFINITY, b == MINUS_INFINITY
    nan, above, below = (torch.bmm(seen, bad.to(b.dtype)) > 0 for bad in kinds)
    result = torch.bmm(a, b.nan_to_num(0.0, 0.0, 0.0))
    result = torch.where(above, -MINUS_INFINITY, result).masked_fill_(below, MINUS_INFINITY)
    return result.masked_fill_(nan | (above & below), float("nan"))


def _numbers(x: Tensor | int) -> list[int]:
    """One number, or one a batch entry, if they differ."""
    found = x.reshape(-1).tolist() if isinstance(x, Tensor) else [x]
    return found[:1] if len(set(found)) == 1 else found
