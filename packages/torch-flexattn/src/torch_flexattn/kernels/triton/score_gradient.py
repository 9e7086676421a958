"""Statements that recompute the weights of a tile ``[keys, queries]`` and the gradient of its scores.

Both backward kernels consist of them: the one whose programs own keys, and the one whose programs own queries. They
read ``q0, …``, ``k0, …``, ``v0, …``, ``do0, …`` (chunks of features of the tile's rows), ``lse`` and ``dd`` of the
queries, and the places of the tile; what they do with ``p`` and ``ds`` is their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...differentiate import Derivative
from ...program import Program
from .chunks import chunks
from .printer import Printed, Side, print_program, scores_of
from .slanted import Box


@dataclass(frozen=True)
class Gradient:
    """What a kernel is compiled from that needs the gradient of scores.

    Attributes:
        width: features of queries and keys.
        value_width: features of values.
        tile: keys and queries of a tile.
        score: the derivative of the score modification, or ``None``.
        mask: the mask of partial blocks, or ``None``: every block is full.
        lens: keys are bounded for each batch entry.
        offsets: the numbers of queries begin elsewhere in each batch entry.
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


def printed(kernel: Gradient, kept: Side) -> tuple[Printed | None, Printed | None]:
    """The derivative of the score modification, and the mask, as statements."""
    names = {"b": "b", "h": "h", "q": "q_idx", "kv": "kv_idx", "score": "score", "grad": "grad"}
    score = None if kernel.score is None else print_program(kernel.score.program, "x", names, box=BOX, kept=kept)
    first = (0, 0)
    if kernel.score is not None:
        first = (len(kernel.score.program.captures), len(kernel.score.program.scalars))
    mask = None if kernel.mask is None else print_program(kernel.mask, "y", names, first, BOX, kept)
    return score, mask


def weights(kernel: Gradient, score: Printed | None, mask: Printed | None) -> list[str]:
    """``p``, the softmax, and with dropout ``z``, the factors of its elements."""
    lines: list[str] = []
    for n in range(len(chunks(kernel.width))):
        lines.append(f"qk = tl.dot(k{n}, tl.trans(q{n}){', qk' if n else ''}, input_precision=PRECISION)")
    late: list[str] = []
    if kernel.score is None or score is None:
        lines.append("s = qk * (scale * LOG2E)")
    else:
        early, late, outputs = split_at_gradient(kernel.score.program, score, score.inside)
        modified = scores_of(kernel.score.program, outputs[0], "tl.zeros([BLOCK_N, BLOCK_M], tl.float32)")
        lines += ["score = qk * scale", *early, f"s = {modified} * LOG2E"]
        late = ["grad = p", *late, *slopes_of(kernel.score, outputs)]
    bounds = "(q_rows[None, :] < q_len) & (kv_idx < kv_end)"
    edge = "True" if kernel.lens else "not (WHOLE_M and WHOLE_N)"
    outside = [f"if {edge}:", f'    s = tl.where({bounds}, s, float("-inf"))']
    if mask is None:
        lines += outside
    else:
        hidden = f's = tl.where({mask.outputs[0]} & {bounds}, s, float("-inf"))'
        lines += ["if (code & 1) == 0:", *indent([*mask.inside, hidden], 1), "else:", *indent(outside, 1)]
    dropped = ["z = tl.where(keep_transposed(seed, b, h, q_idx, kv_idx, limit), kept, 0.0)"] * kernel.dropout
    return [*lines, "p = tl.exp2(s - lse[None, :])", *late, *dropped]


def gradient(kernel: Gradient) -> list[str]:
    """``ds``, the gradient of the scores, after :func:`weights`; ``rest`` is what gradients of captures need."""
    return [
        *(
            f"dp = tl.dot(v{n}, tl.trans(do{n}){', dp' if n else ''}, input_precision=PRECISION)"
            for n in range(len(chunks(kernel.value_width)))
        ),
        *["dp = dp * z"] * kernel.dropout,
        "rest = dp - dd[None, :]",
        "ds = p * rest" if kernel.score is None else "ds = slope * rest",
    ]


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


def indent(lines: Sequence[str], levels: int) -> list[str]:
    """Statements, further inside."""
    return ["    " * levels + line for line in lines]
