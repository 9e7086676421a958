"""What a call returns beside its output."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class AuxRequest(NamedTuple):
    """What a call returns beside its output, as PyTorch's of this name.

    Attributes:
        lse: the logarithm of the sum of exponentials of each row, ``[B, Hq, L]``.
        max_scores: the largest score of each row, ``[B, Hq, L]``; it has no gradient.

    Example:
        >>> AuxRequest(lse=True)
        AuxRequest(lse=True, max_scores=False)

    Reference:
        PyTorch, torch.nn.attention.flex_attention.
    """

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """What was asked for by :class:`AuxRequest`; ``None`` what was not.

    Attributes:
        lse: float32 (float64 for float64) ``[B, Hq, L]``; −inf where nothing is visible.
        max_scores: likewise.

    Example:
        >>> AuxOutput()
        AuxOutput(lse=None, max_scores=None)

    Reference:
        PyTorch, torch.nn.attention.flex_attention.
    """

    lse: Tensor | None = None
    max_scores: Tensor | None = None
