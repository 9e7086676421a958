"""Edge weights in the order in which a kernel reads them, kept where they do not train."""

from __future__ import annotations

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_KEPT = WeakTensorKeyDictionary()


def permuted(weight: Tensor, index: Tensor) -> Tensor:
    """``weight[index]``, for a ``weight`` that does not train computed once and kept as long as both live.

    A change in place is noticed as autograd notices it, by the tensor's version, and another storage (``weight.data =
    other``) by its address. What writes without raising the version goes unseen: NumPy, ``.data`` in place, collectives
    (``broadcast``, ``all_reduce``), until ``torch.autograd.graph.increment_version(weight)`` is called. Fused
    optimizers write so, too: what was kept of the weight is dropped when it trains, what was kept of a ``detach()`` of
    it is not.

    Example:
        >>> import torch
        >>> weight, index = torch.tensor([1.0, 2.0]), torch.tensor([1, 0])
        >>> permuted(weight, index) is permuted(weight, index)
        True
    """
    if weight.requires_grad or weight.is_inference():
        _KEPT.pop(weight, None)
        return weight.index_select(0, index)
    kept = _KEPT.get(weight)
    if kept is None:
        kept = _KEPT[weight] = WeakTensorKeyDictionary()
    found, state = kept.get(index), (weight._version, weight.data_ptr())
    if found is None or found[0] != state:
        found = kept[index] = state, weight.index_select(0, index)
    return found[1]
