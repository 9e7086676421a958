"""Launches the decode kernels: few queries, many keys, side by side or in pages."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...block_mask import BlockMask
from ...fp8 import result_dtype
from ...mods import MaskMod, ScoreMod
from ...stats import serving
from ..launch.again import Again
from ..launch.kernel import Kernel
from ..launch.launch import launch
from . import decode_source
from .chunks import next_power_of_2
from .decode_source import Decode
from .eight_bits import as_read, eight_bits
from .index_width import reaching
from .layout import in_a_row, last_together, ordered_like
from .places import arguments
from .precision import precision
from .row_blocks import RowBlocks, row_blocks
from .tiles import Tiles, shared_bytes

LEAST_ROWS = 16
"""Rows of a tile, at least: what a tensor core multiplies at once."""
MOST_QUERIES = 16
"""More are served better by the kernel of blocks of rows."""
PROGRAMS = 2
"""That run at a time on one multiprocessor; more shares were slower on an H200."""
LARGE = 160 * 1024
"""Bytes of shared memory beyond which a further tile is fetched ahead."""
SPLIT = 2048
"""Keys of a share where it may not depend on the batch."""
STEP = 32
"""Shares that are merged at a time."""
LEAST_KEYS = 256
"""Of a share: fewer are not worth the sums that it leaves."""


def serves(q: Tensor, mask: BlockMask | MaskMod | None, dropout_p: float = 0.0) -> bool:
    """Whether these kernels are the ones for a call: few queries, in one row of blocks of the mask."""
    few = 0 < q.shape[2] <= MOST_QUERIES and not dropout_p
    return few and (not isinstance(mask, BlockMask) or q.shape[2] <= mask.block[0])


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: BlockMask | RowBlocks | MaskMod | None,
    score: ScoreMod | None,
    scale: float,
    q_offset: Tensor | int = 0,
    kv_lens: Tensor | None = None,
    sinks: Tensor | None = None,
    want_max: bool = True,
    descales: Tensor | None = None,
    batch_invariant: bool = False,
    tiles: Tiles | None = None,
    shares: int | None = None,
    products: str | None = None,
    again: Again | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Attention of few queries; arguments and results as those of ``kernels.cpu.forward.forward``.

    Args:
        mask: as there; the blocks of a :class:`MaskMod` are found on the device at each call, unless they are given.
        batch_invariant: bits of a batch entry do not depend on the others: shares are of ``SPLIT`` keys.
        tiles: fixes the tiles.
        shares: fixes among how many programs the keys are shared out.
        products: how float32 is multiplied (see ``precision``).
        again: learns how the call is made with other tensors like these.
    """
    k, v = last_together(k), last_together(v)
    kernel = Decode(q.shape[3], v.shape[3], offset="each" if isinstance(q_offset, Tensor) else "one")
    sizes = k.shape[1], k.shape[2], k.shape[2]
    return _launch(
        kernel, q, k, v, sizes, mask, score, scale, q_offset, kv_lens, None, None, sinks, want_max, descales,
        batch_invariant, tiles, shares, products, again,
    )  # fmt: skip


def paged(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    table: Tensor,
    kv_lens: Tensor,
    *,
    mask: RowBlocks | MaskMod | None,
    score: ScoreMod | None,
    scale: float,
    slots: Tensor | None = None,
    sinks: Tensor | None = None,
    want_max: bool = True,
    descales: Tensor | None = None,
    most_keys: int | None = None,
    batch_invariant: bool = False,
    tiles: Tiles | None = None,
    shares: int | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Attention of few queries over keys in pages; the last query of a sequence has the number of its last key.

    Args:
        q: ``[B, Hq, L, E]``.
        k_pages: ``[pages, page size, Hkv, E]``, of the type of ``q`` or of 8 bits; a page holds a power of two of keys.
        v_pages: ``[pages, page size, Hkv, Ev]``.
        table: int32 ``[B, n]``, or a row for each slot: the pages of a sequence, in order.
        kv_lens: int32 ``[B]``, or of each slot: how many keys a sequence has; those behind are never read.
        mask: what is visible; mods see positions in the sequence, not in pages.
        score: as of :func:`decode`, as are the others.
        slots: int32 ``[B]``: rows of ``table`` and ``kv_lens`` that are those of the batch.
        descales: of 8-bit pages: float32 ``[2, B, Hq]``, of any stride between batch entries, also 0.
        most_keys: no sequence has more; default: what the table has room for.
        batch_invariant: as of :func:`decode`.
    """
    k_pages, v_pages = last_together(k_pages), last_together(v_pages)
    kv_lens, slots, sinks = (None if t is None else in_a_row(t) for t in (kv_lens, slots, sinks))
    table = table if table.stride(1) == 1 else table.contiguous()
    kernel = Decode(q.shape[3], v_pages.shape[3], paged="whole", slots=slots is not None, offset="last")
    room = table.shape[1] * k_pages.shape[1]
    sizes = k_pages.shape[2], room, room if most_keys is None else min(most_keys, room)
    return _launch(
        kernel, q, k_pages.transpose(1, 2), v_pages.transpose(1, 2), sizes, mask, score, scale, 0, kv_lens, table,
        slots, sinks, want_max, descales, batch_invariant, tiles, shares,
    )  # fmt: skip


def _launch(
    kernel: Decode,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sizes: tuple[int, int, int],
    mask: BlockMask | RowBlocks | MaskMod | None,
    score: ScoreMod | None,
    scale: float,
    q_offset: Tensor | int,
    kv_lens: Tensor | None,
    table: Tensor | None,
    slots: Tensor | None,
    sinks: Tensor | None,
    want_max: bool,
    descales: Tensor | None,
    fixed: bool,
    tiles: Tiles | None,
    shares: int | None,
    products: str | None = None,
    again: Again | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``sizes``: heads of keys, keys that there is room for, and how many there are at most.

    ``fixed``: neither the source nor how a sequence is cut depends on what else there is.
    """
    serving("decode")
    (batch, heads, queries, width), (kv_heads, keys, most) = q.shape, sizes
    out = ordered_like(q, kernel.value_width, result_dtype(q.dtype))
    lse = torch.empty(batch, heads, queries, dtype=torch.float32, device=q.device)
    largest = torch.empty_like(lse) if want_max else None
    if lse.numel() == 0:
        return out, lse, largest
    q = last_together(q)
    given = mask
    if isinstance(mask, MaskMod):
        mask = row_blocks(
            mask, (batch, heads, queries, most), q.device, offset=kernel.offset, q_offset=q_offset, kv_lens=kv_lens,
            slots=slots,
        )  # fmt: skip
    begins, ends, runs, block, strides = _runs(mask)
    group = heads // kv_heads
    unit = 1 if strides[1] else group
    tiles = tiles or decode_tiles(
        max(width, kernel.value_width), q.element_size(), unit * queries, shared_bytes(q.device)
    )
    tiles = replace(tiles, keys=min(tiles.keys, block & -block))
    row_tiles, units = -(-unit * queries // tiles.rows), heads // unit
    programs = batch * units * row_tiles
    if fixed:
        shares = max(1, -(-most // SPLIT))
    shares = shares or shares_of(programs, -(-most // LEAST_KEYS), q.device)
    score, mod = reaching(score), reaching(None if mask is None else mask.mod)
    page = k.shape[2] if kernel.paged else 1
    kernel = replace(
        kernel,
        score=None if score is None else score.program,
        mask=None if mod is None else mod.program,
        blocks=mask is not None,
        paged="keys" if kernel.paged and page % tiles.keys else kernel.paged,
        lens=kv_lens is not None,
        sinks=sinks is not None,
        maxima=want_max,
        shared=fixed or shares > 1,
        eight=eight_bits(q, k),
        descales=descales is not None,
        fixed=SPLIT if fixed else 0,
    )
    of_heads = (0, 0) if descales is None else descales.stride()[:2]
    attend, combine = _kernels(kernel)
    lines = batch * heads * queries
    sums = None
    if kernel.shared:
        sums = torch.empty(lines * shares * kernel.record, dtype=torch.float32, device=q.device)
    filled = [
        as_read(q), as_read(k), as_read(v), out, lse, largest, sums, begins, ends, runs, table, slots, kv_lens,
        q_offset if kernel.offset == "each" else None, sinks, descales,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3], 0 if table is None else table.stride(0),
        units, unit, group, k.shape[0], queries, keys, *strides, row_tiles, *of_heads, scale,
        q_offset if kernel.offset == "one" else 0, *arguments((score, mod)),
    ]  # fmt: skip
    launched = launch(
        attend, (programs, shares), filled,
        BLOCK_M=tiles.rows, BLOCK_N=tiles.keys, MASK_N=block, PAGE=page,
        WHOLE_N=kv_lens is None and keys % tiles.keys == 0 and not fixed, PRECISION=precision(q, products),
        STAGES=tiles.stages, warps=tiles.warps,
    )  # fmt: skip
    launches = [(launched, filled)]
    if kernel.shared:
        parts = STEP if fixed else next_power_of_2(shares)
        combined = [
            out, lse, largest, sums, sinks, descales, *out.stride()[:3], heads, queries, shares, *of_heads,
        ]  # fmt: skip
        launches.append((launch(combine, (lines, 1), combined, PARTS=parts, STEP=min(parts, STEP)), combined))
    if again is not None and not isinstance(given, MaskMod):
        again.learn((q, k, v, sinks), (out, lse, largest), launches, () if sums is None else (sums,))
    return out, lse, largest


def _runs(mask: BlockMask | RowBlocks | None) -> tuple[Any, Any, Any, int, tuple[int, int]]:
    """First and last runs of planes, the runs, keys of a block, and planes between batches and between heads."""
    if mask is None:
        return None, None, None, 1 << 30, (0, 0)
    if isinstance(mask, RowBlocks):
        batches, heads = mask.batches, mask.heads
        begins, ends, block = mask.begins, mask.ends, mask.block
    else:
        batches, heads = mask.shape[:2]
        begins, ends, block = mask.row_ptr, mask.row_ptr[1:], mask.block[1]
    return begins, ends, mask.runs, block, (heads if batches > 1 else 0, 1 if heads > 1 else 0)


@functools.lru_cache(maxsize=256)
def decode_tiles(width: int, element_bytes: int, rows: int, room: int) -> Tiles:
    """Tiles of the decode kernel: what was fastest on an H200, where it fits into ``room`` bytes of shared memory."""
    if element_bytes > 2:
        most, keys, stages = (32, 32, 2) if width <= 128 else (16, 16, 2)
    elif width <= 128:
        most, keys, stages = 64, 64, 4 if room > LARGE else 3
    else:
        most, keys, stages = (32 if width <= 256 else 16), 32, 2
    return Tiles(min(most, max(LEAST_ROWS, next_power_of_2(rows))), keys, 4, stages)


@functools.lru_cache(maxsize=1024)
def shares_of(programs: int, pieces: int, device: torch.device) -> int:
    """Among how many programs to share the keys out, so that every multiprocessor has something to do to the end.

    Of the numbers of shares that leave little idle (within a twentieth of the best), the smallest.

    Args:
        programs: of one share.
        pieces: shares of the longest sequence, at most.
        device: whose multiprocessors are counted.
    """
    if device.type != "cuda":
        return 1
    room = torch.cuda.get_device_properties(device).multi_processor_count * PROGRAMS
    most = max(1, min(pieces, 4 * room // programs))

    def busy(shares: int) -> float:
        return programs * shares / (-(-programs * shares // room) * room)

    best = max(map(busy, range(1, most + 1)))
    return next(n for n in range(1, most + 1) if busy(n) >= 0.95 * best)


@functools.lru_cache(maxsize=1024)
def _kernels(kernel: Decode) -> tuple[Kernel, Kernel]:
    """Its source, printed once: what attends, and what combines the shares."""
    text = decode_source.source(kernel)
    return Kernel("decode", text), Kernel("combine", text)
