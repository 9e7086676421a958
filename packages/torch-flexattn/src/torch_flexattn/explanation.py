"""What a mask or a score modification is: its program beside the user's lines, what is made from it, its blocks."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from .analysis.boxes import Boxes
from .analysis.geometry import Geometry
from .analysis.interval import Truth
from .analysis.pyramid import Axis
from .analysis.sides import divide
from .build import block_size, create_block_mask
from .errors import InputError, KindError
from .evaluate import source
from .kernels.triton.printer import PLACES, Place, print_program
from .masks.lengths import with_lengths
from .mods import MaskLike, MaskMod, ScoreMod, mask_mod
from .reindex import Always, reindexed
from .shown import shows

WHERE: dict[Place, str] = {
    "once": "once a batch entry and head",
    "kept": "once a block of queries",
    "moving": "at every block of keys, once a key",
    "inner": "at every block of keys, once a pair",
}
INPUT_NAMES = {"b": "b", "h": "h", "q": "q_idx", "kv": "kv_idx", "score": "score"}
MOST_BLOCKS = 1 << 22
"""Blocks whose ranges are looked at."""


@dataclass(frozen=True)
class Decided:
    """What analysis says about the blocks of a mask, for batch entry 0 and head 0.

    Attributes:
        size: queries and keys.
        block: queries and keys of a block.
        blocks: how many there are.
        full: those that ranges of values show to be full: nobody looks at their positions.
        hidden: those that they show to be hidden.
        looked_at: those that stay open, so that positions have to be looked at.
        kinds: what looking shows these to be: partial, full and hidden.
    """

    size: tuple[int, int]
    block: tuple[int, int]
    blocks: int
    full: int
    hidden: int
    looked_at: int
    kinds: tuple[int, int, int]

    def __str__(self) -> str:
        partial, full, hidden = self.kinds
        blocks = f"{self.blocks:,} blocks of {self.block[0]} × {self.block[1]}"
        kinds = f"{partial:,} partial, {full:,} full, {hidden:,} hidden"
        return (
            f"{self.size[0]:,} queries × {self.size[1]:,} keys, {blocks}\n"
            f"decided from ranges of values: {self.full:,} full, {self.hidden:,} hidden\n"
            f"looked at, position by position: {self.looked_at:,} ({kinds})"
        )


@dataclass(frozen=True)
class Explanation:
    """What :func:`explain` found; ``print`` it.

    Attributes:
        kind: ``"mask"`` or ``"score"``.
        key: digest of the program: what is generated from it is found again by it.
        depends_on: of ``b``, ``h``, ``q``, ``kv``, ``score``, those that the result depends on.
        scalars: a line a number that is filled in at run time.
        captures: a line a captured tensor.
        program: a line an operation, with the user's line where it is known.
        lines: the user's lines, as ``file:line`` and their text (empty where the file is not at hand).
        pytorch: the generated function, for CPUs and for looking.
        triton: the generated statements of the Triton kernels, by where they stand.
        decided: what analysis says about the blocks, where lengths were given.

    Example:
        >>> from torch_flexattn import masks
        >>> print(explain(masks.causal()))
        mask: (b, h, q_idx, kv_idx) -> bool, program ...
        depends on kv, q: one block mask serves all batch entries and heads...
    """

    kind: Literal["mask", "score"]
    key: str
    depends_on: tuple[str, ...]
    scalars: tuple[str, ...]
    captures: tuple[str, ...]
    program: tuple[str, ...]
    lines: tuple[tuple[str, str], ...]
    pytorch: str
    triton: str
    decided: Decided | None = None

    def __str__(self) -> str:
        written = {"mask": "(b, h, q_idx, kv_idx) -> bool", "score": "(score, b, h, q_idx, kv_idx) -> score"}
        heading = f"{self.kind}: {written[self.kind]}, program {self.key}\n{self._dependence()}"
        parts = {
            "numbers, filled in at run time": self.scalars,
            "captured tensors": self.captures,
            "your lines": [f"{place}  {words}".rstrip() for place, words in self.lines],
            "program": self.program,
            "PyTorch": self.pytorch.splitlines(),
            "Triton statements": self.triton.splitlines(),
            "blocks": str(self.decided).splitlines() if self.decided else (),
        }
        return "\n\n".join([heading, *("\n    ".join([title, *lines]) for title, lines in parts.items() if lines)])

    def _dependence(self) -> str:
        on = f"depends on {', '.join(self.depends_on)}" if self.depends_on else "depends on nothing"
        if self.kind == "mask" and not {"b", "h"} & set(self.depends_on):
            return f"{on}: one block mask serves all batch entries and heads"
        return on


@shows("explanation")
def explain(
    mod: MaskLike | ScoreMod,
    q_len: int | None = None,
    kv_len: int | None = None,
    *,
    block: int | tuple[int, int] = 128,
) -> Explanation:
    """What a mask or a score modification is, what is generated from it, and which blocks analysis decides.

    The Triton statements are those that kernels are written around; whether this package has a kernel for a device is
    another question (``python -m torch_flexattn doctor`` answers it).

    Args:
        mod: a mask, a score modification, or a function ``(b, h, q_idx, kv_idx) -> bool``.
        q_len: queries, for :attr:`Explanation.decided`; of a mask.
        kv_len: keys; default: ``q_len``.
        block: queries and keys of a block, multiples of 16.

    Raises:
        InputError: lengths of a score modification; ``kv_len`` without ``q_len``; more than 2²² blocks.
        KindError: neither a mask nor a score modification.
        UnsupportedModError: a function that no kernel can evaluate.

    Example:
        >>> from torch_flexattn import masks
        >>> found = explain(masks.causal(), 2048)
        >>> found.depends_on, found.decided.looked_at
        (('kv', 'q'), 16)
        >>> print(found.triton)
        # at every block of keys, once a pair
        y2 = (q_idx >= kv_idx)...
        visible = y2

    Reference:
        FlexAttention (MLSys 2025), section 4, for what is generated from a mod.
    """
    if not isinstance(mod, ScoreMod) and not callable(mod):
        raise KindError(f"mod must be a mask, a score modification or a function, got {type(mod).__name__}")
    if q_len is None and kv_len is not None:
        raise InputError(f"kv_len goes with q_len, got kv_len={kv_len} alone")
    if isinstance(mod, ScoreMod):
        if q_len is not None:
            raise InputError(f"a score modification has no blocks: q_len is for masks, got {q_len}")
        return _explained(mod, None)
    mask = mask_mod(mod)
    blocks = None if q_len is None else decided(mask, q_len, q_len if kv_len is None else kv_len, block)
    return _explained(mask, blocks)


def _explained(made: MaskMod | ScoreMod, blocks: Decided | None) -> Explanation:
    program = made.program
    return Explanation(
        kind="score" if isinstance(made, ScoreMod) else "mask",
        key=program.key,
        depends_on=tuple(sorted(made.dependencies)),
        scalars=tuple(f"s{n}: {dtype} = {made.scalars[n]}" for n, dtype in enumerate(program.scalars)),
        captures=tuple(
            f"c{n}: {c.dtype} {list(c.shape)} on {c.device}{', needs a gradient' * c.requires_grad}".replace(
                "torch.", ""
            )
            for n, c in enumerate(made.captures)
        ),
        program=tuple(_operation(made, number) for number in range(len(program.nodes))),
        lines=tuple((place, _text_of(place)) for place in dict.fromkeys(n.line for n in program.nodes) if place),
        pytorch=source(program),
        triton=_statements(made),
        decided=blocks,
    )


def decided(mod: MaskMod, q_len: int, kv_len: int, block: int | tuple[int, int] = 128) -> Decided:
    """Which blocks of a mask, for batch entry 0 and head 0, ranges of values decide.

    Args:
        mod: the mask.
        q_len: queries.
        kv_len: keys.
        block: queries and keys of a block, multiples of 16.

    Raises:
        InputError: more than 2²² blocks, a length below 1.

    Example:
        >>> from torch_flexattn import masks
        >>> found = decided(masks.causal(), 1024, 1024)
        >>> found.full, found.hidden, found.kinds
        (28, 28, (8, 0, 0))
    """
    of_block = block_size(block)
    mod = with_lengths(reindexed(mod, {"b": Always(0), "h": Always(0)}), q_len, kv_len)
    mask = create_block_mask(mod, None, None, q_len, kv_len, BLOCK_SIZE=of_block)
    geometry = Geometry((1, 1, q_len, kv_len), of_block, mask.device)
    if not 0 < geometry.rows * geometry.columns <= MOST_BLOCKS:
        raise InputError(f"q_len and kv_len must make from 1 to {MOST_BLOCKS} blocks, got {q_len} and {kv_len}")
    truth = _truth(mod.to(mask.device), geometry)
    shape = (geometry.rows, geometry.columns)
    seen, unseen = (
        torch.as_tensor(x, device=mask.device).expand(1, *shape)[0] for x in (truth.can_be_true, truth.can_be_false)
    )
    looked_at, full, hidden = seen & unseen, seen & ~unseen, unseen & ~seen
    kinds = mask.kinds()[0, 0][looked_at]
    found = [int((kinds == kind).sum()) for kind in (1, 2, 0)]
    return Decided(
        size=(q_len, kv_len),
        block=of_block,
        blocks=geometry.rows * geometry.columns,
        full=int(full.sum()),
        hidden=int(hidden.sum()),
        looked_at=int(looked_at.sum()),
        kinds=(found[0], found[1], found[2]),
    )


def _truth(mod: MaskMod, geometry: Geometry) -> Truth:
    """What each block can be, from ranges alone."""
    axes = tuple(Axis(length, block, ()) for length, block in zip(geometry.shape[2:], geometry.block))
    planes = torch.zeros(1, dtype=torch.int64, device=geometry.device)
    sides = divide(mod.program, mod.scalars, geometry.shape)
    return Boxes(mod, sides, geometry, (axes[0], axes[1]), planes).run(0, None)


def _operation(mod: MaskMod | ScoreMod, number: int) -> str:
    node = mod.program.nodes[number]
    end = "  → result" if number in mod.program.outputs else ""
    return f"%{number} = {node}{f'  # {node.line}' if node.line else ''}{end}"


def _statements(mod: MaskMod | ScoreMod) -> str:
    """Triton, as the kernels hold it, by where it stands."""
    of_score = isinstance(mod, ScoreMod)
    printed = print_program(mod.program, "x" if of_score else "y", INPUT_NAMES)
    lines: list[str] = []
    for place in PLACES:
        if printed.lines[place]:
            lines += [f"# {WHERE[place]}", *printed.lines[place]]
    return "\n".join([*lines, f"{'score' if of_score else 'visible'} = {printed.outputs[0]}"])


def _text_of(place: str) -> str:
    """The line that ``file:line`` names; empty unless just one of the files that are loaded has the name."""
    name, _, number = place.rpartition(":")
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())} | set(linecache.cache)
    found = {file for file in files if isinstance(file, str) and Path(file).name == name}
    return linecache.getline(found.pop(), int(number)).strip() if len(found) == 1 else ""
