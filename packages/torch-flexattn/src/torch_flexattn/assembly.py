"""One program from several: how masks and score modifications are put together."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from .filled import Mod
from .program import Builder, Program


class Assembly:
    """Puts mods together into one program: a tensor that several capture is captured once."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.captures: list[Tensor] = []
        self.scalars: list[int | float] = []

    def append(self, mod: Mod, filled: Mapping[int, int] | None = None, /, **replaced: int) -> list[int]:
        """Add the nodes of ``mod``; the numbers of its outputs.

        ``replaced``: nodes that stand for its inputs; ``filled``: for its scalars.
        """
        captures = []
        for tensor, spec in zip(mod.captures, mod.program.captures, strict=True):
            places = [n for n, known in enumerate(self.captures) if known is tensor]
            if not places:
                places = [len(self.captures)]
                self.captures.append(tensor)
                self.builder.captures.append(spec)
            captures.append(places[0])
        first = len(self.scalars)
        self.scalars += mod.scalars
        self.builder.scalars += mod.program.scalars
        scalars = range(first, len(self.scalars))
        return self.builder.inline(mod.program, captures, scalars, replaced, filled)

    def number(self, value: int) -> int:
        """The node of an integer that is filled in at run time."""
        self.scalars.append(value)
        self.builder.scalars.append("int32")
        return self.builder.add("scalar", "int32", value=len(self.scalars) - 1)

    def gather(self, table: Tensor, *indices: int) -> int:
        """The node of an entry of an int32 tensor, captured for it."""
        self.captures.append(table)
        self.builder.captures.append(("int32", table.dim()))
        return self.builder.add("gather", "int32", *indices, value=len(self.captures) - 1)

    def finish(self, *outputs: int) -> tuple[Program, tuple[Tensor, ...], tuple[int | float, ...]]:
        """What a mod is made of: the program with these nodes as results, and what fills its places."""
        return self.builder.finish(outputs), tuple(self.captures), tuple(self.scalars)
