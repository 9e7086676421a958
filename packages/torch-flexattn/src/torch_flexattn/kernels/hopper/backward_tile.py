"""What the backward kernels of Hopper share: their description, the warp that fetches, the softmax of a tile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...differentiate import Derivative
from ...program import Program
from ..triton.chunks import Chunk, chunks
from ..triton.printer import Printed, print_program, scores_of
from ..triton.scatters import Tile
from ..triton.score_gradient import BOX, slopes_of, split_at_gradient
from .tangents import BACKWARD

GROUPS = 2
"""Groups of warps that multiply."""
KEYS = 64
"""Of a tile of scores."""
HERE = "here = n >> 31"
"""0, which the compiler cannot know: it keeps no addresses of keys in registers from tile to tile."""


@dataclass(frozen=True)
class Backward:
    """What a backward kernel is compiled from.

    Attributes:
        width: features of queries and keys.
        value_width: features of values.
        rows: queries of a tile: 64, or 128.
        score: the derivative of the score modification, or ``None``.
        mask: the mask of partial blocks, or ``None``: every block is full.
        offsets: the numbers of queries begin elsewhere in each batch entry.
    """

    width: int
    value_width: int
    rows: int
    score: Derivative | None = None
    mask: Program | None = None
    offsets: bool = False

    @property
    def programs(self) -> tuple[Program, ...]:
        return tuple(p for p in (None if self.score is None else self.score.program, self.mask) if p is not None)


HEADER = '''"""Written by torch-flexattn: attention backward on Hopper."""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from torch_flexattn.kernels.hopper.words import add_shared_to_global, wait_for_group
from torch_flexattn.kernels.hopper.arithmetic import quick_tanh, tanh
from torch_flexattn.kernels.hopper.schedule import placed
from torch_flexattn.kernels.triton.arithmetic import floor_div, floor_mod, power, round_half_even


@gluon.jit
def fetch(
    {descs}, {smems}, kv_ready, q_ready, q_free, do_ready, do_free, col_ptr, runs, mask_sb, mask_sh, b, bk, hk, col0,
    group, q_len, MASK_M: gl.constexpr, MASK_N: gl.constexpr, Q_STAGES: gl.constexpr, DO_STAGES: gl.constexpr,
):
    BLOCK_M: gl.constexpr = {rows}
{kv_fetches}
    turn = 0
    for member in range(group):
        h = hk * group + member
        mask_col = b * mask_sb + h * mask_sh + col0 // MASK_N
        for run in range(gl.load(col_ptr + mask_col), gl.load(col_ptr + mask_col + 1)):
            begin = gl.load(runs + run * 2) * MASK_M
            stop = gl.minimum((gl.load(runs + run * 2 + 1) >> 1) * MASK_M, q_len)
            for n in range(begin, stop, BLOCK_M):
{fetches}
                turn += 1

'''


@dataclass(frozen=True)
class Part:
    """Features of a chunk, for queries of a tile.

    Attributes:
        chunk: number of the chunk.
        start: first feature in the chunk.
        size: features.
        row: first query in the tile.
    """

    chunk: int
    start: int
    size: int
    row: int = 0


Operand = tuple[str, int, Chunk]


def operands_of(kernel: Backward) -> list[Operand]:
    """What is fetched, chunk by chunk, in the order of the arguments."""
    wide, values = chunks(kernel.width), chunks(kernel.value_width)
    return [
        (name, n, c) for name, of in (("q", wide), ("do", values), ("k", wide), ("v", values)) for n, c in enumerate(of)
    ]


def bytes_of(operands: Iterable[Operand]) -> str:
    return " + ".join(f"{name}_desc{n}.block_type.nbytes" for name, n, _ in operands)


def copy_of(operand: Operand, place: str, bar: str, to: str) -> str:
    name, n, chunk = operand
    return f"tma.async_copy_global_to_shared({name}_desc{n}, [{place}, {chunk.start}], {bar}, {to})"


RINGS = {"q": "Q_STAGES, ", "do": "DO_STAGES, "}
"""First dimension in shared memory of what is fetched tile by tile."""


def slot_of(name: str) -> tuple[str, str]:
    """Place in its ring, and phase of its barriers, of a tile."""
    stages = f"{name.upper()}_STAGES"
    return f"turn % {stages}", f"turn // {stages} & 1"


def fetch_of(name: str, operands: Iterable[Operand]) -> list[str]:
    """Statements that fetch a tile of queries (``q``) or of output gradients (``do``) when its place is free."""
    of = [o for o in operands if o[0] == name]
    slot, phase = slot_of(name)
    return [
        f"mbarrier.wait({name}_free.index({slot}), {phase} ^ 1)",
        f"mbarrier.expect({name}_ready.index({slot}), {bytes_of(of)})",
        *(copy_of(o, "b, h, n", f"{name}_ready.index({slot})", f"{name}_smem{o[1]}.index({slot})") for o in of),
    ]


def printed(kernel: Backward) -> tuple[Printed | None, Printed | None]:
    """The programs of the score and of the mask."""
    names = {"b": "b", "h": "h", "q": "q_idx", "kv": "kv_idx", "score": "score", "grad": "grad"}
    if kernel.score is None:
        return None, None if kernel.mask is None else print_program(kernel.mask, "y", names, box=BOX, kept="kv")
    program = kernel.score.program
    score = print_program(program, "x", names, box=BOX, kept="kv", words=BACKWARD)
    first = (len(program.captures), len(program.scalars))
    return score, None if kernel.mask is None else print_program(kernel.mask, "y", names, first, BOX, "kv")


def once(score: Printed | None, mask: Printed | None) -> list[str]:
    """Statements of both that do not depend on the query."""
    return [line for found in (score, mask) if found is not None for line in found.outside]


def numbers(kernel: Backward, first: str = "n") -> list[str]:
    """Numbers of the queries of a tile."""
    offset = "gl.load(q_offsets + b)" if kernel.offsets else "q_offset"
    return [
        "places = gl.arange(0, BLOCK_M, QUERY)",
        f"q_rows = {first} + places",
        f"q_first = {first} + {offset}",
        "q_places = places.to(gl.int64)[None, :]",
        f"q_idx = q_rows[None, :] + {offset}",
    ]


def read_rows(name: str, pointer: str, other: str, first: str = "n") -> list[str]:
    """A number of each query of a tile."""
    at = f"{pointer} + (l_base + {first}) + places"
    return [
        "if WHOLE_M:",
        f"    {name} = gl.load({at})",
        "else:",
        f"    {name} = gl.load({at}, mask=q_rows < q_len, other={other})",
    ]


def weigh(kernel: Backward, score: Printed | None, mask: Printed | None) -> list[str]:
    """From products ``qk`` and ``lse`` to weights ``p`` and, of a modification, its derivatives up to ``rest``."""
    zero = "gl.zeros([BLOCK_N, BLOCK_M], gl.float32, SCORES)"
    late: list[str] = []
    if score is None:
        lines = ["s = qk * (scale * LOG2E)"]
    else:
        assert kernel.score is not None
        early, late, outputs = split_at_gradient(kernel.score.program, score, score.lines["inner"])
        lines = ["score = qk * scale", *early, f"s = {scores_of(kernel.score.program, outputs[0], zero)} * LOG2E"]
        late = ["grad = p", *late, *slopes_of(kernel.score, outputs)]
    bounds = "(q_rows[None, :] < q_len) & (kv_idx < kv_len)"
    edge = ["if not (WHOLE_M and WHOLE_N):", f'    s = gl.where({bounds}, s, float("-inf"))']
    if mask is not None:
        hidden = f's = gl.where({mask.outputs[0]}, s, float("-inf"))'
        lines += ["if code & 1 == 0:", *indent([*mask.inside, hidden], 1)]
    lines += edge
    return [*lines, "p = gl.exp2(s - lse[None, :])", "weights = p.to(TYPE)", *late]


def turned(rows: int) -> Tile:
    """A tile of ``rows`` queries; its diagonals are summed by threads that hold a column of it."""
    threads = 32 * 4
    columns = min(rows, threads)
    layout = (
        f"gl.BlockedLayout([{KEYS * columns // threads}, 1], [1, 32], [{threads // columns}, {columns // 32}], [1, 0])"
    )
    return Tile(
        "gl", KEYS, rows, "turned_keys", "turned_rows",
        (
            f"TURNED: gl.constexpr = {layout}",
            f"turned_keys = gl.arange(0, {KEYS}, gl.SliceLayout(1, TURNED))[:, None]",
            f"turned_rows = gl.arange(0, {rows}, gl.SliceLayout(0, TURNED))",
        ),
        ("gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0])", "gl.BlockedLayout([1, 1], [32, 1], [4, 1], [0, 1])"),
    )  # fmt: skip


def indent(lines: Iterable[str], levels: int) -> list[str]:
    return ["    " * levels + line for line in lines]
