"""The forward kernel for a pair of programs, as source.

One program of the grid sums one block of rows of one head: it walks the runs of its row in the block mask; in full runs
it evaluates no mask, and the bounds only in the last tile. Softmax is online and in base 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...program import Program
from .chunks import Chunk, chunks
from .eight_bits import Eight
from .places import parameters
from .printer import Printed, print_program, scores_of
from .slanted import Box


@dataclass(frozen=True)
class Forward:
    """What a forward kernel is compiled from.

    Attributes:
        width: features of queries and keys.
        value_width: features of values.
        score: the score modification, or ``None``.
        mask: the mask of partial blocks, or ``None``: every block is full.
        lens: keys are bounded for each batch entry.
        offsets: the numbers of queries begin elsewhere in each batch entry.
        sinks: each head has a further score.
        dropout: weights are dropped.
        stored_seed: the seed of that is read from memory.
        maxima: whether the maximum score of each row is stored.
        eight: what is of 8 bits.
        native: whether 8 bits are multiplied as they are (see ``eight_bits``).
        descales: 8 bits have factors of each head.
    """

    width: int
    value_width: int
    score: Program | None = None
    mask: Program | None = None
    lens: bool = False
    offsets: bool = False
    sinks: bool = False
    dropout: bool = False
    stored_seed: bool = False
    maxima: bool = False
    eight: Eight = ""
    native: bool = False
    descales: bool = False

    @property
    def programs(self) -> tuple[Program, ...]:
        return tuple(p for p in (self.score, self.mask) if p is not None)


BOX = Box(("q_first", "q_first + BLOCK_M - 1"), ("n", "n + BLOCK_N - 1"), "q_places", "kv_places")
HEADER = '''"""Written by torch-flexattn: attention forward."""

import triton
import triton.language as tl

from torch_flexattn.kernels.triton.arithmetic import floor_div, floor_mod, keep, power, round_half_even, tanh
from torch_flexattn.kernels.triton.e4m3 import widened


@triton.jit
def forward(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, max_ptr, row_ptr, runs, kv_lens, q_offsets, sinks,
    descales, q_sb, q_sh, q_sm, k_sb, k_sh, k_sn, v_sb, v_sh, v_sn, o_sb, o_sh, o_sm,
    heads, group, kv_batches, q_len, kv_len, mask_sb, mask_sh, d_k, d_b, scale, q_offset, seed, limit,
    kept,
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
    q_places = tl.arange(0, BLOCK_M).to(tl.int64)[:, None]
    q_idx = rows + {offset}
'''

TAIL = """
    some = l > 0
    safe = tl.where(some, l, 1.0)
    lse = tl.where(some, (m + tl.log2(safe)) / LOG2E, float("-inf"))
{sink}    o_base = out_ptr + b.to(tl.int64) * o_sb + h.to(tl.int64) * o_sh + rows.to(tl.int64) * o_sm
    l_at = bh.to(tl.int64) * q_len + q_rows
    if WHOLE_M:
        tl.store(lse_ptr + l_at, lse)
    else:
        tl.store(lse_ptr + l_at, lse, mask=q_rows < q_len)
"""


SINK = """    sink = tl.load(sinks + h).to(tl.float32)
    share = tl.where(some, 1.0 / (1.0 + tl.exp2((sink - lse) * LOG2E)), 0.0)
    safe = safe / tl.where(some, share, 1.0)
    higher = tl.maximum(lse, sink)
    finite = tl.where(higher == float("-inf"), 0.0, higher)
    both = tl.exp2((lse - finite) * LOG2E) + tl.exp2((sink - finite) * LOG2E)
    lse = tl.where(higher == float("-inf"), higher, finite + tl.log2(both) / LOG2E)
"""


def source(kernel: Forward) -> str:
    """The file that holds the kernel."""
    names = {"b": "b", "h": "h", "q": "q_idx", "kv": "kv_idx", "score": "score"}
    score = None if kernel.score is None else print_program(kernel.score, "x", names, box=BOX)
    first = (0, 0) if kernel.score is None else (len(kernel.score.captures), len(kernel.score.scalars))
    mask = None if kernel.mask is None else print_program(kernel.mask, "y", names, first, BOX)
    offset = "tl.load(q_offsets + b)" if kernel.offsets else "q_offset"
    text = HEADER.format(offset=offset, places=parameters(kernel.programs))
    wide, values = chunks(kernel.width), chunks(kernel.value_width)
    lines: list[str] = ["seed = tl.load(seed)"] if kernel.stored_seed else []
    if kernel.descales:
        lines.append("scale = scale * tl.load(descales + b * d_b + h)")
    if kernel.lens:
        lines.append("kv_len = tl.minimum(kv_len, tl.load(kv_lens + b))")
    lines.append("q_base = q_ptr + b.to(tl.int64) * q_sb + h.to(tl.int64) * q_sh + rows.to(tl.int64) * q_sm")
    for n, chunk in enumerate(wide):
        lines.append(f"e{n} = {chunk.start} + tl.arange(0, {chunk.size})")
        lines += load_rows(
            f"q{n}", f"q_base + e{n}[None, :]", "rows < q_len", f"e{n}[None, :]", chunk, kernel.width, "WHOLE_M"
        )
        if kernel.eight == "all" and not kernel.native:
            lines.append(f"q{n} = widened(q{n}, tl.float16)")
    lines += [
        "k_base = k_ptr + bk.to(tl.int64) * k_sb + hk.to(tl.int64) * k_sh",
        "v_base = v_ptr + bk.to(tl.int64) * v_sb + hk.to(tl.int64) * v_sh",
    ]
    for n, chunk in enumerate(values):
        lines += [
            f"f{n} = {chunk.start} + tl.arange(0, {chunk.size})",
            f"acc{n} = tl.zeros([BLOCK_M, {chunk.size}], tl.float32)",
        ]
    for printed in (score, mask):
        if printed is not None:
            lines += printed.outside
    lines += [
        'm = tl.full([BLOCK_M], float("-inf"), tl.float32)',
        "l = tl.zeros([BLOCK_M], tl.float32)",
        "mask_row = b * mask_sb + h * mask_sh + row_block * BLOCK_M // MASK_M",
        "for run in range(tl.load(row_ptr + mask_row), tl.load(row_ptr + mask_row + 1)):",
        "    begin = tl.load(runs + run * 2) * MASK_N",
        "    code = tl.load(runs + run * 2 + 1)",
        "    stop = tl.minimum((code >> 1) * MASK_N, kv_len)",
        "    for n in tl.range(begin, stop, BLOCK_N, num_stages=STAGES):",
        *_indent(_tile(kernel, score, mask), 2),
    ]
    text += "\n".join(_indent(lines, 1)) + TAIL.format(sink=SINK if kernel.sinks else "")
    text += f"    share = {'tl.load(descales + d_k + b * d_b + h)' if kernel.descales else '1.0'} / safe\n"
    for n, chunk in enumerate(values):
        stored = f"o_base + f{n}[None, :], (acc{n} * share[:, None]).to(out_ptr.dtype.element_ty)"
        inside = "" if chunk.whole else f" & (f{n}[None, :] < {kernel.value_width})"
        whole = ["    if WHOLE_M:", f"        tl.store({stored})", "    else:"] if chunk.whole else ["    if True:"]
        text += "\n".join([*whole, f"        tl.store({stored}, mask=(rows < q_len){inside})"]) + "\n"
    if kernel.maxima:
        store = "tl.store(max_ptr + l_at, m / LOG2E, mask=q_rows < q_len)"
        text += f"    {store}\n"
    return text


def _tile(kernel: Forward, score: Printed | None, mask: Printed | None) -> list[str]:
    """One block of keys: ``n`` is its first."""
    lines = [
        "kv = n + tl.arange(0, BLOCK_N)",
        "kv_idx = kv[None, :]",
        "kv_places = tl.arange(0, BLOCK_N).to(tl.int64)[None, :]",
    ]
    for c, chunk in enumerate(chunks(kernel.width)):
        address = f"k_base + kv_idx.to(tl.int64) * k_sn + e{c}[:, None]"
        lines += load_rows(f"k{c}", address, "kv_idx < kv_len", f"e{c}[:, None]", chunk, kernel.width, "WHOLE_N")
        if kernel.eight and not kernel.native:
            lines.append(f"k{c} = widened(k{c}, q{c}.dtype)")
        more = ", qk" if c else ""
        lines.append(f"qk = tl.dot(q{c}, k{c}{more}, input_precision=PRECISION)")
    if score is None:
        lines.append("s = qk * (scale * LOG2E)")
    else:
        assert kernel.score is not None
        modified = scores_of(kernel.score, score.outputs[0], "tl.zeros([BLOCK_M, BLOCK_N], tl.float32)")
        lines += ["score = qk * scale", *score.inside, f"s = {modified} * LOG2E"]
    hidden = 's = tl.where({}, s, float("-inf"))'
    if mask is not None:
        some = [*mask.inside, hidden.format(f"{mask.outputs[0]} & (kv_idx < kv_len)")]
        lines += ["if ((code & 1) == 0) | (n + BLOCK_N > kv_len):", *_indent(some, 1)]
    else:
        lines += ["if not WHOLE_N:", *_indent([hidden.format("kv_idx < kv_len")], 1)]
    lines.append("m_new = tl.maximum(m, tl.max(s, 1))")
    finite = "m_new"
    if mask is not None or score is not None:
        finite = "m_safe"
        lines.append('m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)')
    lines += [
        f"p = tl.exp2(s - {finite}[:, None])",
        f"alpha = tl.exp2(m - {finite})",
        "l = l * alpha + tl.sum(p, 1)",
        *(f"acc{c} = acc{c} * alpha[:, None]" for c in range(len(chunks(kernel.value_width)))),
    ]
    if kernel.dropout:
        lines.append("p = tl.where(keep(seed, b, h, q_idx, n, limit, BLOCK_N), p * kept, 0.0)")
    bounds = "kv[:, None] < kv_len"
    for c, chunk in enumerate(chunks(kernel.value_width)):
        address = f"v_base + kv[:, None].to(tl.int64) * v_sn + f{c}[None, :]"
        lines += load_rows(f"v{c}", address, bounds, f"f{c}[None, :]", chunk, kernel.value_width, "WHOLE_N")
        if kernel.eight:
            lines.append(f"v{c} = widened(v{c}, {'tl.float16' if kernel.eight == 'all' else 'q0.dtype'})")
        lines.append(f"acc{c} = tl.dot(p.to(v{c}.dtype), v{c}, acc{c}, input_precision=PRECISION)")
    return [*lines, "m = m_new"]


def load_rows(name: str, address: str, bounds: str, place: str, chunk: Chunk, width: int, whole: str = "") -> list[str]:
    """A tile of rows, ``bounds`` of which exist, and of a chunk of features; ``whole``: when all rows do."""
    inside = [f"({b})" for b in (bounds, "" if chunk.whole else f"{place} < {width}") if b]
    masked = (
        f"{name} = tl.load({address}, mask={' & '.join(inside)}, other=0.0)"
        if inside
        else f"{name} = tl.load({address})"
    )
    if not whole or not chunk.whole:
        return [masked]
    return [f"if {whole}:", f"    {name} = tl.load({address})", "else:", f"    {masked}"]


def _indent(lines: Iterable[str], levels: int) -> list[str]:
    return ["    " * levels + line for line in lines]
