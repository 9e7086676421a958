"""``clear_caches``: what was kept of calls before."""

from __future__ import annotations

from . import trace
from .functional import remembered
from .kernels.launch import launch
from .masks_of_calls import forget_masks
from .tune.winner import forget_winners


def clear_caches() -> None:
    """Forget the masks of calls, the recorded programs of functions, the calls that were remembered and the prepared
    launches, with the tensors that they keep alive; tuned tiles are read from disk again.

    Kernels that are loaded stay, as do those on disk (``python -m torch_flexattn cache`` removes them).

    Example:
        >>> from torch_flexattn import clear_caches
        >>> clear_caches()
    """
    trace.forget()
    forget_masks()
    remembered.forget()
    launch.forget()
    forget_winners()
