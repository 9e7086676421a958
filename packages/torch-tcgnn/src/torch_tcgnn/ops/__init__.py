"""Operators of the namespace ``torch.ops.torch_tcgnn``: schema, fake kernel, autograd formula, kernels bound.

SpMM and SDDMM differentiate into each other, so the pair is closed: any order of derivative works.
"""

from . import attention, edge_softmax, extremum, products, segment

__all__ = ["attention", "edge_softmax", "extremum", "products", "segment"]
