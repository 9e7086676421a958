"""Stateless public operators."""

from .aggregate import edge_softmax, gather_dst, gather_src, sddmm, segment, spmm
from .attention import cosine_attention, dot_attention, gat_attention, gatv2_attention
from .explain import Explanation, explain

__all__ = [
    "Explanation",
    "cosine_attention",
    "dot_attention",
    "edge_softmax",
    "explain",
    "gat_attention",
    "gather_dst",
    "gather_src",
    "gatv2_attention",
    "sddmm",
    "segment",
    "spmm",
]
