"""Samples of torch-flexattn for the conformance suite: tests/conformance/cases.py says what each function returns."""

from __future__ import annotations

from collections.abc import Callable

from .conformance_errors import bad_inputs
from .conformance_ops import ops

__all__ = ["bad_inputs", "extras", "ops"]


def extras() -> dict[str, Callable[[], object]]:
    """A call that needs each extra."""

    def molecules() -> object:
        from torch_flexattn.demo import molecules

        return molecules.smiles()

    def draw() -> object:
        import torch_flexattn.demo.pictures

        return torch_flexattn.demo.pictures

    return {"rdkit": molecules, "plot": draw}
