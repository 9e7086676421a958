"""How far a sum may lie from the float64 answer, element by element.

A sum of d products whose magnitudes add up to S may be off by ``(2⁻²⁰ + 2⁻²² √d) · S`` when it is accumulated in
float32, in whatever order: 16 roundings of 2⁻²⁴, and 4 √d for errors that add up at random. S and d are those of the
element: of a row of A for ``A · x``, of a column for the gradient of ``x``, of the feature width for a dot product.
Ours and the peers alike stay below a sixth of that on the real graphs, whose rows have up to 9,458 terms; measured
against the result instead, which cancels in a long row, their errors differ by a hundred times between rows.

What else is rounded comes on top: operands to TF32, ``x`` alone (2⁻¹¹ · S) or weights too (2⁻¹⁰ · S); the output to
float16. Operands in float16 are exact.
"""

from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.case import Math
from benchmarks.torch_tcgnn import oracle
from benchmarks.torch_tcgnn.tasks import Task

ONCE, AT_RANDOM = 2.0**-20, 2.0**-22
TF32_X, TF32_BOTH = 2.0**-11, 2.0**-10
FP16, FP16_SMALLEST = 2.0**-11, 2.0**-25  # half a unit in the last place: relative, and below the normal numbers

__all__ = ["sddmm", "spmm", "spmm_backward", "spmm_in_fp16"]


def _magnitudes(task: Task) -> Task:
    """The task whose sums are S."""
    weight = None if task.weight is None else task.weight.abs()
    return replace(task, x=task.x.abs(), y=task.y.abs(), grad=task.grad.abs(), weight=weight)


def _rounding(terms: Tensor) -> Tensor:
    """The factor of S for sums of so many terms, in float32."""
    return ONCE + AT_RANDOM * terms.double().sqrt()


def _terms(task: Task, end: int) -> Tensor:
    """``[N, 1]`` edges that end (1) or begin (0) at each node."""
    return torch.bincount(task.edge_index[end], minlength=task.num_nodes).unsqueeze(1)


def spmm(task: Task, math: Math = "fp32") -> Tensor:
    """Of ``A · x`` by float32 sums; ``math`` says to what operands (tf32) or the output (fp16) may be rounded."""
    size = oracle.spmm(_magnitudes(task))
    bound = _rounding(_terms(task, 1)) * size
    if math == "tf32":
        return bound + (TF32_X if task.weight is None else TF32_BOTH) * size
    if math == "fp16":
        return bound + FP16 * oracle.spmm(task).abs() + FP16_SMALLEST * (size > 0)
    return bound


def spmm_backward(task: Task) -> tuple[Tensor, Tensor]:
    """Of ``A · x`` and ``Aᵀ · grad``."""
    out, gradient = oracle.spmm_backward(_magnitudes(task))
    return _rounding(_terms(task, 1)) * out, _rounding(_terms(task, 0)) * gradient


def spmm_in_fp16(task: Task) -> Tensor:
    """Of ``A · x`` by sums that are rounded to float16 after every addition, with errors that add up at random."""
    size = oracle.spmm(_magnitudes(task))
    return FP16 * (1 + _terms(task, 1).double().sqrt()) * size + FP16_SMALLEST * (size > 0)


def sddmm(task: Task) -> Tensor:
    """Of ``<x[target], y[source]>``."""
    return _rounding(torch.tensor(task.x.shape[1])) * oracle.sddmm(_magnitudes(task))
