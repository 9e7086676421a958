"""Is it right? Outputs of a runner against the reference, before anything is timed.

The error of an element is ``|out - ref| / (|ref| + rms(ref))``: relative for large elements, measured against the
typical size of the output for small ones, so that neither a wrong small row nor a division by zero can hide.
"""

import torch

from benchmarks.case import Outputs

__all__ = ["as_tensors", "relative_error"]


def as_tensors(outputs: Outputs) -> list[torch.Tensor]:
    """The tensors of an output, detached."""
    tensors = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"a runner returns tensors, got {type(tensor).__name__}")
    return [tensor.detach() for tensor in tensors]


def relative_error(outputs: Outputs, reference: Outputs) -> float:
    """Largest error over all elements of all outputs; infinite where shapes, NaN or Inf differ.

    >>> relative_error(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]))  # 0.5 / (2 + sqrt(2.5))
    0.1396...
    """
    got, want = as_tensors(outputs), as_tensors(reference)
    if [tensor.shape for tensor in got] != [tensor.shape for tensor in want]:
        return float("inf")
    return max((_error(a, b) for a, b in zip(got, want, strict=True)), default=0.0)


def _error(out: torch.Tensor, ref: torch.Tensor) -> float:
    if ref.numel() == 0:
        return 0.0
    out, ref = out.to(ref.device, torch.float64), ref.to(torch.float64)
    finite = ref.isfinite()
    if not torch.equal(out.isfinite(), finite) or not torch.equal(out[~finite].isnan(), ref[~finite].isnan()):
        return float("inf")
    if not torch.equal(out[ref.isinf()], ref[ref.isinf()]):
        return float("inf")
    out, ref = out[finite], ref[finite]
    difference = (out - ref).abs()
    if not difference.any():
        return 0.0
    return (difference / (ref.abs() + ref.square().mean().sqrt())).max().item()
