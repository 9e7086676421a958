"""Texts of programs and options as one argument of an operator, on one line.

Inductor writes the arguments of operators into comments of what it generates, and, in PyTorch 2.11, does not mind their
line ends.
"""

from __future__ import annotations

LINE, PART = "; ", " | "


def on_one_line(*parts: str) -> str:
    """Several texts as one.

    Example:
        >>> on_one_line("captures\\nscalars", "")
        'captures; scalars | '
    """
    return PART.join(part.replace("\n", LINE) for part in parts)


def parts_of(text: str) -> list[str]:
    """The texts that :func:`on_one_line` was given.

    Example:
        >>> parts_of("captures; scalars | ")
        ['captures\\nscalars', '']
    """
    return [part.replace(LINE, "\n") for part in text.split(PART)]
