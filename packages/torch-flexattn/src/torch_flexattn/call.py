"""One attention call apart from its tensors of features, and the form in which an op carries it.

``torch.library`` schemas hold tensors, numbers and text. The programs travel as text, so an exported graph needs no
Python function to run; the numbers that a program is filled with travel in a tensor, so another number is no other
graph.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .block_mask import BlockMask
from .kernels.choose import Backend
from .kernels.launch.again import Again
from .masks_of_calls import block_mask_of
from .mods import MaskMod, ScoreMod
from .one_line import on_one_line, parts_of
from .options import KernelOptions
from .program import Program, parse

BLOCK = (128, 128)
"""Of block masks that are found here."""


@dataclass(frozen=True, eq=False)
class Call:
    """What is asked of a kernel.

    Attributes:
        mask: what is visible; ``None``: all. Kernels take blocks; the op finds those of a :class:`MaskMod`.
        score: modification of scores.
        scale: of the products.
        q_offset: what is added to the number of a query: one, or int ``[B]``.
        kv_lens: int ``[B]``: how many keys there are; those behind are never read.
        dropout_p: share of the softmax that is dropped.
        seed: of the dropout: a number, or an int64 tensor of one element, which kernels read from memory.
        check: whether reading a captured tensor out of range at a visible position is an error.
        want_max: whether the largest score of each row is asked for.
        backend: which kernels (see ``kernels.choose``).
        kernel_options: of those kernels; ``None``: none.
        descales: of 8-bit features: float32 ``[2, B, Hq]``, factors of the products and of the values.
        deterministic: whether two runs must give equal gradients, bit for bit.
        batch_invariant: whether outputs of a batch entry may not depend on the others, bit for bit.
        again: of a call that is going to be made again, what kernels know of that.
    """

    mask: BlockMask | MaskMod | None
    score: ScoreMod | None
    scale: float
    q_offset: Tensor | int = 0
    kv_lens: Tensor | None = None
    dropout_p: float = 0.0
    seed: int | Tensor = 0
    check: bool = True
    want_max: bool = False
    backend: Backend = "auto"
    kernel_options: KernelOptions | None = None
    descales: Tensor | None = None
    deterministic: bool = False
    batch_invariant: bool = False
    again: Again | None = None

    @property
    def captures(self) -> tuple[Tensor, ...]:
        """Tensors that the score modification captures: the ones that may need a gradient."""
        return () if self.score is None else self.score.captures

    def options(self) -> dict[str, Any]:
        """Keyword arguments of the kernels, but for those of the forward pass alone."""
        return {
            "mask": self.mask,
            "score": self.score,
            "scale": self.scale,
            "q_offset": self.q_offset,
            "kv_lens": self.kv_lens,
            "dropout_p": self.dropout_p,
            "seed": self.seed,
            "check": self.check,
        }


class Packed(NamedTuple):
    """A call as arguments of an op; see :func:`pack`.

    Attributes:
        runs: ``row_ptr`` and ``runs`` of the block mask, or nothing.
        captures: those of the score modification, then those of the mask.
        numbers: float64 on the CPU: scalars of both programs, the query offset and the seed where they are numbers.
        q_offset: where it is a tensor.
        kv_lens: as of the call.
        seed: where it is a tensor.
        descales: as of the call.
        layout: of a block mask: its shape, its block, whether it is listed, its room or -1. Apart from the program,
            since under a compiler lengths are open.
        program: both programs and the options of kernels, with blank lines between.
        scale: as of the call.
        dropout_p: as of the call.
        check: as of the call.
        backend: as of the call.
        deterministic: as of the call.
        batch_invariant: as of the call.
    """

    runs: list[Tensor]
    captures: list[Tensor]
    numbers: Tensor
    q_offset: Tensor | None
    kv_lens: Tensor | None
    seed: Tensor | None
    descales: Tensor | None
    layout: list[int]
    program: str
    scale: float
    dropout_p: float
    check: bool
    backend: Backend
    deterministic: bool
    batch_invariant: bool


def pack(call: Call, captures: Sequence[Tensor] | None = None) -> Packed:
    """The call as arguments of an op; ``captures`` stand for those of its score modification.

    Where its mask is a :class:`MaskMod` the op finds the blocks itself, so that lengths may change. Dynamo reads this.
    """
    mask, score = call.mask, call.score
    blocks = mask if isinstance(mask, BlockMask) else None
    mod = mask.mod if isinstance(mask, BlockMask) else mask
    given = call.q_offset if isinstance(call.q_offset, Tensor) else None
    offset = torch.tensor([call.q_offset if given is None else 0], dtype=torch.float64, device="cpu")
    drawn = call.seed if isinstance(call.seed, Tensor) else None
    seed = torch.tensor([call.seed if drawn is None else 0], dtype=torch.float64, device="cpu")
    return Packed(
        runs=[] if blocks is None else [blocks.row_ptr, blocks.runs],
        captures=[*(call.captures if captures is None else captures), *(() if mod is None else mod.captures)],
        numbers=torch.cat([*(part.numbers for part in (score, mod) if part is not None), offset, seed]),
        q_offset=given,
        kv_lens=call.kv_lens,
        seed=drawn,
        descales=call.descales,
        layout=[] if blocks is None else _layout(blocks),
        program=on_one_line(
            "" if score is None else score.program.text,
            "" if mod is None else mod.program.text,
            "" if call.kernel_options is None else call.kernel_options.text,
        ),
        scale=call.scale,
        dropout_p=call.dropout_p,
        check=call.check,
        backend=call.backend,
        deterministic=call.deterministic,
        batch_invariant=call.batch_invariant,
    )


def unpack(
    q: Tensor,
    k: Tensor,
    runs: Sequence[Tensor],
    captures: Sequence[Tensor],
    numbers: Tensor,
    q_offset: Tensor | None,
    kv_lens: Tensor | None,
    seed: Tensor | None,
    descales: Tensor | None,
    layout: Sequence[int],
    program: str,
    scale: float,
    dropout_p: float,
    check: bool,
    backend: Backend,
    deterministic: bool,
    batch_invariant: bool,
    want_max: bool = False,
) -> Call:
    """The call that :func:`pack` packed.

    Args:
        q: the queries.
        k: the keys.
        runs: as in :class:`Packed`; so are the others.
    """
    score, mask, kernel_options = programs(program)
    *scalars, offset, drawn = numbers.tolist()
    split = 0 if score is None else len(score.captures)
    first = 0 if score is None else len(score.scalars)
    gap = k.shape[2] - q.shape[2]
    of_mask = None if mask is None else MaskMod(mask, tuple(captures[split:]), _typed(mask, scalars[first:], gap))
    where = int(offset) if q_offset is None else q_offset
    blocks = None
    if layout:
        batches, heads, rows, keys, height, width, listed, room = layout
        shape, known = (batches, heads, rows, keys), None if room < 0 else room
        blocks = BlockMask(runs[0], runs[1], shape, (height, width), of_mask, bool(listed), known)
    elif of_mask is not None:
        batches, heads, rows, _ = q.shape
        blocks = block_mask_of(
            of_mask, (batches, heads, rows, k.shape[2]), BLOCK, q.device, where, check and kv_lens is None
        )
    return Call(
        mask=blocks,
        score=None if score is None else ScoreMod(score, tuple(captures[:split]), _typed(score, scalars[:first])),
        scale=scale,
        q_offset=where,
        kv_lens=kv_lens,
        dropout_p=dropout_p,
        seed=int(drawn) if seed is None else seed,
        check=check,
        want_max=want_max,
        backend=backend,
        kernel_options=kernel_options,
        descales=descales,
        deterministic=deterministic,
        batch_invariant=batch_invariant,
    )


def given(arguments: Sequence[Any]) -> Packed:
    """Arguments of an op as a :class:`Packed` call; AOTInductor's runtime hands over None for an empty list."""
    call = Packed(*arguments)
    return call._replace(runs=call.runs or [], captures=call.captures or [], layout=call.layout or [])


@functools.lru_cache(maxsize=1024)
def programs(text: str) -> tuple[Program | None, Program | None, KernelOptions | None]:
    """Of the score modification and of the mask, and the options, from the text of a :class:`Packed` call."""
    score, mask, options = parts_of(text)
    return (
        parse(score) if score else None,
        parse(mask) if mask else None,
        KernelOptions.parse(options) if options else None,
    )


def captured_by_score(text: str) -> int:
    """How many of the captures of a :class:`Packed` call are those of its score modification."""
    score, _, _ = programs(text)
    return 0 if score is None else len(score.captures)


def _layout(mask: BlockMask) -> list[int]:
    return [*mask.shape, *mask.block, int(mask.listed), -1 if mask.room is None else mask.room]


def _typed(program: Program, scalars: Sequence[float], gap: int = 0) -> tuple[int | float, ...]:
    """Scalars in their types; an integer that waits for the lengths is ``gap``, keys minus queries."""
    typed = zip(scalars, program.scalars, strict=True)
    return tuple((gap if math.isnan(s) else int(s)) if dtype.startswith("int") else s for s, dtype in typed)
