"""Stateless public operators."""

from .aggregate import edge_softmax, gather_dst, gather_src, sddmm, segment, spmm

__all__ = ["edge_softmax", "gather_dst", "gather_src", "sddmm", "segment", "spmm"]
