"""Is it right? Outputs of a runner against the reference, before anything is timed.

The relative error of an element is ``|out - ref| / (|ref| + rms(ref))``: relative for large elements, measured against
the typical size of the output for small ones, so that neither a wrong small row nor a division by zero can hide. One
number of that kind does not fit sums of very different lengths; for these a case gives a bound of every element.
"""

import torch

from benchmarks.case import Outputs

__all__ = ["as_tensors", "bound_share", "relative_error"]


def as_tensors(outputs: Outputs) -> list[torch.Tensor]:
    """The tensors of an output, detached."""
    tensors = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"a runner returns tensors, got {type(tensor).__name__}")
    return [tensor.detach() for tensor in tensors]


def relative_error(outputs: Outputs, reference: Outputs) -> float:
    """Largest relative error over all elements of all outputs; infinite where shapes, NaN or Inf differ.

    >>> relative_error(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]))  # 0.5 / (2 + sqrt(2.5))
    0.1396...
    """
    want = [tensor.double() for tensor in as_tensors(reference)]
    return bound_share(outputs, want, [ref.abs() + ref[ref.isfinite()].square().mean().sqrt() for ref in want])


def bound_share(outputs: Outputs, reference: Outputs, bound: Outputs) -> float:
    """Largest ``|out - ref| / bound`` over all elements of all outputs; infinite where shapes, NaN or Inf differ.

    A bound of 0 allows equality alone.

    >>> bound_share(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0]))
    0.5
    """
    got, want, allowed = as_tensors(outputs), as_tensors(reference), as_tensors(bound)
    if _shapes(allowed) != _shapes(want):
        raise ValueError(f"bound has shapes {_shapes(allowed)}, the reference {_shapes(want)}")
    if _shapes(got) != _shapes(want):
        return float("inf")
    return max(map(_share, got, want, allowed), default=0.0)


def _shapes(tensors: list[torch.Tensor]) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in tensors]


def _share(out: torch.Tensor, ref: torch.Tensor, bound: torch.Tensor) -> float:
    if ref.numel() == 0:
        return 0.0
    out, ref = out.to(ref.device, torch.float64), ref.to(torch.float64)
    finite = ref.isfinite()
    if not torch.equal(out.isfinite(), finite) or not torch.equal(out[~finite].isnan(), ref[~finite].isnan()):
        return float("inf")
    if not torch.equal(out[ref.isinf()], ref[ref.isinf()]):
        return float("inf")
    difference = (out[finite] - ref[finite]).abs()
    wrong = difference > 0
    if not wrong.any():
        return 0.0
    return (difference[wrong] / bound[finite][wrong]).max().item()
