"""The kernel for few queries and many keys, for a pair of programs, as source.

One program of the grid sums one share of the keys for one tile of rows: the queries of all heads that share a key head,
so keys and values are read once, whatever the ratio of heads. Shares are of the tiles that the mask shows, so they are
equal under a window, too. Where there is one share its program writes the result; else ``combine`` merges the sums of
the shares (Flash-Decoding). Softmax is online and in base 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ...program import Program
from .chunks import LEAST, chunks
from .combine_source import combine, result
from .eight_bits import Eight
from .forward_source import load_rows
from .places import parameters
from .printer import Printed, print_program, scores_of

Offset = Literal["one", "each", "last"]
"""The number of the first query: one for all, one for each batch entry, or so that the last query has the number of the
last key."""


@dataclass(frozen=True)
class Decode:
    """What a decode kernel is compiled from.

    Attributes:
        width: features of queries and keys.
        value_width: features of values.
        score: the score modification, or ``None``.
        mask: the mask of partial blocks, or ``None``: every block is full. It comes with ``blocks``.
        blocks: the visible keys are those of runs of blocks; else all.
        paged: whether keys and values lie in pages: ``"whole"``: no tile of keys crosses one; ``"keys"``: tiles may.
        slots: rows of the table of pages and of the lengths are given, and are not those of the batch.
        lens: keys are bounded for each batch entry.
        offset: where the numbers of queries begin.
        sinks: each head has a further score.
        maxima: whether the maximum score of each row is stored.
        shared: whether the keys are shared out among several programs.
        eight: what is of 8 bits; all of it is widened, as reading it is what takes the time.
        descales: 8 bits have factors of each head.
        fixed: keys of a share, so that how a sequence is cut is its own matter; 0: shares are equal.
    """

    width: int
    value_width: int
    score: Program | None = None
    mask: Program | None = None
    blocks: bool = False
    paged: Literal["", "whole", "keys"] = ""
    slots: bool = False
    lens: bool = False
    offset: Offset = "one"
    sinks: bool = False
    maxima: bool = False
    shared: bool = False
    eight: Eight = ""
    descales: bool = False
    fixed: int = 0

    @property
    def programs(self) -> tuple[Program, ...]:
        return tuple(p for p in (self.score, self.mask) if p is not None)

    @property
    def record(self) -> int:
        """Numbers that a share leaves for each row: its sum of values, its largest score, its sum of exponentials."""
        return -(-self.value_width // LEAST) * LEAST + 4


HEADER = '''"""Written by torch-flexattn: attention of few queries."""

import triton
import triton.language as tl

from torch_flexattn.kernels.triton.arithmetic import floor_div, floor_mod, power, round_half_even, tanh
from torch_flexattn.kernels.triton.e4m3 import widened
from torch_flexattn.kernels.triton.softmax import with_sink


@triton.jit(do_not_specialize=["kv_len", "q_offset"])
def decode(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, max_ptr, sums, run_begin, run_end, runs, table, slots, kv_lens, q_offsets,
    sinks, descales, q_sb, q_sh, q_sm, k_sb, k_sh, k_sn, v_sb, v_sh, v_sn, o_sb, o_sh, o_sm, table_s,
    units, unit, group, kv_batches, q_len, kv_len, mask_sb, mask_su, row_tiles, d_k, d_b, scale, q_offset,
{places}    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASK_N: tl.constexpr, PAGE: tl.constexpr,
    WHOLE_N: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):
    LOG2E: tl.constexpr = 1.4426950408889634
    tile = tl.program_id(0) % row_tiles
    bu = tl.program_id(0) // row_tiles
    u = bu % units
    b = bu // units
    hk = u * unit // group
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    exists = row < unit * q_len
    head = u * unit + row // q_len
    query = row % q_len
    h = head[:, None]
    line = (b.to(tl.int64) * units * unit + head) * q_len + query
'''


def source(kernel: Decode) -> str:
    """The file that holds the kernel, and the one that merges shares where there are some."""
    names = {"b": "b", "h": "h", "q": "q_idx", "kv": "kv_idx", "score": "score"}
    score = None if kernel.score is None else print_program(kernel.score, "x", names)
    first = (0, 0) if kernel.score is None else (len(kernel.score.captures), len(kernel.score.scalars))
    mask = None if kernel.mask is None else print_program(kernel.mask, "y", names, first)
    lines = [*_start(kernel)]
    for printed in (score, mask):
        if printed is not None:
            lines += printed.outside
    lines += ['m = tl.full([BLOCK_M], float("-inf"), tl.float32)', "l = tl.zeros([BLOCK_M], tl.float32)"]
    lines += _walk(kernel, _tile(kernel, score, mask))
    text = HEADER.format(places=parameters(kernel.programs))
    if not kernel.shared:
        return text + "\n".join(_indent([*lines, *result(kernel, "[:, None]", "exists")], 1)) + "\n"
    top = kernel.record - 4
    lines.append(f"left = sums + (line * tl.num_programs(1) + tl.program_id(1)) * {kernel.record}")
    for c, chunk in enumerate(chunks(kernel.value_width)):
        inside = "exists[:, None]" + ("" if chunk.whole else f" & (f{c}[None, :] < {kernel.value_width})")
        lines.append(f"tl.store(left[:, None] + f{c}[None, :], acc{c}, mask={inside})")
    lines += [f"tl.store(left + {top}, m, mask=exists)", f"tl.store(left + {top + 1}, l, mask=exists)"]
    text += "\n".join(_indent(lines, 1))
    return text + "\n" + combine(kernel)


def first_query(*, slots: bool, lens: bool, offset: Offset) -> list[str]:
    """``kv_len`` of a batch entry, and ``first``, the number of its first query."""
    firsts = {"one": "q_offset", "each": "tl.load(q_offsets + b).to(tl.int32)", "last": "kv_len - q_len"}
    lines = ["slot = tl.load(slots + b)" if slots else "slot = b"]
    if lens:
        lines.append("kv_len = tl.minimum(kv_len, tl.load(kv_lens + slot).to(tl.int32))")
    return [*lines, f"first = {firsts[offset]}"]


def _start(kernel: Decode) -> list[str]:
    """Lengths, the queries, and where keys and values begin."""
    lines = [
        *first_query(slots=kernel.slots, lens=kernel.lens, offset=kernel.offset),
        *(["scale = scale * tl.load(descales + b * d_b + h, mask=exists[:, None])"] if kernel.descales else []),
        "q_idx = query[:, None] + first",
        "q_base = q_ptr + b.to(tl.int64) * q_sb + h.to(tl.int64) * q_sh + query[:, None].to(tl.int64) * q_sm",
    ]
    for n, chunk in enumerate(chunks(kernel.width)):
        lines.append(f"e{n} = {chunk.start} + tl.arange(0, {chunk.size})")
        lines += load_rows(f"q{n}", f"q_base + e{n}[None, :]", "exists[:, None]", f"e{n}[None, :]", chunk, kernel.width)
        if kernel.eight == "all":
            lines.append(f"q{n} = widened(q{n}, tl.float16)")
    own = "" if kernel.paged else "(b % kv_batches).to(tl.int64) * {0}_sb + "
    for name in ("k", "v"):
        lines.append(f"{name}_base = {name}_ptr + {own.format(name)}hk.to(tl.int64) * {name}_sh")
        if kernel.paged != "keys":
            lines.append(f"{name}_span = tl.arange(0, BLOCK_N).to(tl.int64) * {name}_sn")
    if kernel.paged:
        lines.append("pages = table + tl.cast(slot, tl.int64) * table_s")
    for n, chunk in enumerate(chunks(kernel.value_width)):
        lines += [
            f"f{n} = {chunk.start} + tl.arange(0, {chunk.size})",
            f"acc{n} = tl.zeros([BLOCK_M, {chunk.size}], tl.float32)",
        ]
    return lines


def _walk(kernel: Decode, tile: list[str]) -> list[str]:
    """The tiles of this program's share."""
    if not kernel.blocks:
        bounds = ["begin = 0", "stop = kv_len"]
        if kernel.shared:
            bounds = [
                *(_fixed(kernel) if kernel.fixed else ["count = tl.cdiv(kv_len, BLOCK_N)", *SHARE]),
                "begin = low * BLOCK_N",
                "stop = tl.minimum(high * BLOCK_N, kv_len)",
            ]
        return [*bounds, *_loop(kernel, tile)]
    lines = ["plane = b * mask_sb + u * mask_su", "run_first = tl.load(run_begin + plane)"]
    lines.append("run_last = tl.load(run_end + plane)")
    if kernel.shared:
        lines += [*(_fixed(kernel) if kernel.fixed else [*COUNT, *SHARE]), "at = 0"]
    lines += [
        "for run in range(run_first, run_last):",
        "    begin = tl.load(runs + run * 2) * MASK_N",
        "    code = tl.load(runs + run * 2 + 1)",
        "    stop = tl.minimum((code >> 1) * MASK_N, kv_len)",
    ]
    if kernel.shared:
        lines += [
            "    count = tl.maximum(stop - begin + BLOCK_N - 1, 0) // BLOCK_N",
            "    stop = tl.minimum(begin + tl.maximum(high - at, 0) * BLOCK_N, stop)",
            "    begin += tl.minimum(tl.maximum(low - at, 0), count) * BLOCK_N",
            "    at += count",
        ]
    return [*lines, *_indent(_loop(kernel, tile), 1)]


def _fixed(kernel: Decode) -> list[str]:
    """The tiles of this program where shares have one size."""
    return [f"low = tl.program_id(1) * ({kernel.fixed} // BLOCK_N)", f"high = low + {kernel.fixed} // BLOCK_N"]


def _loop(kernel: Decode, tile: list[str]) -> list[str]:
    """The tiles of keys ``begin`` to before ``stop``.

    It counts from 0: a number that is carried from run to run, and read by the bounds of an inner loop alone, is taken
    for unused by Triton's pass over layouts, and removed.
    """
    head = [f"page_of = {_page(kernel, 'begin')}"] if kernel.paged else []
    loop = "for past in tl.range(0, stop - begin, BLOCK_N, num_stages=STAGES):"
    return [*head, loop, *_indent(["n = begin + past", *tile], 1)]


def _page(kernel: Decode, n: str) -> str:
    """The page of the tile that begins at key ``n``, or of each of its keys."""
    if kernel.paged == "whole":
        return f"tl.load(pages + ({n}) // PAGE, mask={n} < stop, other=0)"
    return f"tl.load(pages + ({n} + tl.arange(0, BLOCK_N)) // PAGE, mask={n} + tl.arange(0, BLOCK_N) < stop, other=0)"


COUNT = [
    "count = 0",
    "for run in range(run_first, run_last, 64):",
    "    some = run + tl.arange(0, 64)",
    "    begins = tl.load(runs + some * 2, mask=some < run_last, other=0) * MASK_N",
    "    codes = tl.load(runs + some * 2 + 1, mask=some < run_last, other=0)",
    "    stops = tl.minimum((codes >> 1) * MASK_N, kv_len)",
    "    count += tl.sum(tl.maximum(stops - begins + BLOCK_N - 1, 0) // BLOCK_N, 0)",
]
"""Tiles of all runs."""
SHARE = [
    "whole = tl.cast(count, tl.int64)",
    "low = (tl.program_id(1) * whole // tl.num_programs(1)).to(tl.int32)",
    "high = ((tl.program_id(1) + 1) * whole // tl.num_programs(1)).to(tl.int32)",
]
"""Which of them are those of this program."""


def _tile(kernel: Decode, score: Printed | None, mask: Printed | None) -> list[str]:
    """One tile of keys: ``n`` is its first."""
    lines = ["kv = n + tl.arange(0, BLOCK_N)", "kv_idx = kv[None, :]"]
    if kernel.paged:  # the next tile's is read now: a load that waits for one in its own round is not fetched ahead
        lines += ["page = page_of.to(tl.int64)", f"page_of = {_page(kernel, 'n + BLOCK_N')}"]
    if kernel.paged == "whole":
        lines.append("within = tl.cast(n % PAGE, tl.int64)")
        lines += [f"{x}_rows = {x}_base + page * {x}_sb + within * {x}_sn + {x}_span" for x in "kv"]
    elif kernel.paged:
        lines += [f"{x}_rows = {x}_base + page * {x}_sb + (kv % PAGE).to(tl.int64) * {x}_sn" for x in "kv"]
    else:
        lines += [f"{x}_rows = {x}_base + tl.cast(n, tl.int64) * {x}_sn + {x}_span" for x in "kv"]
    for c, chunk in enumerate(chunks(kernel.width)):
        address = f"k_rows[None, :] + e{c}[:, None]"
        lines += load_rows(f"k{c}", address, "kv_idx < kv_len", f"e{c}[:, None]", chunk, kernel.width, "WHOLE_N")
        if kernel.eight:
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
    for c, chunk in enumerate(chunks(kernel.value_width)):
        address, bounds = f"v_rows[:, None] + f{c}[None, :]", "kv[:, None] < kv_len"
        lines += load_rows(f"v{c}", address, bounds, f"f{c}[None, :]", chunk, kernel.value_width, "WHOLE_N")
        if kernel.eight:
            lines.append(f"v{c} = widened(v{c}, q0.dtype)")
        lines.append(f"acc{c} = tl.dot(p.to(v{c}.dtype), v{c}, acc{c}, input_precision=PRECISION)")
    return [*lines, "m = m_new"]


def _indent(lines: Iterable[str], levels: int) -> list[str]:
    return ["    " * levels + line for line in lines]
