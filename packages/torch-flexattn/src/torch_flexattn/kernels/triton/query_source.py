"""The kernel for gradients of queries alone, as source: nothing is added in an order that may change.

One program of the grid owns a block of queries of one head. It walks the runs of its row of the block mask, recomputes
scores and their gradient as the kernel of keys does (``backward_source``), and sums ``dq`` in registers. That is two
products a tile more than by additions to memory: seven instead of five, both kernels together.
"""

from __future__ import annotations

from .chunks import chunks
from .forward_source import load_rows
from .places import parameters
from .score_gradient import Gradient, gradient, indent, printed, weights

HEADER = '''"""Written by torch-flexattn: attention backward, gradients of queries."""

import triton
import triton.language as tl

from torch_flexattn.kernels.triton.arithmetic import floor_div, floor_mod, keep_transposed, power, round_half_even, tanh


@triton.jit
def query_gradient(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, row_ptr, runs, kv_lens, q_offsets,
    q_sb, q_sh, q_sm, k_sb, k_sh, k_sn, v_sb, v_sh, v_sn, do_sb, do_sh, do_sm,
    heads, group, kv_batches, q_len, kv_len, mask_sb, mask_sh, scale, q_offset, seed, limit, kept,
{places}    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASK_M: tl.constexpr, MASK_N: tl.constexpr,
    WHOLE_M: tl.constexpr, WHOLE_N: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
    INSIDE: tl.constexpr,
):
    LOG2E: tl.constexpr = 1.4426950408889634
    row_block = tl.num_programs(0) - 1 - tl.program_id(0)
    bh = tl.program_id(1)
    b = bh // heads
    h = bh % heads
    hk = h // group
    bk = b % kv_batches
    q_rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    rows = q_rows[:, None]
    q_first = row_block * BLOCK_M + {offset}
    q_places = tl.arange(0, BLOCK_M).to(tl.int64)[None, :]
    q_idx = q_rows[None, :] + {offset}
    q_base = q_ptr + b.to(tl.int64) * q_sb + h.to(tl.int64) * q_sh + rows.to(tl.int64) * q_sm
    do_base = do_ptr + b.to(tl.int64) * do_sb + h.to(tl.int64) * do_sh + rows.to(tl.int64) * do_sm
    k_base = k_ptr + bk.to(tl.int64) * k_sb + hk.to(tl.int64) * k_sh
    v_base = v_ptr + bk.to(tl.int64) * v_sb + hk.to(tl.int64) * v_sh
    l_at = bh.to(tl.int64) * q_len + q_rows
    lse = tl.load(lse_ptr + l_at, mask=q_rows < q_len, other=float("-inf"))
    lse = tl.where(lse == float("-inf"), 0.0, lse * LOG2E)
    dd = tl.load(delta_ptr + l_at, mask=q_rows < q_len, other=0.0)
'''


def source(kernel: Gradient) -> str:
    """The file that holds the kernel; the derivative of its score modification has no scatters."""
    score, mask = printed(kernel, "q")
    wide, values = chunks(kernel.width), chunks(kernel.value_width)
    lines = ["seed = tl.load(seed)"] if kernel.stored_seed else []
    lines += ["kv_end = tl.minimum(kv_len, tl.load(kv_lens + b))" if kernel.lens else "kv_end = kv_len"]
    for name, place, parts, width in (("q", "e", wide, kernel.width), ("do", "f", values, kernel.value_width)):
        for n, chunk in enumerate(parts):
            column = f"{place}{n}[None, :]"
            lines.append(f"{place}{n} = {chunk.start} + tl.arange(0, {chunk.size})")
            lines += load_rows(f"{name}{n}", f"{name}_base + {column}", "rows < q_len", column, chunk, width, "WHOLE_M")
    lines += [f"dq{n} = tl.zeros([BLOCK_M, {chunk.size}], tl.float32)" for n, chunk in enumerate(wide)]
    for part in (score, mask):
        if part is not None:
            lines += part.outside
    lines += [
        "mask_row = b * mask_sb + h * mask_sh + row_block * BLOCK_M // MASK_M",
        "for run in range(tl.load(row_ptr + mask_row), tl.load(row_ptr + mask_row + 1)):",
        "    begin = tl.load(runs + run * 2) * MASK_N",
        "    code = tl.load(runs + run * 2 + 1)",
        "    stop = tl.minimum((code >> 1) * MASK_N, kv_end)",
        "    for n in tl.range(begin, stop, BLOCK_N, num_stages=STAGES):",
        "        kv_first = n",
        "        kv_idx = (n + tl.arange(0, BLOCK_N))[:, None]",
        "        kv_places = tl.arange(0, BLOCK_N).to(tl.int64)[:, None]",
    ]
    tile: list[str] = []
    whole = "" if kernel.lens else "WHOLE_N"
    for name, place, parts, width in (("k", "e", wide, kernel.width), ("v", "f", values, kernel.value_width)):
        for n, chunk in enumerate(parts):
            address = f"{name}_base + kv_idx.to(tl.int64) * {name}_sn + {place}{n}[None, :]"
            tile += load_rows(f"{name}{n}", address, "kv_idx < kv_end", f"{place}{n}[None, :]", chunk, width, whole)
    tile += [*weights(kernel, score, mask), *gradient(kernel), "ds = ds.to(q0.dtype)"]
    tile += [f"dq{n} = tl.dot(tl.trans(ds), k{n}, dq{n}, input_precision=PRECISION)" for n in range(len(wide))]
    lines += indent(tile, 2)
    for n, chunk in enumerate(wide):
        address = f"dq_ptr + l_at[:, None] * {kernel.width} + e{n}[None, :]"
        inside = "rows < q_len" if chunk.whole else f"(rows < q_len) & (e{n}[None, :] < {kernel.width})"
        lines.append(f"tl.store({address}, dq{n} * scale, mask={inside})")
    offset = "tl.load(q_offsets + b)" if kernel.offsets else "q_offset"
    text = HEADER.format(offset=offset, places=parameters(kernel.programs))
    return text + "\n".join(indent(lines, 1)) + "\n"
