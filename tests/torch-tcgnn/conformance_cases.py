"""Samples of torch-tcgnn for the conformance suite: see tests/conformance/cases.py for what each function returns."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import torch
import torch_tcgnn as tcg
from torch_tcgnn import data

from .conformance_callbacks import callbacks
from .conformance_errors import bad_inputs
from .conformance_layers import modules
from .conformance_ops import ops

__all__ = ["bad_inputs", "callbacks", "extras", "modules", "ops"]


def extras() -> dict[str, Callable[[], object]]:
    """A call that needs each extra."""
    edge_index = torch.tensor([[0, 1], [1, 0]])

    def rcm() -> object:
        return tcg.TCGraph.from_edge_index(edge_index, 2, reorder="rcm").blocks

    def download() -> object:
        with tempfile.TemporaryDirectory() as folder:
            return data.planetoid("cora", folder, download=True)

    def sparse_tensor() -> str | None:
        try:
            tcg.from_torch_sparse(edge_index)
        except TypeError as error:
            return str(error)

    def draw() -> object:
        import torch_tcgnn.demo.pictures

        return torch_tcgnn.demo.pictures

    def use_lightning() -> object:
        import torch_tcgnn.lightning

        return torch_tcgnn.lightning

    def gpu_kernel() -> object:
        from torch_tcgnn.kernels import choose

        return choose.edge_softmax(tcg.TCGraph.from_edge_index(edge_index, 2).adjacency, torch.ones(2))

    def compiler() -> str | None:
        from torch_tcgnn.kernels.cuda import nvrtc

        return nvrtc.unavailable()

    return {
        "data": data.digits,
        "rdkit": lambda: data.nci(molecules=1),
        "scipy": rcm,
        "pyg": download,
        "pyg-sparse": sparse_tensor,
        "plot": draw,
        "lightning": use_lightning,
        "triton": gpu_kernel,
        "cuda": compiler,
    }
