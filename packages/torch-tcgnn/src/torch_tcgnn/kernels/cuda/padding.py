"""Rows of features that start where a GPU reads 16 bytes at once: copied there where a width such as 121 forbids it.

A gather whose rows start anywhere takes an instruction a feature, three times the time. The copy is read and written
once, at the memory's full rate; gathers come once an entry.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from . import nvrtc

LINE = 16
"""Bytes of the widest read of a lane."""
SECTOR = 32
"""Bytes that memory moves at least: longer rows start at their multiples."""
GATHERS = 2
"""Gathers of a row, on average, from which on a copy pays (measured on an H200)."""
ELEMENTS = {2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}


def starts_aligned(x: Tensor) -> bool:
    """Whether every row of ``x``, and of its heads, starts at a multiple of 16 bytes, one after the other."""
    return x.data_ptr() % LINE == 0 and x.shape[-1] * x.element_size() % LINE == 0 and x.is_contiguous()


def pays(x: Tensor, entries: int) -> bool:
    """Whether gathering ``entries`` rows of ``x`` gains more by alignment than the copy costs.

    Rows that start at multiples of eight bytes lose too little.
    """
    if starts_aligned(x) or entries < GATHERS * x.shape[0]:
        return False
    return x.shape[-1] * x.element_size() % (LINE // 2) != 0 or x.data_ptr() % (LINE // 2) != 0 or not x.is_contiguous()


def stored_width(width: int, element_size: int) -> int:
    """Features of a row as kernels read it: of the copy, where ``width`` asks for one.

    Example:
        >>> stored_width(7, 4), stored_width(41, 4), stored_width(121, 2), stored_width(12, 4)
        (8, 48, 128, 12)
    """
    if width * element_size % LINE == 0:
        return width
    step = (LINE if width * element_size <= LINE else SECTOR) // element_size
    return -(-width // step) * step


def padded(x: Tensor) -> Tensor:
    """``x`` ``[..., F]``, on a GPU, or, where its rows do not start aligned, a copy with zeros as further features."""
    if starts_aligned(x):
        return x
    width, size = x.shape[-1], x.element_size()
    stored = stored_width(width, size)
    wide = x.new_empty(*x.shape[:-1], stored)
    rows = x if x.dim() == 2 and x.stride(1) == 1 else x.contiguous().view(-1, width)
    lanes = next(n for n in (4, 8, 16, 32) if n >= stored or n == 32)
    grid = (-(-rows.shape[0] // (256 // lanes * 4)), 1, 1)
    nvrtc.launcher()(
        nvrtc.current_stream(x.device), nvrtc.launch_config(grid, 256), _kernel(size, lanes, x.get_device()),
        rows.data_ptr(), rows.stride(0), rows.shape[0], width, wide.data_ptr(), stored,
    )  # fmt: skip
    return wide


def macros(element_size: int, lanes: int) -> tuple[tuple[str, str], ...]:
    """One compilation of the kernel."""
    return ("Element", ELEMENTS[element_size]), ("LANES", str(lanes))


@functools.cache
def _kernel(element_size: int, lanes: int, device: int) -> Any:
    return nvrtc.kernel("pad_rows.cu", macros(element_size, lanes), "pad_rows", device)
