"""CPU kernels: attention forward and backward over the runs of a block mask, in plain PyTorch."""

from .backward import backward
from .forward import forward

__all__ = ["forward", "backward"]
