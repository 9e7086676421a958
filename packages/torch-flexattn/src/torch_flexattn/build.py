"""From a mask to its blocks: :func:`create_block_mask`, and the dense :func:`create_mask` for looking and testing."""

from __future__ import annotations

import math
import operator
from typing import Literal

import torch
from torch import Tensor

from .analysis.exact_tiles import first_bad_read
from .analysis.geometry import Blocks, Geometry
from .analysis.quadtree import classify, classify_exactly
from .analysis.undecided import refuse_undecided
from .block_mask import BlockMask
from .default_device import made_on
from .errors import InputError, KindError, OutOfRangeError
from .masks.lengths import with_lengths
from .mods import MaskLike, MaskMod, mask_mod
from .reindex import everything
from .runs import by_rows, columns_of, joined

Method = Literal["auto", "exact", "analytic"]
METHODS = ("auto", "exact", "analytic")
EVERYTHING = everything().program
LARGEST_BLOCK = 1 << 16
"""Queries or keys of a block, at most: what a block is looked at with has as many entries."""
SMALL = 1 << 20
"""Positions up to which looking at every one is the quickest."""


def create_block_mask(
    mask_mod: MaskLike,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: torch.device | str | None = None,
    BLOCK_SIZE: int | tuple[int, int] = 128,
    *,
    method: Method = "auto",
    compute_plan: bool = False,
    check: bool | None = None,
) -> BlockMask:
    """Which blocks of a mask are visible in full, in part or not at all.

    Nothing of size ``Q_LEN × KV_LEN`` is allocated. Blocks at the lower and right edge count by their positions inside
    the mask only.

    Args:
        mask_mod: ``(b, h, q_idx, kv_idx) -> bool``, True where key ``kv_idx`` is visible to query ``q_idx``.
        B: batches; ``None`` is 1. A mask that does not depend on the batch is built for one and serves all.
        H: query heads, likewise.
        Q_LEN: queries.
        KV_LEN: keys.
        device: where the result lies; by default where the captured tensors are, else PyTorch's default device.
        BLOCK_SIZE: queries and keys of a block (one number: both), multiples of 16.
        method: ``"exact"`` looks at every position, ``"analytic"`` only where ranges of values leave it open;
            ``"auto"`` takes the first for small masks. The result is the same.
        compute_plan: find at once what a backward pass reads, the blocks by columns; else its first one does.
        check: raise where a visible position reads a captured tensor out of range (it counts as 0 otherwise), or a
            hidden one is hidden by such a read; by default on a CPU only, because it waits for the device, and on a
            GPU where the sizes alone tell that a tensor is too short.

    Raises:
        InputError: a negative length, a block that is no multiple of 16, a captured tensor on another device, or one
            too short for these lengths (see ``check``).
        KindError: no mask; a size that is no integer.
        OutOfRangeError: see ``check``.

    Example:
        >>> mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 2048, 2048)
        >>> mask.nnz_blocks()
        (16, 120)

    Reference:
        FlexAttention (MLSys 2025), section 3.2, for what a block mask is.
    """
    if torch.compiler.is_dynamo_compiling():
        from .outside_region import create_block_mask as built_outside

        return built_outside(
            mask_mod, B, H, Q_LEN, KV_LEN, device, BLOCK_SIZE, method=method, check=check
        )  # one break of the graph
    traced = _traced(mask_mod)
    if method not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    block = block_size(BLOCK_SIZE)
    sizes = {"B": 1 if B is None else B, "H": 1 if H is None else H, "Q_LEN": Q_LEN, "KV_LEN": KV_LEN}
    for name, size in sizes.items():
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            raise KindError(f"{name} must be an integer, got {size!r}")
        if not 0 <= size <= 2**30:
            raise InputError(f"{name} must be from 0 to 2**30, got {size}")
    mod = with_lengths(traced, Q_LEN, KV_LEN)
    with torch.inference_mode(False), torch.no_grad():  # training may use what inference built
        where = _device(device, mod)
        mod = _placed(mod, where)
        shape = _shape(mod, *map(operator.index, sizes.values()))
        if check is None and where.type != "cpu":
            refuse_undecided(mod, Geometry(shape, block, where), suspected=True)
        check = where.type == "cpu" if check is None else check
        mask = built(mod, shape, block, where, method, check)
        if compute_plan:
            mask.transpose_runs()
        return mask


def create_mask(
    mask_mod: MaskLike,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: torch.device | str | None = None,
) -> Tensor:
    """The whole mask, bool ``[B, H, Q_LEN, KV_LEN]``, True where visible: for small ones, to look at and to test with.

    Args: as :func:`create_block_mask`.

    Raises:
        KindError: no mask.

    Example:
        >>> create_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 2, 3).int()
        tensor([[[[1, 0, 0],
                  [1, 1, 0]]]], dtype=torch.int32)
    """
    mod = with_lengths(_traced(mask_mod), Q_LEN, KV_LEN)
    where = _device(device, mod)
    indices = []
    for place, size in enumerate((1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN)):
        index = torch.arange(size, dtype=torch.int32, device=where)
        indices.append(index.reshape([-1 if place == k else 1 for k in range(4)]))
    return _placed(mod, where)(*indices)


def block_size(given: int | tuple[int, int]) -> tuple[int, int]:
    """Both sizes of a block.

    Raises:
        InputError: no positive multiples of 16, or more than :data:`LARGEST_BLOCK`.
    """
    sizes = (given, given) if isinstance(given, int) else given
    whole = isinstance(sizes, tuple | list) and len(sizes) == len(("queries", "keys"))
    if not whole or any(not isinstance(s, int) or s % 16 or not 16 <= s <= LARGEST_BLOCK for s in sizes):
        raise InputError(f"BLOCK_SIZE must be multiples of 16, got {given!r}: one or two, up to {LARGEST_BLOCK}")
    return sizes[0], sizes[1]


def built(
    mod: MaskMod,
    shape: tuple[int, int, int, int],
    block: tuple[int, int],
    device: torch.device,
    method: Method = "auto",
    check: bool = False,
) -> BlockMask:
    """The blocks of a mask whose arguments were looked at; see :func:`create_block_mask`.

    Args:
        mod: the mask, with what it captures on ``device``.
        shape: batches and heads (1 unless the mask depends on them), queries, keys.
        block: queries and keys of a block.
        device: where the result lies.
        method: how blocks are classified.
        check: refuse visible positions that read a captured tensor out of range, and those that such a read hides.
    """
    with made_on(device):
        return _built(mod, Geometry(shape, block, device), method, check)


def _built(mod: MaskMod, geometry: Geometry, method: Method, check: bool) -> BlockMask:
    shape = geometry.shape
    rows, columns = geometry.planes * geometry.rows, geometry.columns
    outside = check and bool(mod.captures)
    if 0 in shape:
        found, outside = joined([], geometry.device), False
    elif method == "exact" or (method == "auto" and math.prod(shape) <= SMALL):
        found = classify_exactly(mod, geometry)
    else:
        found, outside = classify(mod, geometry, check=check)
    row_ptr, runs = by_rows(found, rows, columns)
    mask = BlockMask(row_ptr, runs, shape, geometry.block, None if mod.program == EVERYTHING else mod)
    if outside:
        refuse_bad_reads(mask)
    if check and mod.captures:
        refuse_undecided(mod, geometry)
    return mask


def refuse_bad_reads(mask: BlockMask) -> None:
    """Raise where a mask reads a captured tensor out of range at a visible position.

    Raises:
        OutOfRangeError: it does.
    """
    assert mask.mod is not None
    geometry = mask.geometry
    row, column = columns_of(mask.row_ptr, mask.runs)[:2]
    found = first_bad_read(mask.mod, geometry, Blocks.at(row // geometry.rows, row % geometry.rows, column))
    if found is not None:
        plane, query, key = found
        batch, head = divmod(plane, mask.shape[1])
        shapes = ", ".join(str(tuple(c.shape)) for c in mask.mod.captures)
        raise OutOfRangeError(
            f"mask_mod reads a captured tensor (of shape {shapes}) out of range at the visible position b={batch}, "
            f"h={head}, q_idx={query}, kv_idx={key}"
        ).at((batch, head, query, key))


def _traced(given: MaskLike) -> MaskMod:
    return mask_mod(given)


def _shape(mod: MaskMod, batches: int, heads: int, queries: int, keys: int) -> tuple[int, int, int, int]:
    """One batch or head is enough where the mask does not depend on it."""
    needs = mod.dependencies
    return batches if "b" in needs else 1, heads if "h" in needs else 1, queries, keys


def _device(given: torch.device | str | None, mod: MaskMod) -> torch.device:
    if given is None:
        found = [c.device for c in mod.captures if c.dim()]
        return found[0] if found else torch.get_default_device()
    device = torch.device(given)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def _placed(mod: MaskMod, device: torch.device) -> MaskMod:
    """With captured numbers (0-d tensors) on the device; tensors must be there."""
    for number, capture in enumerate(mod.captures):
        if capture.dim() and capture.device != device:
            captured = f"a tensor (number {number}, of shape {tuple(capture.shape)}) on {capture.device}"
            raise InputError(f"mask_mod captures {captured}, but the mask is on {device}: move it there")
    if all(c.device == device for c in mod.captures):
        return mod
    return MaskMod(mod.program, tuple(c.to(device) for c in mod.captures), mod.scalars)
