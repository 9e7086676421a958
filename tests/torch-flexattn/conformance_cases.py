"""Samples of torch-flexattn for the conformance suite: tests/conformance/cases.py says what each function returns."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch_flexattn import flex_attention

from tests.conformance.cases import BadInputCase

from .conformance_callbacks import callbacks
from .conformance_errors import bad_inputs as bad_calls
from .conformance_layer_errors import layer_errors
from .conformance_layers import modules
from .conformance_ops import ops

__all__ = ["bad_inputs", "callbacks", "extras", "modules", "ops"]


def bad_inputs() -> list[BadInputCase]:
    """One wrong call or more of everything public that raises."""
    return [*bad_calls(), *layer_errors()]


def extras() -> dict[str, Callable[[], object]]:
    """A call that needs each extra."""

    def molecules() -> object:
        from torch_flexattn.demo import molecules

        return molecules.smiles()

    def draw() -> object:
        import torch_flexattn.demo.pictures

        return torch_flexattn.demo.pictures

    def callback() -> object:
        import torch_flexattn.lightning

        return torch_flexattn.lightning.AttentionMonitor()

    def gpu_kernels() -> object:
        q = torch.zeros(1, 1, 2, 4)
        try:
            return flex_attention(q, q, q, backend="triton", check=False)
        except NotImplementedError as error:
            return str(error)

    return {"rdkit": molecules, "plot": draw, "lightning": callback, "triton": gpu_kernels}
