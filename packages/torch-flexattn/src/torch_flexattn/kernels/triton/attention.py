"""Launches the generated kernels: chooses tiles, fills the arguments."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from ...block_mask import BlockMask
from ...fp8 import result_dtype
from ...mods import ScoreMod
from ...stats import serving
from ..dropout import threshold
from ..launch.again import Again
from ..launch.kernel import Kernel
from ..launch.launch import launch
from . import backward_source, forward_source
from .block_runs import runs_of
from .eight_bits import as_read, eight_bits, in_one_piece, knows_fp8
from .gradients import Gradients, Results
from .index_width import reaching
from .layout import last_together, ordered_like, readable
from .places import arguments
from .precision import precision
from .slanted import all_inside
from .tiles import Tiles, backward_tiles, forward_tiles


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
    tiles: Tiles | None = None,
    products: str | None = None,
    again: Again | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Attention over the runs of a block mask; arguments and results as those of ``kernels.cpu.forward.forward``.

    ``check`` is not looked at: a captured tensor that is read out of range gives 0. ``batch_invariant``: one source
    serves all lengths, so that bits of a batch entry do not depend on the others. ``tiles`` fixes the tiles,
    ``products`` how float32 is multiplied (see ``precision``); ``again`` learns how the call is made with other tensors
    like these.
    """
    serving("triton")
    (batch, heads, rows, width), width_v = q.shape, v.shape[3]
    out = ordered_like(q, width_v, result_dtype(q.dtype))
    lse = torch.empty(batch, heads, rows, dtype=torch.float32, device=q.device)
    largest = torch.empty_like(lse) if want_max else None
    if lse.numel() == 0:
        return out, lse, largest
    q, k, v = (last_together(t) for t in (q, k, v))
    given, eight = (q, k, v, sinks), eight_bits(q, k)
    if eight and not (in_one_piece(width) and in_one_piece(width_v)):
        wide = torch.float16 if eight == "all" else q.dtype  # holds every e4m3
        q, k, v, eight = q.to(wide), k.to(wide), v.to(wide), ""
    seed = readable(seed, q)
    row_ptr, runs, block, strides = runs_of(mask, rows, k.shape[2], q.device)
    tiles = tiles or forward_tiles(max(width, width_v), q.element_size(), block, widening=bool(eight))
    score, mod = reaching(score), reaching(None if mask is None else mask.mod)
    kernel = forward_source.Forward(
        width=width,
        value_width=width_v,
        score=None if score is None else score.program,
        mask=None if mod is None else mod.program,
        lens=kv_lens is not None,
        offsets=isinstance(q_offset, Tensor),
        sinks=sinks is not None,
        dropout=dropout_p > 0,
        stored_seed=isinstance(seed, Tensor),
        maxima=want_max,
        eight=eight,
        native=eight == "all" and knows_fp8(q.device),
        descales=descales is not None,
    )
    lens = kv_lens if kv_lens is None else kv_lens.to(torch.int32)
    offsets = q_offset.to(torch.int32) if isinstance(q_offset, Tensor) else None
    filled = [
        as_read(q), as_read(k), as_read(v), out, lse, largest, row_ptr, runs, lens, offsets, sinks, descales,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
        heads, heads // k.shape[1], k.shape[0], rows, k.shape[2], *strides,
        *((0, 0) if descales is None else descales.stride()[:2]), scale,
        0 if offsets is not None else q_offset, seed, threshold(dropout_p), 1 / (1 - dropout_p),
        *arguments((score, mod)),
    ]  # fmt: skip
    launched = launch(
        _forward(kernel), (-(-rows // tiles.rows), batch * heads), filled,
        BLOCK_M=tiles.rows, BLOCK_N=tiles.keys, MASK_M=block[0], MASK_N=block[1],
        WHOLE_M=not batch_invariant and rows % tiles.rows == 0,
        WHOLE_N=not batch_invariant and kv_lens is None and k.shape[2] % tiles.keys == 0,
        PRECISION=precision(q, products), STAGES=tiles.stages, warps=tiles.warps,
        INSIDE=not batch_invariant and all_inside((score, mod), q, k, q_offset, tiles.rows, tiles.keys),
    )  # fmt: skip
    if again is not None:
        again.learn(given, (out, lse, largest), [(launched, filled)])  # nothing, if one of them was widened
    return out, lse, largest


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
    tiles: Tiles | None = None,
    products: str | None = None,
) -> Results:
    """Gradients of :func:`forward`; arguments and results as those of ``kernels.cpu.backward.backward``.

    Sums of ``grad_q`` and of captured tensors' gradients are made by atomic additions in float32.
    """
    serving("triton")
    (batch, heads, rows, width), (_, kv_heads, keys, _), width_v = q.shape, k.shape, v.shape[3]
    score, mod = reaching(score), reaching(None if mask is None else mask.mod)
    sums = Gradients(grad_out, grad_lse, q, k, v, out, score, needed)
    if batch * kv_heads * keys:
        q, k, v, grad_out = (last_together(t) for t in (q, k, v, grad_out))
        seed = readable(seed, q)
        row_ptr, runs, block, strides = runs_of(mask, rows, keys, q.device, columns=True)
        tiles = tiles or backward_tiles(max(width, width_v), q.element_size(), block)
        kernel = backward_source.Backward(
            width=width,
            value_width=width_v,
            tile=(tiles.keys, tiles.rows),
            score=sums.derivative,
            mask=None if mod is None else mod.program,
            lens=kv_lens is not None,
            offsets=isinstance(q_offset, Tensor),
            dropout=dropout_p > 0,
            stored_seed=isinstance(seed, Tensor),
        )
        offsets = q_offset.to(torch.int32) if isinstance(q_offset, Tensor) else None
        launch(
            _backward(kernel), (-(-keys // tiles.keys), batch * kv_heads),
            [
                q, k, v, grad_out, lse, sums.products, sums.q, sums.k, sums.v, row_ptr, runs,
                None if kv_lens is None else kv_lens.to(torch.int32), offsets,
                *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *grad_out.stride()[:3],
                heads, heads // kv_heads, k.shape[0], rows, keys, *strides, scale,
                0 if offsets is not None else q_offset, seed, threshold(dropout_p), 1 / (1 - dropout_p),
                *arguments((score, mod)), *sums.places,
            ],
            BLOCK_M=tiles.rows, BLOCK_N=tiles.keys, MASK_M=block[0], MASK_N=block[1],
            WHOLE_M=rows % tiles.rows == 0, WHOLE_N=keys % tiles.keys == 0,
            PRECISION=precision(q, products), STAGES=tiles.stages,
            INSIDE=all_inside((score, mod), q, k, q_offset, tiles.rows, tiles.keys), warps=tiles.warps,
        )  # fmt: skip
    return sums.results(q, k, v, lse, score, sinks)


@functools.lru_cache(maxsize=1024)
def _forward(kernel: forward_source.Forward) -> Kernel:
    return Kernel("forward", forward_source.source(kernel))


@functools.lru_cache(maxsize=1024)
def _backward(kernel: backward_source.Backward) -> Kernel:
    return Kernel("backward", backward_source.source(kernel))
