"""Edge weights in the order in which a kernel reads them, kept where they do not train."""

from __future__ import annotations

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_KEPT = WeakTensorKeyDictionary()


def permuted(weight: Tensor, index: Tensor) -> Tensor:
    """``weight[index]``, for a ``weight`` that does not train computed once and kept as long as both live.

    A change in place is noticed as autograd notices it, by the tensor's version.

    Example:
        >>> import torch
        >>> weight, index = torch.tensor([1.0, 2.0]), torch.tensor([1, 0])
        >>> permuted(weight, index) is permuted(weight, index)
        True
    """
    if weight.requires_grad or weight.is_inference():
        return weight.index_select(0, index)
    kept = _KEPT.get(weight)
    if kept is None:
        kept = _KEPT[weight] = WeakTensorKeyDictionary()
    found = kept.get(index)
    if found is None or found[0] != weight._version:
        found = kept[index] = weight._version, weight.index_select(0, index)
    return found[1]
