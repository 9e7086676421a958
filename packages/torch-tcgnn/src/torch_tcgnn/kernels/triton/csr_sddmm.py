"""SDDMM over compressed rows: ``out[edge[k]] = <a[i], b[col[k]]>`` for every entry ``k`` of row ``i``.

The target operand stays in registers while the row's sources are gathered. Accumulates in float32 (float64 for
float64); results go straight to input edge order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...adjacency import Adjacency
from ...row_plan import TRIP
from ..device import on_device
from .lanes import SIZES, edge_of, lanes, lists, num_programs
from .plans import plan_of
from .tile import NUM_WARPS, rows_of, tile, vector

MAX_RESIDENT = 512
"""Features of the target row that stay in registers."""


@triton.jit(do_not_specialize=SIZES)
def csr_sddmm_kernel(
    out, pieces, wide, short, num_long, num_pieces, num_short, col, edge, a, b, stride_a, stride_b, features, heads,
    VEC: tl.constexpr, WHOLE: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr, BLOCK_F: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """``WHOLE``: ``features`` fit one tile, so the row of ``a`` is read once; else it is read again, from cache. Sizes
    and strides of rows are in units of ``VEC``."""
    stride_a *= VEC
    stride_b *= VEC
    features *= VEC
    _, row, live, first, count, step, trips = lanes(pieces, wide, short, num_long, num_pieces, num_short, None, ROWS)
    head = tl.program_id(1)
    f = tl.arange(0, BLOCK_F)
    in_row = f < features
    left_at = a + (row[:, None] * stride_a + head * features + f[None, :])
    if WHOLE:
        left = tl.load(left_at, mask=live[:, None] & in_row[None, :], other=0).to(ACC)
    counts = count[:, None]
    for trip in range(0, trips, UNROLL):
        right_at, edges, products = (), (), ()
        for u in tl.static_range(UNROLL):
            inside = (trip + u) * step < count
            entry = (first + (trip + u) * step).to(tl.int64)
            source = edge_of(col, entry, inside)
            right_at += (b + (source[:, None] * stride_b + head * features + f[None, :]),)
            edges += (edge_of(edge, entry, inside),)
        for u in tl.static_range(UNROLL):
            inside = (trip + u) * step < counts
            if WHOLE:
                products += (left * tl.load(right_at[u], mask=inside & in_row[None, :], other=0).to(ACC),)
            else:
                product = tl.zeros([ROWS, BLOCK_F], ACC)
                for start in range(0, features, BLOCK_F):
                    mask = inside & (start + f < features)[None, :]
                    part = tl.load(left_at + start, mask=mask, other=0).to(ACC)
                    product += part * tl.load(right_at[u] + start, mask=mask, other=0).to(ACC)
                products += (product,)
        for u in tl.static_range(UNROLL):
            dot = tl.sum(products[u], 1).to(out.dtype.element_ty)
            tl.store(out + edges[u] * heads + head, dot, mask=(trip + u) * step < count)


def csr_sddmm(adjacency: Adjacency, a: Tensor, b: Tensor) -> Tensor:
    """Products of target and source rows at the entries of the pattern.

    Args:
        adjacency: the rows.
        a: ``[M, D]`` or ``[M, H, D]`` target operand; float32, float16, bfloat16 or float64.
        b: ``[K, D]`` or ``[K, H, D]`` source operand.

    Returns:
        ``[E]`` or ``[E, H]`` of ``a.dtype`` in input edge order.
    """
    heads = a.shape[1] if a.dim() == 3 else 1
    features = a.shape[-1]
    out = a.new_empty(adjacency.num_edges, *a.shape[1:-1])
    if out.numel() == 0 or features == 0:
        return out.zero_()
    left, right = rows_of(a), rows_of(b)
    items = lists(plan_of(adjacency))
    vec = vector(features, left, right)
    rows, block = tile(features, vec, MAX_RESIDENT)
    whole = features <= block
    with on_device(left):
        csr_sddmm_kernel[num_programs(items, rows), heads](
            out, *items, adjacency.col, adjacency.edge if adjacency.edge.numel() else None, left, right,
             left.stride(0) // vec, right.stride(0) // vec, features // vec, heads, VEC=vec,
            WHOLE=whole, ACC=tl.float64 if a.dtype == torch.float64 else tl.float32,
            ROWS=rows, BLOCK_F=block, UNROLL=TRIP if whole else 1, num_warps=NUM_WARPS,
        )  # fmt: skip
    return out
