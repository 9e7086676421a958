"""PyTorch's switch for TF32, set for as long as something runs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["tf32"]


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Whether cuBLAS may round float32 operands to TF32 inside the block.

    By the older of PyTorch's two switches: it sets both, while the newer alone makes reading the older one an error.
    """
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32 = before
