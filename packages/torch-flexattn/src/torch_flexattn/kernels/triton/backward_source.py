"""The backward kernels for a pair of programs, as source.

One program of the grid owns a block of keys of one head of K and V. It walks the runs of its column of the block mask,
and for every block of queries (of every query head of the group) recomputes the scores, transposed, and adds: to
``dv`` and ``dk``, which stay in registers, to ``dq``, in memory, and to the gradients of captured tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from .chunks import chunks
from .forward_source import load_rows
from .places import parameters
from .printer import Printed
from .scatters import Tile, scatters
from .score_gradient import Gradient, gradient, indent, printed, weights


@dataclass(frozen=True)
class Backward(Gradient):
    """What a backward kernel is compiled from; see also :class:`~.score_gradient.Gradient`.

    Attributes:
        queries: gradients of queries are added to memory, in any order; else another kernel makes them, and the
            programs of a launch are those of chosen heads.
        exact: captured tensors whose gradients are summed exactly (see :mod:`.exact_sums`), whatever the order.
    """

    queries: bool = True
    exact: frozenset[int] = frozenset()


PLANES = ("first_plane", "plane_step")
"""Arguments of a kernel whose launches are of chosen heads."""
HEADER = '''"""Written by torch-flexattn: attention backward."""

import triton
import triton.language as tl

from torch_flexattn.kernels.triton.arithmetic import floor_div, floor_mod, keep_transposed, power, round_half_even, tanh
{imports}

@triton.jit{unspecialised}
def backward(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, dk_ptr, dv_ptr, col_ptr, runs,
    kv_lens, q_offsets,
    q_sb, q_sh, q_sm, k_sb, k_sh, k_sn, v_sb, v_sh, v_sn, do_sb, do_sh, do_sm,
    heads, group, kv_batches, q_len, kv_len, mask_sb, mask_sh, scale, q_offset, seed, limit, kept,{planes}
{places}    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASK_M: tl.constexpr, MASK_N: tl.constexpr,
    WHOLE_M: tl.constexpr, WHOLE_N: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
    INSIDE: tl.constexpr,
):
    LOG2E: tl.constexpr = 1.4426950408889634
    col_block = tl.program_id(0)
    kv_heads = heads // group
    b = {plane} // kv_heads
    hk = {plane} % kv_heads
    bk = b % kv_batches
    kv = col_block * BLOCK_N + tl.arange(0, BLOCK_N)
    kv_idx = kv[:, None]
    kv_first = col_block * BLOCK_N
    kv_places = tl.arange(0, BLOCK_N).to(tl.int64)[:, None]
    k_base = k_ptr + bk.to(tl.int64) * k_sb + hk.to(tl.int64) * k_sh + kv_idx.to(tl.int64) * k_sn
    v_base = v_ptr + bk.to(tl.int64) * v_sb + hk.to(tl.int64) * v_sh + kv_idx.to(tl.int64) * v_sn
{keys}
    for member in tl.range(group):
        h = hk * group + member
        bh = b * heads + h
        q_base = q_ptr + b.to(tl.int64) * q_sb + h.to(tl.int64) * q_sh
        do_base = do_ptr + b.to(tl.int64) * do_sb + h.to(tl.int64) * do_sh
        dq_base = dq_ptr + bh.to(tl.int64) * q_len * {width}
        l_base = bh.to(tl.int64) * q_len
'''

TAIL = """
    kv_row = (b * kv_heads + hk).to(tl.int64) * kv_len + kv_idx
{stores}
"""


def source(kernel: Backward) -> str:
    """The file that holds the kernel."""
    score, mask = printed(kernel, "kv")
    wide, values = chunks(kernel.width), chunks(kernel.value_width)
    keys = ["seed = tl.load(seed)"] if kernel.stored_seed else []
    keys += ["kv_end = tl.minimum(kv_len, tl.load(kv_lens + b))" if kernel.lens else "kv_end = kv_len"]
    for name, place, parts, width in (("k", "e", wide, kernel.width), ("v", "f", values, kernel.value_width)):
        for n, chunk in enumerate(parts):
            keys.append(f"{place}{n} = {chunk.start} + tl.arange(0, {chunk.size})")
            whole = "" if kernel.lens else "WHOLE_N"
            keys += load_rows(
                f"{name}{n}",
                f"{name}_base + {place}{n}[None, :]",
                "kv_idx < kv_end",
                f"{place}{n}[None, :]",
                chunk,
                width,
                whole,
            )
            keys.append(f"d{name}{n} = tl.zeros([BLOCK_N, {chunk.size}], tl.float32)")
    text = HEADER.format(
        keys="\n".join(indent(keys, 1)),
        width=kernel.width,
        places=parameters(kernel.programs, kernel.score, kernel.exact),
        imports="from torch_flexattn.kernels.triton.exact_sums_kernel import add_exactly\n" * bool(kernel.exact),
        unspecialised="" if kernel.queries else _unspecialised(kernel),
        planes="" if kernel.queries else f" {', '.join(PLANES)},",
        plane="tl.program_id(1)" if kernel.queries else "(first_plane + tl.program_id(1) * plane_step)",
    )
    loop = "for n in tl.range(begin, stop, BLOCK_M, num_stages=STAGES):"
    lines: list[str] = []
    for part in (score, mask):
        if part is not None:
            lines += part.outside
    lines += [
        "mask_col = b * mask_sb + h * mask_sh + col_block * BLOCK_N // MASK_N",
        "for run in range(tl.load(col_ptr + mask_col), tl.load(col_ptr + mask_col + 1)):",
        "    begin = tl.load(runs + run * 2) * MASK_M",
        "    code = tl.load(runs + run * 2 + 1)",
        "    stop = tl.minimum((code >> 1) * MASK_M, q_len)",
        f"    {loop}",
        *indent(_tile(kernel, score, mask), 2),
    ]
    stores: list[str] = []
    for name, place, parts, width, factor in (
        ("k", "e", wide, kernel.width, " * scale"),
        ("v", "f", values, kernel.value_width, ""),
    ):
        for n, chunk in enumerate(parts):
            address = f"d{name}_ptr + kv_row * {width} + {place}{n}[None, :]"
            value = f"(d{name}{n}{factor}).to(d{name}_ptr.dtype.element_ty)"
            inside = "" if chunk.whole else f" & ({place}{n}[None, :] < {width})"
            stores.append(f"tl.store({address}, {value}, mask=(kv_idx < kv_len){inside})")
    return text + "\n".join(indent(lines, 2)) + TAIL.replace("{stores}", "\n".join(indent(stores, 1)))


def _unspecialised(kernel: Backward) -> str:
    """Numbers that differ from launch to launch of a pass must not make other kernels."""
    parts = [f"g{n}_{end}" for n in sorted(kernel.exact) for end in ("first", "stop")]
    return f"(do_not_specialize={[*PLANES, *parts]})"


def _tile(kernel: Backward, score: Printed | None, mask: Printed | None) -> list[str]:
    """One block of queries: ``n`` is its first."""
    inside = "(q_rows < q_len)"
    wide, values = chunks(kernel.width), chunks(kernel.value_width)
    lines = [
        "q_rows = n + tl.arange(0, BLOCK_M)",
        f"q_first = n + {'tl.load(q_offsets + b)' if kernel.offsets else 'q_offset'}",
        "q_places = tl.arange(0, BLOCK_M).to(tl.int64)[None, :]",
        f"q_idx = q_rows[None, :] + {'tl.load(q_offsets + b)' if kernel.offsets else 'q_offset'}",
        "if WHOLE_M:",
        "    lse = tl.load(lse_ptr + l_base + q_rows)",
        "    dd = tl.load(delta_ptr + l_base + q_rows)",
        "else:",
        f'    lse = tl.load(lse_ptr + l_base + q_rows, mask={inside}, other=float("-inf"))',
        f"    dd = tl.load(delta_ptr + l_base + q_rows, mask={inside}, other=0.0)",
        'lse = tl.where(lse == float("-inf"), 0.0, lse * LOG2E)',
    ]
    for name, stride, place, parts, width in (
        ("q", "q_sm", "e", wide, kernel.width),
        ("do", "do_sm", "f", values, kernel.value_width),
    ):
        for n, chunk in enumerate(parts):
            address = f"{name}_base + q_rows[:, None].to(tl.int64) * {stride} + {place}{n}[None, :]"
            lines += load_rows(
                f"{name}{n}", address, "q_rows[:, None] < q_len", f"{place}{n}[None, :]", chunk, width, "WHOLE_M"
            )
    lines += [
        *weights(kernel, score, mask),
        f"pz = {'(p * z)' if kernel.dropout else 'p'}.to(do0.dtype)",
        *(f"dv{n} = tl.dot(pz, do{n}, dv{n}, input_precision=PRECISION)" for n in range(len(values))),
        *gradient(kernel),
    ]
    if kernel.score is not None and score is not None:
        key, row = (f"tl.arange(0, {n})" for n in kernel.tile)
        lines += scatters(kernel.score, score, Tile("tl", *kernel.tile, f"{key}[:, None]", row), kernel.exact)
    lines.append("ds = ds.to(q0.dtype)")
    for n, chunk in enumerate(wide):
        lines.append(f"dk{n} = tl.dot(ds, q{n}, dk{n}, input_precision=PRECISION)")
        if kernel.queries:
            bounds = ["(q_rows[:, None] < q_len)", *([] if chunk.whole else [f"(e{n}[None, :] < {kernel.width})"])]
            address = f"dq_base + q_rows[:, None].to(tl.int64) * {kernel.width} + e{n}[None, :]"
            lines += [
                f"dq = tl.dot(tl.trans(ds), k{n}, input_precision=PRECISION) * scale",
                f'tl.atomic_add({address}, dq, mask={" & ".join(bounds)}, sem="relaxed")',
            ]
    return lines
