"""Parts of a block mask: of some batches, heads and rows of blocks, of some queries, of the first queries and keys.

The mask that partial blocks are evaluated with is shifted along, so that a part works like a mask made for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .analysis.geometry import Geometry
from .analysis.relabel import relabelled, whole_runs
from .block_mask import BlockMask, Index
from .errors import InputError, OutOfRangeError
from .reindex import Always, Change, Chosen, Offset, everything, reindexed
from .runs import assemble, rows_of, take_rows, used


def taken(mask: BlockMask, index: tuple[Index, ...]) -> BlockMask:
    """See :meth:`BlockMask.__getitem__`."""
    if len(index) > 3:
        raise OutOfRangeError(f"a BlockMask has three indices (batch, head, row of blocks), got {len(index)}")
    batch, head, rows = (*index, slice(None), slice(None), slice(None))[:3]
    geometry, block = mask.geometry, mask.block[0]
    batches, heads = (
        _of_plane(mask, name, i, mask.shape[d]) for d, (name, i) in enumerate((("b", batch), ("h", head)))
    )
    chosen = _places(rows, geometry.rows, "row of blocks", mask.device)
    changes = {name: _change(of, size, mask.device) for name, of, size in zip("bh", (batches, heads), mask.shape)}
    if isinstance(chosen, range) and chosen.step == 1:
        changes["q"] = Offset(chosen.start * block)
    else:
        changes["q"] = Chosen(_tensor(chosen, mask.device), block)
    ids = _tensor(chosen, mask.device)
    length = _length(ids, geometry)
    plane = (_tensor(batches, mask.device)[:, None] * mask.shape[1] + _tensor(heads, mask.device)).flatten()
    row_ptr, runs = take_rows(mask.row_ptr, mask.runs, (plane[:, None] * geometry.rows + ids).flatten())
    mod = None if mask.mod is None else reindexed(mask.mod, changes)
    shape = (len(batches), len(heads), length, mask.shape[3])
    return BlockMask(row_ptr, runs, shape, mask.block, mod, mask.listed)


def queries(mask: BlockMask, start: int, stop: int) -> BlockMask:
    """See :meth:`BlockMask.slice_q`."""
    length, block = mask.shape[2], mask.block[0]
    if not 0 <= start <= stop <= length:
        raise InputError(f"slice_q must stay inside the {length} queries of the mask, got start={start}, stop={stop}")
    if start % block == 0:
        return cropped(
            taken(mask, (slice(None), slice(None), slice(start // block, None))), stop - start, mask.shape[3]
        )
    if mask.listed:
        raise InputError(
            f"start must be a multiple of the block ({block}) for a mask made from a list of blocks, got {start}"
        )
    from .build import built

    mod = everything() if mask.mod is None else reindexed(mask.mod, {"q": Offset(start)})
    shape = (*mask.shape[:2], stop - start, mask.shape[3])
    return built(mod, shape, mask.block, mask.device)


def cropped(mask: BlockMask, q_len: int, kv_len: int) -> BlockMask:
    """See :meth:`BlockMask.crop`."""
    if not (0 <= q_len <= mask.shape[2] and 0 <= kv_len <= mask.shape[3]):
        raise InputError(
            f"crop must stay inside the mask of {mask.shape[2]} queries and {mask.shape[3]} keys, got q_len={q_len}, "
            f"kv_len={kv_len}: create a mask of that size"
        )
    old, shape = mask.geometry, (*mask.shape[:2], q_len, kv_len)
    new = Geometry(shape, mask.block, mask.device)
    runs = used(mask.row_ptr, mask.runs)
    row = rows_of(mask.row_ptr, runs.shape[0])
    plane, row = row // max(old.rows, 1), row % max(old.rows, 1)
    start, stop, is_full = runs[:, 0].long(), (runs[:, 1] >> 1).long().clamp(max=new.columns), (runs[:, 1] & 1).bool()
    stop = torch.where(row < new.rows, stop, 0)
    row = plane * new.rows + row
    cut = any(new != old and new % b for new, old, b in zip(shape[2:], mask.shape[2:], mask.block))
    if mask.mod is not None and cut and 0 not in shape:
        row_ptr, runs = relabelled(mask.mod, new, row, start, stop, is_full)
    else:
        found = whole_runs(new, row, start, stop, is_full)
        row_ptr, runs = assemble([found], new.planes * new.rows, new.columns, new.device)
    return BlockMask(row_ptr, runs, shape, mask.block, mask.mod, mask.listed)


def _of_plane(mask: BlockMask, name: str, index: Index, size: int) -> range | Tensor:
    """Batches or heads of the part; the one that there is where the mask is the same for all."""
    if size == 1 and (mask.mod is None or name not in mask.mod.dependencies):
        return range(1)
    return _places(index, size, {"b": "batch", "h": "head"}[name], mask.device)


def _places(index: Index, size: int, what: str, device: torch.device) -> range | Tensor:
    if isinstance(index, int):
        if not -size <= index < size:
            raise OutOfRangeError(f"{what} {index} is outside a mask of {size}")
        return range(index % size, index % size + 1)
    if isinstance(index, slice):
        return range(size)[index]
    places = torch.as_tensor(index, device=device)
    if places.dtype == torch.bool:
        places = places.nonzero().squeeze(1)
    places = places.long().reshape(-1)
    if bool(((places < -size) | (places >= size)).any()):
        raise OutOfRangeError(f"{what} {places.tolist()} is outside a mask of {size}")
    return places % max(size, 1)


def _tensor(places: range | Tensor, device: torch.device) -> Tensor:
    return torch.tensor(list(places), dtype=torch.int64, device=device) if isinstance(places, range) else places


def _change(places: range | Tensor, size: int, device: torch.device) -> Change:
    if isinstance(places, range) and places == range(size):
        return Offset(0)
    if isinstance(places, range) and len(places) == 1:
        return Always(places[0])
    if isinstance(places, range) and places.step == 1:
        return Offset(places.start)
    return Chosen(_tensor(places, device))


def _length(rows: Tensor, geometry: Geometry) -> int:
    """Queries of rows of blocks."""
    length, block = geometry.shape[2], geometry.block[0]
    short = (rows == geometry.rows - 1).nonzero().squeeze(1).tolist() if length % block else []
    if short and short != [rows.shape[0] - 1]:
        raise InputError(
            f"the last row of blocks has only {length % block} queries, so it can only be taken once, as the last"
        )
    return rows.shape[0] * block - (block - length % block if short else 0)
