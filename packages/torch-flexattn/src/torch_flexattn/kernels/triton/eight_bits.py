"""8-bit floats (e4m3) for kernels: which products are of 8 bits, and as what tensors are handed over.

Products of 8 bits are those of queries and keys, where the GPU has them (compute capability 8.9): products of
e4m3 are exact, and there are few to a sum. Weights are not rounded to 8 bits: that would put an error of 1/16 on each,
as much as all of the values' own. Values are widened to float16 instead, which holds every e4m3 exactly, and weights to
1/2,048.

Elsewhere the compiler does not know the type: tensors come as their bits, in bytes.
"""

from __future__ import annotations

import functools
from typing import Literal

import torch
from torch import Tensor

from ...fp8 import FP8
from .chunks import Chunk, chunks

Eight = Literal["", "all", "keys"]
"""What is of 8 bits: nothing; queries, keys and values; keys and values."""
LEAST_FEATURES = 32
"""Of a product of 8 bits, at least: what a tensor core multiplies at once."""
FIRST_ARCHITECTURE = (8, 9)


def eight_bits(q: Tensor, k: Tensor) -> Eight:
    """What of a call is of 8 bits."""
    if k.dtype != FP8:
        return ""
    return "all" if q.dtype == FP8 else "keys"


@functools.lru_cache(maxsize=64)
def knows_fp8(device: torch.device) -> bool:
    """Whether Triton compiles e4m3 for a device; its interpreter does."""
    if device.type != "cuda":
        return True
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= FIRST_ARCHITECTURE


def in_one_piece(width: int) -> bool:
    """Whether a tile of 8 bits holds all features, and nothing else.

    Of several tiles side by side, or one that is filled up, Triton 3.6 makes code that leaves its shared memory.
    """
    return chunks(width) == [Chunk(0, width, width)] and width >= LEAST_FEATURES


def as_read(t: Tensor) -> Tensor:
    """A tensor as kernels take it: its bits, where the type is not known."""
    return t.view(torch.uint8) if t.dtype == FP8 and not knows_fp8(t.device) else t
