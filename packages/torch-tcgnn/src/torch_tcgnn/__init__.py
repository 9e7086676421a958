"""Sparse GNN computation on tensor cores: SpMM, SDDMM, fused attention, drop-in layers, one-line acceleration."""

from . import reference, sgt
from .functional import edge_softmax, gather_dst, gather_src, sddmm, segment, spmm
from .graph import TCGraph
from .stats import GraphStats

__version__ = "0.1.0"

__all__ = [
    "GraphStats",
    "TCGraph",
    "edge_softmax",
    "gather_dst",
    "gather_src",
    "reference",
    "sddmm",
    "segment",
    "sgt",
    "spmm",
]
