"""Launches the backward kernels so that two runs give equal bits: nothing is added in an order that may change.

The kernel of keys adds neither to gradients of queries, which a kernel of their own sums, nor floats of several
programs to one place of a captured tensor's gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...block_mask import BlockMask
from ...mods import ScoreMod
from ...stats import serving
from ..dropout import threshold
from ..launch.kernel import Kernel
from ..launch.launch import launch
from . import backward_source, query_source
from .block_runs import runs_of
from .gradients import Gradients, Results, derivative_of
from .index_width import reaching
from .layout import last_together, readable
from .ordered_sums import OrderedSums
from .places import arguments
from .precision import precision
from .score_gradient import Gradient
from .slanted import all_inside
from .tiles import Tiles, deterministic_tiles


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
    needed: Sequence[bool] | None = None,
    tiles: Tiles | None = None,
    products: str | None = None,
) -> Results:
    """As ``kernels.triton.attention.backward``, but that equal arguments give equal bits; ``tiles`` are of both."""
    serving("triton")
    (batch, heads, rows, width), (_, kv_heads, keys, _), width_v = q.shape, k.shape, v.shape[3]
    score, mod = reaching(score), reaching(None if mask is None else mask.mod)
    sums = Gradients(grad_out, grad_lse, q, k, v, out, score, needed)
    q, k, v, grad_out = (last_together(t) for t in (q, k, v, grad_out))
    seed = readable(seed, q)
    offsets = q_offset.to(torch.int32) if isinstance(q_offset, Tensor) else None
    inputs = q, k, v, grad_out, lse, sums.products
    per_batch = None if kv_lens is None else kv_lens.to(torch.int32), offsets
    strides = *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *grad_out.stride()[:3]
    sizes = heads, heads // kv_heads, k.shape[0], rows, keys
    numbers = scale, 0 if offsets is not None else q_offset, seed, threshold(dropout_p), 1 / (1 - dropout_p)
    kind = {
        "width": width, "value_width": width_v, "mask": None if mod is None else mod.program,
        "lens": kv_lens is not None, "offsets": offsets is not None, "dropout": dropout_p > 0,
        "stored_seed": isinstance(seed, Tensor),
    }  # fmt: skip

    def constants(tiles: Tiles, block: tuple[int, int]) -> dict[str, Any]:
        return {
            "BLOCK_M": tiles.rows, "BLOCK_N": tiles.keys, "MASK_M": block[0], "MASK_N": block[1],
            "WHOLE_M": rows % tiles.rows == 0, "WHOLE_N": keys % tiles.keys == 0, "PRECISION": precision(q, products),
            "INSIDE": all_inside((score, mod), q, k, q_offset, tiles.rows, tiles.keys), "STAGES": tiles.stages,
            "warps": tiles.warps,
        }  # fmt: skip

    if batch * kv_heads * keys:
        col_ptr, runs, block, between = runs_of(mask, rows, keys, q.device, columns=True)
        captured = OrderedSums(sums.derivative, sums.captures, rows, keys)
        cut = tiles or deterministic_tiles(max(width, width_v), q.element_size(), block, bool(captured.exact))[0]
        kernel = backward_source.Backward(
            **kind, tile=(cut.keys, cut.rows), score=sums.derivative, queries=False, exact=captured.exact
        )
        for places in captured.passes():
            for first, step, count in captured.planes(batch, kv_heads, heads):
                launch(
                    _of_keys(kernel), (-(-keys // cut.keys), count),
                    [
                        *inputs, sums.q, sums.k, sums.v, col_ptr, runs, *per_batch, *strides, *sizes, *between,
                        *numbers, first, step, *arguments((score, mod)), *places,
                    ],
                    **constants(cut, block),
                )  # fmt: skip
    if batch * heads * rows:
        row_ptr, runs, block, between = runs_of(mask, rows, keys, q.device)
        cut = tiles or deterministic_tiles(max(width, width_v), q.element_size(), block, False)[1]
        derivative = None if score is None else derivative_of(score.program, (False,) * len(score.captures))
        kernel = Gradient(**kind, tile=(cut.keys, cut.rows), score=derivative)
        launch(
            _of_queries(kernel), (-(-rows // cut.rows), batch * heads),
            [
                *inputs, sums.q, row_ptr, runs, *per_batch, *strides, *sizes, *between, *numbers,
                *arguments((score, mod)),
            ],
            **constants(cut, block),
        )  # fmt: skip
    return sums.results(q, k, v, lse, score, sinks)


@functools.lru_cache(maxsize=1024)
def _of_keys(kernel: backward_source.Backward) -> Kernel:
    return Kernel("backward", backward_source.source(kernel))


@functools.lru_cache(maxsize=1024)
def _of_queries(kernel: Gradient) -> Kernel:
    return Kernel("query_gradient", query_source.source(kernel))
