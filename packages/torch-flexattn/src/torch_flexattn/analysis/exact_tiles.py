"""Blocks looked at position by position: first at a few positions, which settle most, then at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..evaluate import evaluator
from ..mods import MaskMod
from ..program import DTYPES
from .geometry import Blocks, Geometry, constant

AT_A_TIME = {"cuda": 64 << 20, "cpu": 4 << 20}
"""Bytes of intermediate results of one step; a CPU is faster where they stay in its cache."""
GATHER_BYTES = 48
"""Of the indices and bounds checks of one read of a captured tensor, a position."""
SAMPLES = ((0, 3, 9, 22, 50, 77, 103, 127), (0, 5, 18, 37, 58, 92, 114, 127))
"""Queries and keys of a block of 128 that are looked at first: corners, and differences without a common period."""


Hints = Callable[[Blocks], tuple[Tensor, Tensor]]
"""For blocks, queries ``[n, rows]`` and keys ``[n, columns]`` (by their place in the block) where the mask may turn."""
WORTH_HINTS = 1 << 22
"""Positions of blocks from which on it pays to look at hints before looking at all."""


def settle(mod: MaskMod, geometry: Geometry, blocks: Blocks, hints: Hints | None = None) -> tuple[Tensor, Tensor]:
    """Whether any and whether all positions of blocks are visible, bool ``[n]``; positions past the end don't count.

    Args:
        mod: the mask.
        geometry: the blocks.
        blocks: which.
        hints: where to look next in blocks that a few fixed positions leave open.
    """
    at = (_samples(*both, geometry.device) for both in zip(SAMPLES, geometry.block))
    some, every = _reduced(mod, geometry, blocks, *at)
    unclear = some == every
    if not unclear.any():
        return some, every
    rest = unclear.nonzero().squeeze(1)
    if hints is not None and rest.shape[0] * geometry.block[0] * geometry.block[1] > WORTH_HINTS:
        some, every = _joined(some, every, rest, _at_hints(mod, geometry, blocks.chosen(rest), hints))
        rest = (some == every).nonzero().squeeze(1)
    if rest.shape[0]:
        some, every = _joined(some, every, rest, look(mod, geometry, blocks.chosen(rest)))
    return some, every


def _joined(some: Tensor, every: Tensor, at: Tensor, more: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """What was seen before and what was seen of the blocks ``at``."""
    return some.index_copy(0, at, some[at] | more[0]), every.index_copy(0, at, every[at] & more[1])


def _at_hints(mod: MaskMod, geometry: Geometry, blocks: Blocks, hints: Hints) -> tuple[Tensor, Tensor]:
    step, some, every = max(1, _budget(mod, geometry) >> 10), [], []  # for 32 × 32 hints a block
    for start in range(0, len(blocks), step):
        part = blocks.part(start, start + step)
        seen = evaluate_tiles(mod, geometry, part, *hints(part))[0].flatten(1)
        some.append(seen.any(1))
        every.append(seen.all(1))
    return torch.cat(some), torch.cat(every)


def look(mod: MaskMod, geometry: Geometry, blocks: Blocks) -> tuple[Tensor, Tensor]:
    """Like :func:`settle`, at every position at once."""
    at = [torch.arange(b, device=geometry.device) for b in geometry.block]
    return _reduced(mod, geometry, blocks, *at)


def count(mod: MaskMod, geometry: Geometry, blocks: Blocks) -> int:
    """Visible positions of all blocks together."""
    at_q, at_kv = (torch.arange(b, device=geometry.device) for b in geometry.block)
    total = torch.zeros((), dtype=torch.int64, device=geometry.device)
    for part, queries, _ in _steps(mod, geometry, blocks, at_q, at_kv):
        seen, _ = evaluate_tiles(mod, geometry, part, queries, at_kv)
        inside_q = (part.row * geometry.block[0])[:, None] + queries < geometry.shape[2]
        inside_kv = (part.column * geometry.block[1])[:, None] + at_kv < geometry.shape[3]
        total += (seen & inside_q[:, :, None] & inside_kv[:, None, :]).sum()
    return int(total)


def first_bad_read(mod: MaskMod, geometry: Geometry, blocks: Blocks) -> tuple[int, int, int] | None:
    """Plane, query and key of a visible position that reads a captured tensor out of range."""
    at_q, at_kv = (torch.arange(b, device=geometry.device) for b in geometry.block)
    for part, queries, _ in _steps(mod, geometry, blocks, at_q, at_kv):
        seen, bad = evaluate_tiles(mod, geometry, part, queries, at_kv)
        found = None if bad is None else (seen & bad).nonzero()[:1].tolist()
        if found:
            ((number, i, j),) = found
            query = int(part.row[number]) * geometry.block[0] + int(queries[i])
            key = int(part.column[number]) * geometry.block[1] + int(at_kv[j])
            return int(part.plane[number]), min(query, geometry.shape[2] - 1), min(key, geometry.shape[3] - 1)
    return None


def evaluate_tiles(
    mod: MaskMod, geometry: Geometry, blocks: Blocks, at_q: Tensor, at_kv: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The mask at some queries and keys of blocks; past the end, that of the last query and key.

    Args:
        at_q: ``[rows]`` int64, queries by their place in a block, or ``[n, rows]``.
        at_kv: ``[columns]`` or ``[n, columns]``, keys likewise.

    Returns:
        ``[n, rows, columns]`` bool, and where a captured tensor was read out of range (``None``: nowhere).
    """
    first = blocks.places.to(torch.int32)
    query = torch.add(at_q.to(torch.int32), first[:, 1, None], alpha=geometry.block[0])
    key = torch.add(at_kv.to(torch.int32), first[:, 2, None], alpha=geometry.block[1])
    for position, length, block in zip((query, key), geometry.shape[2:], geometry.block):
        if length % block:
            position.clamp_(max=length - 1)
    inputs = {"q": query[:, :, None], "kv": key[:, None, :]}
    if mod.dependencies & {"b", "h"}:
        inputs |= geometry.batch_and_head(blocks.plane)
    run = evaluator(mod.program, read=_read if _reads_inside(mod, geometry) else None)
    (seen,), bad = run(inputs, mod.captures, mod.scalars)
    shape = (len(blocks), at_q.shape[-1], at_kv.shape[-1])
    return seen.expand(shape), None if bad is None else bad.expand(shape)


def _reads_inside(mod: MaskMod, geometry: Geometry) -> bool:
    """Whether every read is at the number of a query or of a key, of which the captured tensor has enough."""
    lengths = {"q": geometry.shape[2], "kv": geometry.shape[3]}
    nodes = mod.program.nodes
    return all(
        len(node.args) == 1
        and nodes[node.args[0]].op in lengths
        and mod.captures[int(node.value)].shape[0] >= lengths[nodes[node.args[0]].op]  # type: ignore[arg-type]
        for node in nodes
        if node.op == "gather"
    )


def _read(table: Tensor, indices: list[Tensor]) -> tuple[Tensor, None]:
    """Such a read: no index has to be looked at."""
    (index,) = indices
    return table.index_select(0, index.reshape(-1)).view(index.shape), None


def _reduced(mod: MaskMod, geometry: Geometry, blocks: Blocks, at_q: Tensor, at_kv: Tensor) -> tuple[Tensor, Tensor]:
    some, every = [], []
    for part, queries, more in _steps(mod, geometry, blocks, at_q, at_kv):
        seen, _ = evaluate_tiles(mod, geometry, part, queries, at_kv)
        seen = seen.flatten(1)
        new = seen.any(1), seen.all(1)
        if more:
            new = some.pop() | new[0], every.pop() & new[1]
        some.append(new[0])
        every.append(new[1])
    if len(some) == 1:
        return some[0], every[0]
    if not some:
        nothing = torch.zeros(0, dtype=torch.bool, device=geometry.device)
        return nothing, nothing
    return torch.cat(some), torch.cat(every)


def _steps(
    mod: MaskMod, geometry: Geometry, blocks: Blocks, at_q: Tensor, at_kv: Tensor
) -> Iterator[tuple[Blocks, Tensor, bool]]:
    """Blocks and queries inside them that are evaluated at once; True: more queries of the block before."""
    budget = _budget(mod, geometry)
    queries = max(1, min(at_q.shape[0], budget // at_kv.shape[0]))
    number = max(1, budget // (queries * at_kv.shape[0]))
    for start in range(0, len(blocks), number):
        part = blocks if number >= len(blocks) else blocks.part(start, start + number)
        for first in range(0, at_q.shape[0], queries):
            yield part, at_q[first : first + queries], first > 0


def _samples(of_128: tuple[int, ...], block: int, device: torch.device) -> Tensor:
    return constant(tuple(sorted({place * block // 128 for place in of_128})), device, torch.int32)


def _budget(mod: MaskMod, geometry: Geometry) -> int:
    """Positions that are evaluated at once."""
    total = 1  # bytes of all that an evaluation holds, a position
    for node, needs in zip(mod.program.nodes, mod.program.dependencies, strict=True):
        if {"q", "kv"} <= needs:
            total += GATHER_BYTES if node.op == "gather" else DTYPES[node.dtype].itemsize
    return AT_A_TIME.get(geometry.device.type, AT_A_TIME["cuda"]) // total
