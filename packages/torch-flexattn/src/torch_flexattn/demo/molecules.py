"""Molecules as text: the SMILES strings that come with RDKit, packed into rows of equal length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

try:
    from rdkit import Chem, RDConfig, rdBase
except ImportError as error:
    raise ImportError("the demo reads molecules of RDKit: pip install 'torch-flexattn[rdkit]'") from error

FILE = ("NCI", "first_5K.smi")
END = "\n"
"""Begins and ends a molecule; also fills the rest of a row."""


def smiles() -> list[str]:
    """The first 4,999 molecules of the NCI's open database, each a SMILES string."""
    lines = Path(RDConfig.RDDataDir, *FILE).read_text(encoding="ascii").splitlines()
    return [line.split()[0] for line in lines if line.strip()]


def valid(strings: Sequence[str]) -> int:
    """How many strings are molecules: RDKit reads them, and they are not empty."""
    with rdBase.BlockLogs():  # it explains every string that it refuses
        return sum(bool(s) and Chem.MolFromSmiles(s) is not None for s in strings)


@dataclass(frozen=True, eq=False)
class Packed:
    """Molecules in rows.

    Attributes:
        tokens: int64 ``[rows, length + 1]``: numbers of characters; each predicts the one after it.
        document: int32 ``[rows, length]``: which molecule a character belongs to.
        place: int64 ``[rows, length]``: its place in the molecule.
        counted: bool ``[rows, length]``: whether the next character is the same molecule's, and so to be predicted.
    """

    tokens: Tensor
    document: Tensor
    place: Tensor
    counted: Tensor


def vocabulary(strings: Sequence[str]) -> dict[str, int]:
    """A number a character; :data:`END` is 0."""
    return {c: n for n, c in enumerate([END, *sorted(set("".join(strings)))])}


def pack(strings: Sequence[str], numbers: dict[str, int], length: int) -> Packed:
    """Whole molecules one after the other, a new row where the next one does not fit."""
    rows: list[list[str]] = [[]]
    used = 0
    for text in strings:
        if used + len(text) + 1 > length:
            rows.append([])
            used = 0
        rows[-1].append(text)
        used += len(text) + 1
    tokens = torch.zeros(len(rows), length + 1, dtype=torch.int64)
    document = torch.zeros(len(rows), length, dtype=torch.int32)
    place = torch.zeros(len(rows), length, dtype=torch.int64)
    counted = torch.zeros(len(rows), length, dtype=torch.bool)
    for r, row in enumerate(rows):
        start = 0
        for d, text in enumerate(row):
            stop = start + len(text) + 1  # END and the characters; the END after them begins the next molecule
            tokens[r, start:stop] = torch.tensor([numbers[c] for c in END + text])
            document[r, start:stop] = d
            place[r, start:stop] = torch.arange(stop - start)
            counted[r, start:stop] = True
            start = stop
        document[r, start:] = len(row)
        place[r, start:] = torch.arange(length - start)
    return Packed(tokens, document, place, counted)
