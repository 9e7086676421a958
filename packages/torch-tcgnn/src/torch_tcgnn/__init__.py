"""Sparse GNN computation on tensor cores: SpMM, SDDMM, fused attention, drop-in layers, one-line acceleration."""

from typing import TYPE_CHECKING

from . import cache, nn, reference, sgt, transforms
from .accelerate import AccelerateError, LayerReport, Report, accelerate, report, restore
from .cache import CacheInfo, TCGraphCache
from .functional import (
    Explanation,
    cosine_attention,
    dot_attention,
    edge_softmax,
    explain,
    gat_attention,
    gather_dst,
    gather_src,
    gatv2_attention,
    sddmm,
    segment,
    spmm,
)
from .graph import TCGraph
from .interop import as_graph, from_batch, from_dgl, from_scipy, from_sparse, from_torch_sparse
from .stats import GraphStats

if TYPE_CHECKING:
    from . import data as data
    from . import lightning as lightning
else:
    from .on_demand import __getattr__ as __getattr__

__version__ = "0.1.0"

__all__ = [
    "AccelerateError",
    "CacheInfo",
    "Explanation",
    "GraphStats",
    "LayerReport",
    "Report",
    "TCGraph",
    "TCGraphCache",
    "accelerate",
    "as_graph",
    "cache",
    "cosine_attention",
    "dot_attention",
    "edge_softmax",
    "explain",
    "from_batch",
    "from_dgl",
    "from_scipy",
    "from_sparse",
    "from_torch_sparse",
    "gat_attention",
    "gather_dst",
    "gather_src",
    "gatv2_attention",
    "nn",
    "reference",
    "report",
    "restore",
    "sddmm",
    "segment",
    "sgt",
    "spmm",
    "transforms",
]
