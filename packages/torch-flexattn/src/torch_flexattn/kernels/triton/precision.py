"""How products of float32 are made."""

from __future__ import annotations

import torch
from torch import Tensor


def precision(q: Tensor, asked: str | None = None) -> str:
    """Of float32 products: what is asked for, or TF32 where PyTorch's switch allows it."""
    if q.dtype != torch.float32 or not q.is_cuda:
        return "ieee"
    if asked is not None:
        return asked
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"
