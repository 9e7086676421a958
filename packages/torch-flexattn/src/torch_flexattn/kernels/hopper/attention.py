"""Launches the kernels of Hopper: which calls they can serve, with which tiles."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from ...block_mask import BlockMask
from ...fp8 import FP8, result_dtype
from ...mods import ScoreMod
from ...stats import serving
from ..launch.again import Again
from ..launch.kernel import Kernel
from ..launch.launch import launch
from ..launch.signature import Tile
from ..triton.block_runs import BLOCK, runs_of
from ..triton.chunks import chunks
from ..triton.factors import bound, is_positive
from ..triton.gradients import Gradients, Results
from ..triton.index_width import reaching
from ..triton.layout import ordered_like
from ..triton.places import arguments
from ..triton.slanted import all_inside
from . import backward_source, forward_source, wide_backward_source
from .backward_tile import Backward
from .descriptors import ALIGNED, describable, strides_of
from .sections import section

WIDEST = 256
NARROW = 128
"""Features up to which a program owns 128 keys in the backward pass."""
REGISTERS_OF_THREE = 208
"""Of a thread that multiplies, where a third group of warps makes gradients of queries: two such groups, the third and
the one that fetches share 512 a thread."""
NEAR = 51.0
"""Bound of scores up to which their exponentials are summed as they are, without a running maximum: 2⁷⁴ times a million
keys and values of 2³⁰ stay finite in float32 and bfloat16, and 2⁻⁷⁴ loses nothing."""
WIDENED_ROWS = 512
"""Queries that share a key head from which on 8-bit tensors are copied to 16 bits for these kernels. Calculated, not
measured: for a thousand numbers the copy takes 1 ns (5 bytes each), so many rows 1.7 ns here, twice that elsewhere."""


@dataclass(frozen=True)
class Tiles:
    """How a kernel cuts its work.

    Attributes:
        keys: of a tile.
        stages: of the ring that tiles are fetched into.
        registers: of a thread that multiplies.
    """

    keys: int
    stages: int
    registers: int = 240


@dataclass(frozen=True)
class BackwardTiles:
    """How the backward kernel cuts its work.

    Attributes:
        rows: queries of a tile: 64 or 128.
        columns: keys of a program.
        stages: of the rings that queries, and output gradients, are fetched into.
        registers: of a thread that multiplies.
    """

    rows: int
    columns: int
    stages: tuple[int, int]
    registers: int = 240


def forward_tiles(width: int, eight: bool = False) -> Tiles:
    """What fits into shared memory beside the queries; ``eight``: those and the keys are of 8 bits."""
    if eight:
        return Tiles(128 if width <= 128 else 64, 3)
    if width <= 64:
        return Tiles(128, 3)
    return Tiles(128, 2) if width <= 128 else Tiles(64, 2)


def serves_forward(
    q: Tensor, k: Tensor, v: Tensor, mask: BlockMask | None, kv_lens: Tensor | None, dropout_p: float
) -> bool:
    """Whether :func:`forward` can serve a call: 16 bits, or 8; whole tiles of a block; tensors that the copy engine
    reads, as they are or widened."""
    program = forward_source.GROUPS * forward_source.ROWS
    block = (program, program) if mask is None else mask.block
    widest = max(q.shape[3], v.shape[3])
    return (
        (is_widened_well(q, k, v) if k.dtype == FP8 else q.element_size() == 2 and describable(q, k, v))
        and widest <= WIDEST
        and kv_lens is None
        and not dropout_p
        and q.shape[2] > forward_source.ROWS
        and block[0] % program == 0
        and block[1] % forward_tiles(widest).keys == 0
    )


def is_widened_well(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether a call with keys and values of 8 bits is worth widening, and then readable."""
    in_16_bits = [v] if q.dtype == FP8 else [k, v]
    as_they_are = [q, k] if q.dtype == FP8 else [q]
    return (
        q.element_size() <= 2
        and (q.dtype != FP8 or all(chunk.size >= forward_source.DEPTH[True] for chunk in chunks(q.shape[3])))
        and all(t.numel() > 0 and t.shape[3] * 2 % ALIGNED == 0 for t in in_16_bits)
        and describable(*as_they_are)
        and q.shape[2] * (q.shape[1] // k.shape[1]) >= WIDENED_ROWS
    )


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: BlockMask | None,
    score: ScoreMod | None,
    scale: float,
    q_offset: Tensor | int = 0,
    sinks: Tensor | None = None,
    want_max: bool = True,
    descales: Tensor | None = None,
    batch_invariant: bool = False,
    tiles: Tiles | None = None,
    again: Again | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """As ``kernels.triton.attention.forward``, for calls that :func:`serves_forward` allows.

    Of 8-bit queries, keys and values, the values are copied to float16 first; keys and values beside queries of 16
    bits, to their type. Either holds every e4m3 exactly.
    """
    serving("hopper")
    (batch, heads, rows, width), width_v = q.shape, v.shape[3]
    out = ordered_like(q, width_v, result_dtype(q.dtype))
    eight, given = q.dtype == FP8, (q, k, v, sinks)
    if v.dtype == FP8:
        v = v.to(torch.float16 if eight else q.dtype, memory_format=torch.contiguous_format)
    if k.dtype == FP8 and not eight:
        k = k.to(q.dtype, memory_format=torch.contiguous_format)
    lse = torch.empty(batch, heads, rows, dtype=torch.float32, device=q.device)
    largest = torch.empty_like(lse) if want_max else None
    row_ptr, runs, block, strides = runs_of(mask, rows, k.shape[2], q.device)
    tiles = tiles or forward_tiles(max(width, width_v), eight)
    score, mod = reaching(score), reaching(None if mask is None else mask.mod)
    scalars = () if score is None else score.scalars
    kernel = forward_source.Forward(
        width=width,
        value_width=width_v,
        score=None if score is None else score.program,
        mask=None if mod is None else mod.program,
        offsets=isinstance(q_offset, Tensor),
        sinks=sinks is not None,
        maxima=want_max,
        eight=eight,
        descales=descales is not None,
        bounded=v.dtype == torch.bfloat16 and bound(None if score is None else score.program, scalars) <= NEAR,
    )
    program = forward_source.GROUPS * forward_source.ROWS
    read = k.shape[2] * (width * k.element_size() + width_v * v.element_size())
    blocks = -(-rows // program)
    together = section(read, blocks, batch * heads, heads // k.shape[1], q.device)
    filled = [
        *described(q, forward_source.ROWS), *described(k, tiles.keys), *described(v, tiles.keys), out, lse,
        *(() if largest is None else (largest,)), *(() if sinks is None else (sinks,)),
        *(() if descales is None else (descales, *descales.stride()[:2])), row_ptr, runs,
        *out.stride()[:3], heads, heads // k.shape[1], k.shape[0], rows, k.shape[2], together, *strides, scale,
        q_offset.to(torch.int32) if isinstance(q_offset, Tensor) else q_offset, *arguments((score, mod)),
    ]  # fmt: skip
    launched = launch(
        _forward(kernel), (blocks * batch * heads, 1), filled,
        BLOCK_N=tiles.keys, MASK_M=block[0], MASK_N=block[1], STAGES=tiles.stages,
        WHOLE_M=not batch_invariant and rows % program == 0,
        WHOLE_N=not batch_invariant and k.shape[2] % tiles.keys == 0,
        INSIDE=not batch_invariant and all_inside((score, mod), q, k, q_offset, program, tiles.keys),
        POSITIVE=descales is None and is_positive(kernel.score, scalars, scale),
        REGISTERS=tiles.registers,
    )  # fmt: skip
    if again is not None:
        again.learn(given, (out, lse, largest), [(launched, filled)])  # nothing, if one of them was widened
    return out, lse, largest


def backward_tiles(width: int, scattering: bool = False) -> BackwardTiles:
    """Tiles whose sums fit into registers and whose rings fit into shared memory, with sums of diagonals or without."""
    if width <= NARROW:
        return BackwardTiles(64, 128, (2, 2))
    if width <= 192:
        return BackwardTiles(64, 64, (2, 2), REGISTERS_OF_THREE)
    return BackwardTiles(64, 64, (1, 1) if scattering else (2, 1), REGISTERS_OF_THREE)


def serves_backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: BlockMask | None, kv_lens: Tensor | None, dropout_p: float
) -> bool:
    """Whether :func:`backward` can serve a call."""
    block = BLOCK if mask is None else mask.block
    widest = max(q.shape[3], v.shape[3])
    tiles = backward_tiles(widest)
    return (
        q.element_size() == 2
        and widest <= WIDEST
        and kv_lens is None
        and not dropout_p
        and q.shape[2] > 0
        and block[0] % tiles.rows == 0
        and block[1] % tiles.columns == 0
        and describable(q, k, v, grad_out)
    )


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
    sinks: Tensor | None = None,
    needed: Sequence[bool] | None = None,
    tiles: BackwardTiles | None = None,
) -> Results:
    """As ``kernels.triton.attention.backward``, for calls that :func:`serves_backward` allows."""
    serving("hopper")
    (batch, heads, rows, width), (_, kv_heads, keys, _), width_v = q.shape, k.shape, v.shape[3]
    score, mod = reaching(score), reaching(None if mask is None else mask.mod)
    sums = Gradients(grad_out, grad_lse, q, k, v, out, score, needed)
    col_ptr, runs, block, strides = runs_of(mask, rows, keys, q.device, columns=True)
    scattering = sums.derivative is not None and bool(sums.derivative.scatters)
    tiles = tiles or backward_tiles(max(width, width_v), scattering)
    columns = tiles.columns
    kernel = Backward(
        width=width,
        value_width=width_v,
        rows=tiles.rows,
        score=sums.derivative,
        mask=None if mod is None else mod.program,
        offsets=isinstance(q_offset, Tensor),
    )
    made = _maker(columns)
    read = rows * (heads // kv_heads) * (2 * width + 2 * width_v + 4 * width)  # queries, output gradients, sums
    blocks = -(-keys // columns)
    together = section(read, blocks, batch * kv_heads, 1, q.device)
    launch(
        _backward(kernel, columns), (blocks * batch * kv_heads, 1),
        [
            *described(q, tiles.rows), *described(grad_out, tiles.rows), *described(k, columns), *described(v, columns),
            *(_tile_of(sums.q, made.DQ_ROWS, size) for size in made.dq_sizes(kernel)),
            lse, sums.products, sums.k, sums.v, col_ptr, runs, heads, heads // kv_heads, k.shape[0], rows, keys,
            together, *strides, scale, q_offset.to(torch.int32) if isinstance(q_offset, Tensor) else q_offset,
            *arguments((score, mod)), *sums.places,
        ],
        MASK_M=block[0], MASK_N=block[1], Q_STAGES=tiles.stages[0],
        DO_STAGES=tiles.stages[1], WHOLE_M=rows % tiles.rows == 0, WHOLE_N=keys % columns == 0,
        INSIDE=all_inside((score, mod), q, k, q_offset, tiles.rows, columns), REGISTERS=tiles.registers,
    )  # fmt: skip
    return sums.results(q, k, v, lse, score, sinks, factor=scale)


@functools.lru_cache(maxsize=1024)
def _forward(kernel: forward_source.Forward) -> Kernel:
    return Kernel("forward", forward_source.source(kernel), language="gluon")


@functools.lru_cache(maxsize=1024)
def _backward(kernel: Backward, columns: int) -> Kernel:
    return Kernel("backward", _maker(columns).source(kernel), language="gluon")


def _maker(columns: int) -> ModuleType:
    return backward_source if columns == backward_source.COLUMNS else wide_backward_source


def described(t: Tensor, rows: int) -> list[Tile]:
    """Tiles of ``rows`` by each chunk of features, as they lie in shared memory."""
    return [_tile_of(t, rows, chunk.size) for chunk in chunks(t.shape[3])]


def _tile_of(t: Tensor, rows: int, width: int) -> Tile:
    return Tile(t, strides_of(t), (1, 1, rows, width))
