"""Molecules of the National Cancer Institute's open database as one batch: data that comes with RDKit.

RDKit's wheel holds the first 4,999 structures as SMILES (``NCI/first_5K.smi`` in its data folder). Atoms are nodes,
bonds are edges in both directions; hydrogens are counted at their atoms, not drawn.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..graph_arguments import check_count
from .graph_data import GraphData

ELEMENTS = ("C", "N", "O", "F", "Si", "P", "S", "Cl", "Br", "I")
"""One column each in ``x``; every other element shares the next."""
BONDS = ("SINGLE", "AROMATIC", "DOUBLE", "TRIPLE")
"""RDKit's names of bonds, one column each in ``edge_attr``; every other kind shares the next."""


def nci(*, molecules: int | None = None) -> GraphData:
    """Load the molecules that come with RDKit as one block-diagonal batch.

    Args:
        molecules: how many, from the start of the file; default: all that RDKit reads, 4,991 with RDKit 2026.9.1.

    Returns:
        :class:`GraphData` with a ``batch`` vector and no classes. Edges are sorted by target, then source. ``x``
        ``[N, 14]``: the element one-hot (:data:`ELEMENTS`, then all others), formal charge, hydrogens, and 1 for an
        aromatic atom. ``edge_attr`` ``[E, 5]``: the kind of bond one-hot (:data:`BONDS`, then all others).

    Raises:
        ImportError: RDKit is missing.
        FileNotFoundError: this build of RDKit comes without its data folder.
        TypeError: ``molecules`` that is no integer.
        ValueError: ``molecules`` below 1, or more than there are.

    Warns:
        UserWarning: RDKit cannot read some SMILES (it refuses atoms with too many bonds); how many and which lines.

    Example:
        >>> graph = nci(molecules=100)
        >>> graph, graph.x.shape, graph.edge_attr.shape
        (GraphData(nci: 100 graphs, 1620 nodes, 3418 edges), torch.Size([1620, 14]), torch.Size([3418, 5]))
    """
    if molecules is not None:
        check_count("molecules", molecules, least=1)
    try:
        from rdkit import Chem, RDConfig, rdBase
    except ImportError as error:
        raise ImportError("the molecules come with RDKit: pip install 'torch-tcgnn[rdkit]'") from error
    path = Path(RDConfig.RDDataDir, "NCI", "first_5K.smi")
    if not path.is_file():
        raise FileNotFoundError(f"this RDKit comes without its molecules ({path}); the wheel on PyPI has them")
    read: list[Any] = []
    skipped: list[int] = []
    with open(path, encoding="ascii") as file, rdBase.BlockLogs():  # RDKit reports unreadable SMILES on stderr
        for number, line in enumerate(file, 1):
            if len(read) == molecules:
                break
            molecule = Chem.MolFromSmiles(line.split()[0])
            if molecule is None:
                skipped.append(number)
            else:
                read.append(molecule)
    if molecules is not None and len(read) < molecules:
        raise ValueError(f"molecules must be at most {len(read)}, the number RDKit reads in {path}, got {molecules}")
    if skipped:
        lines = ", ".join(map(str, skipped[:10])) + (", …" if len(skipped) > 10 else "")
        warnings.warn(
            f"nci: RDKit cannot read {len(skipped)} of {len(read) + len(skipped)} SMILES, they are left out "
            f"(lines {lines} of {path.name})",
            stacklevel=2,
        )
    return _batch(read)


def _batch(molecules: list[Any]) -> GraphData:
    """One graph of RDKit's molecules, in their order."""
    atoms = [
        (_place(ELEMENTS, atom.GetSymbol()), atom.GetFormalCharge(), atom.GetTotalNumHs(), atom.GetIsAromatic())
        for molecule in molecules
        for atom in molecule.GetAtoms()
    ]
    sizes = np.array([molecule.GetNumAtoms() for molecule in molecules])
    first = (sizes.cumsum() - sizes).tolist()
    bonds = [
        (start + bond.GetBeginAtomIdx(), start + bond.GetEndAtomIdx(), _place(BONDS, bond.GetBondType().name))
        for start, molecule in zip(first, molecules)
        for bond in molecule.GetBonds()
    ]
    element, *numbers = torch.tensor(atoms, dtype=torch.int64).view(-1, 4).unbind(1)
    begin, end, kind = torch.tensor(bonds, dtype=torch.int64).view(-1, 3).unbind(1)
    source, target, kind = torch.cat([begin, end]), torch.cat([end, begin]), torch.cat([kind, kind])
    order = (target * len(atoms) + source).argsort()
    one_hot = torch.nn.functional.one_hot
    return GraphData(
        edge_index=torch.stack([source, target])[:, order],
        num_nodes=len(atoms),
        name="nci",
        x=torch.cat([one_hot(element, len(ELEMENTS) + 1), torch.stack(numbers, dim=1)], dim=1).to(torch.float32),
        edge_attr=one_hot(kind[order], len(BONDS) + 1).to(torch.float32),
        batch=torch.arange(len(molecules)).repeat_interleave(torch.from_numpy(sizes)),
    )


def _place(names: tuple[str, ...], name: str) -> int:
    """Where ``name`` stands in ``names``; behind them where it does not."""
    return names.index(name) if name in names else len(names)
