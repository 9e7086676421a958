"""The backward kernels for a pair of programs, as source.

One program of the grid owns a block of keys of one head of K and V. It walks the runs of its column of the block mask,
and for every block of queries (of every query head of the group) recomputes the scores, transposed, and adds: to
``dv`` and ``dk``, which stay in registers, to ``dq``, in memory, and to the gradients of captured tensors.

A captured tensor that is read at places which depend on the query alone, or the key alone, or on neither, gets one
addition a row, a column, or a tile; others get one an element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...differentiate import Derivative
from ...program import Program
from .chunks import chunks
from .diagonals import diagonal, diagonal_sums
from .forward_source import load_rows
from .places import parameters
from .printer import Printed, print_program, scores_of
from .slanted import Box


@dataclass(frozen=True)
class Backward:
    """What a backward kernel is compiled from.

    Attributes:
        width: features of queries and keys.
        value_width: features of values.
        score: the derivative of the score modification, or ``None``.
        mask: the mask of partial blocks, or ``None``: every block is full.
        lens: keys are bounded for each batch entry.
        offsets: the numbers of queries begin elsewhere in each batch entry.
        tile: keys and queries of a tile.
        dropout: weights were dropped.
        stored_seed: the seed of that is read from memory.
    """

    width: int
    value_width: int
    tile: tuple[int, int]
    score: Derivative | None = None
    mask: Program | None = None
    lens: bool = False
    offsets: bool = False
    dropout: bool = False
    stored_seed: bool = False

    @property
    def programs(self) -> tuple[Program, ...]:
        return tuple(p for p in (None if self.score is None else self.score.program, self.mask) if p is not None)


BOX = Box(("q_first", "q_first + BLOCK_M - 1"), ("kv_first", "kv_first + BLOCK_N - 1"), "q_places", "kv_places")
HEADER = '''"""Written by torch-flexattn: attention backward."""

import triton
import triton.language as tl

from torch_flexattn.kernels.triton.arithmetic import floor_div, floor_mod, keep_transposed, power, round_half_even, tanh


@triton.jit
def backward(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, dk_ptr, dv_ptr, col_ptr, runs,
    kv_lens, q_offsets,
    q_sb, q_sh, q_sm, k_sb, k_sh, k_sn, v_sb, v_sh, v_sn, do_sb, do_sh, do_sm,
    heads, group, kv_batches, q_len, kv_len, mask_sb, mask_sh, scale, q_offset, seed, limit, kept,
{places}    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASK_M: tl.constexpr, MASK_N: tl.constexpr,
    WHOLE_M: tl.constexpr, WHOLE_N: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
    INSIDE: tl.constexpr,
):
    LOG2E: tl.constexpr = 1.4426950408889634
    col_block = tl.program_id(0)
    kv_heads = heads // group
    b = tl.program_id(1) // kv_heads
    hk = tl.program_id(1) % kv_heads
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
    names = {"b": "b", "h": "h", "q": "q_idx", "kv": "kv_idx", "score": "score", "grad": "grad"}
    score = None if kernel.score is None else print_program(kernel.score.program, "x", names, box=BOX, kept="kv")
    first = (0, 0)
    if kernel.score is not None:
        first = (len(kernel.score.program.captures), len(kernel.score.program.scalars))
    mask = None if kernel.mask is None else print_program(kernel.mask, "y", names, first, BOX, "kv")
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
    places = parameters(kernel.programs, kernel.score)
    text = HEADER.format(keys="\n".join(_indent(keys, 1)), width=kernel.width, places=places)
    loop = "for n in tl.range(begin, stop, BLOCK_M, num_stages=STAGES):"
    lines: list[str] = []
    for printed in (score, mask):
        if printed is not None:
            lines += printed.outside
    lines += [
        "mask_col = b * mask_sb + h * mask_sh + col_block * BLOCK_N // MASK_N",
        "for run in range(tl.load(col_ptr + mask_col), tl.load(col_ptr + mask_col + 1)):",
        "    begin = tl.load(runs + run * 2) * MASK_M",
        "    code = tl.load(runs + run * 2 + 1)",
        "    stop = tl.minimum((code >> 1) * MASK_M, q_len)",
        f"    {loop}",
        *_indent(_tile(kernel, score, mask), 2),
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
    return text + "\n".join(_indent(lines, 2)) + TAIL.replace("{stores}", "\n".join(_indent(stores, 1)))


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
    for n in range(len(wide)):
        lines.append(f"qk = tl.dot(k{n}, tl.trans(q{n}){', qk' if n else ''}, input_precision=PRECISION)")
    outputs: list[str] = []
    if score is None:
        lines.append("s = qk * (scale * LOG2E)")
        late: list[str] = []
    else:
        early, late, outputs = split_at_gradient(kernel.score.program, score, score.inside)
        modified = scores_of(kernel.score.program, outputs[0], "tl.zeros([BLOCK_N, BLOCK_M], tl.float32)")
        lines += ["score = qk * scale", *early, f"s = {modified} * LOG2E"]
    bounds = "(q_rows[None, :] < q_len) & (kv_idx < kv_end)"
    edge = "True" if kernel.lens else "not (WHOLE_M and WHOLE_N)"
    outside = [f"if {edge}:", f'    s = tl.where({bounds}, s, float("-inf"))']
    if mask is None:
        lines += outside
    else:
        hidden = f's = tl.where({mask.outputs[0]} & {bounds}, s, float("-inf"))'
        shown = [*mask.inside, hidden]
        lines += ["if (code & 1) == 0:", *_indent(shown, 1), "else:", *_indent(outside, 1)]
    lines += [
        "p = tl.exp2(s - lse[None, :])",
        *(["grad = p", *late, *slopes_of(kernel.score, outputs)] if kernel.score is not None else []),
        *(["z = tl.where(keep_transposed(seed, b, h, q_idx, kv_idx, limit), kept, 0.0)"] if kernel.dropout else []),
        f"pz = {'(p * z)' if kernel.dropout else 'p'}.to(do0.dtype)",
        *(f"dv{n} = tl.dot(pz, do{n}, dv{n}, input_precision=PRECISION)" for n in range(len(values))),
        *(
            f"dp = tl.dot(v{n}, tl.trans(do{n}){', dp' if n else ''}, input_precision=PRECISION)"
            for n in range(len(values))
        ),
        *(["dp = dp * z"] if kernel.dropout else []),
        "rest = dp - dd[None, :]",
    ]
    if score is None:
        lines.append("ds = p * rest")
    else:
        key, row = (f"tl.arange(0, {n})" for n in kernel.tile)
        tile = Tile("tl", *kernel.tile, f"{key}[:, None]", row)
        lines += ["ds = slope * rest", *scatters(kernel.score, score, tile)]
    lines += [
        "ds = ds.to(q0.dtype)",
    ]
    for n, chunk in enumerate(wide):
        bounds = [] if chunk.whole else [f"(e{n}[None, :] < {kernel.width})"]
        address = f"dq_base + q_rows[:, None].to(tl.int64) * {kernel.width} + e{n}[None, :]"
        added = (
            f'tl.atomic_add({address}, dq, mask={" & ".join(["(q_rows[:, None] < q_len)", *bounds])}, sem="relaxed")'
        )
        lines += [
            f"dk{n} = tl.dot(ds, q{n}, dk{n}, input_precision=PRECISION)",
            f"dq = tl.dot(tl.trans(ds), k{n}, input_precision=PRECISION) * scale",
            added,
        ]
    return lines


def split_at_gradient(
    program: Program, score: Printed, statements: Sequence[str]
) -> tuple[list[str], list[str], list[str]]:
    """Statements before and after the gradient of the result: those that read ``grad`` come after.

    Derivatives are linear in ``grad``, which is ``p * rest``: they are evaluated at ``p``, which is known early, and
    the outputs multiplied by ``rest``.
    """
    after = {f"x{n}" for n, depends in enumerate(program.dependencies) if "grad" in depends}
    early, late = [], []
    for line in statements:
        (late if line.split(" = ")[0] in after else early).append(line)
    return early, late, score.outputs


def slopes_of(derivative: Derivative, outputs: list[str]) -> list[str]:
    """Gradients up to the factor ``rest``: ``slope`` of the score, ``slope0``, … of the scatters; 0 where ``p`` is."""
    named = {"slope": outputs[1]} | {f"slope{n}": outputs[s.value] for n, s in enumerate(derivative.scatters)}
    return [f"{name} = tl.where(p != 0, {value}, 0.0)" for name, value in named.items()]


@dataclass(frozen=True)
class Tile:
    """What additions to gradients of captured tensors need to know of a tile ``[keys, queries]``.

    Attributes:
        language: ``"tl"`` or ``"gl"``.
        keys: how many, where that is known here.
        rows: likewise.
        key: statements and name of the numbers of keys from 0, as the sums of diagonals want them.
        row: of queries.
        setup: statements before.
        lines: layouts of one row, and of one column, in which no thread holds an element twice; Triton finds its own.
    """

    language: str
    keys: int
    rows: int
    key: str
    row: str
    setup: tuple[str, ...] = ()
    lines: tuple[str, str] | None = None


def scatters(derivative: Derivative, printed: Printed, tile: Tile) -> list[str]:
    """Additions to the gradients of captured tensors; see :func:`split_at_gradient`."""
    program, outputs, language = derivative.program, printed.outputs, tile.language
    lines: list[str] = []
    depends = [program.dependencies[o] for o in program.outputs]
    for number, scatter in enumerate(derivative.scatters):
        indices = [outputs[i] for i in scatter.indices]
        on = frozenset().union(*(depends[i] for i in scatter.indices)) - {"b", "h"}
        value = f"t{number}"
        lines.append(f"{value} = slope{number} * rest")
        slanted = diagonal(derivative, scatter, printed.values)
        if slanted is not None:
            sizes = tile.keys, tile.rows
            lines += tile.setup
            lines += diagonal_sums(value, slanted, scatter.capture, BOX, *sizes, language, tile.key, tile.row)
            continue
        inside = []
        if not on:
            lines.append(f"{value} = {language}.sum({value})")
        elif on == {"q"}:
            lines.append(f"{value} = {language}.sum({value}, 0)[None, :]")
            inside.append("(q_rows[None, :] < q_len)")
        elif on == {"kv"}:
            lines.append(f"{value} = {language}.sum({value}, 1)[:, None]")
            inside.append("(kv_idx < kv_len)")
        else:
            inside.append("(p != 0)")
        offsets = []
        for dim, index in enumerate(indices):
            size = f"c{scatter.capture}_n{dim}"
            lines.append(f"{value}_{dim} = tl.where({index} < 0, {index} + {size}, {index})")
            inside.append(f"({value}_{dim} >= 0) & ({value}_{dim} < {size})")
            offsets.append(f"({value}_{dim}) * g{scatter.capture}_s{dim}")
        lines += [f"{value}_at = {' + '.join(offsets)}"] if offsets else []
        lines += [f"{value}_in = {' & '.join(inside)}"] if inside else []
        if tile.lines is not None and on in ({"q"}, {"kv"}):
            layout = tile.lines[on == {"kv"}]
            lines += [f"{name} = gl.convert_layout({name}, {layout})" for name in (value, f"{value}_at", f"{value}_in")]
        address = f"g{scatter.capture}" + (f" + {value}_at" if offsets else "")
        bounds = f", mask={value}_in" if inside else ""
        lines.append(f'{language}.atomic_add({address}, {value}{bounds}, sem="relaxed")')
    return lines


def _indent(lines: list[str], levels: int) -> list[str]:
    return ["    " * levels + line for line in lines]
