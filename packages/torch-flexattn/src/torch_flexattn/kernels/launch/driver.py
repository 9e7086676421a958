"""The few calls of the CUDA driver that loading and launching need, through ``ctypes``."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch

CONTEXT_IS_MISSING = 201
LARGE = 48 * 1024
"""Bytes of shared memory beyond which a kernel has to ask for them."""
MOST_SHARED, MOST_SHARED_OF_A_DEVICE = 8, 97
"""Numbers of the driver: a function's attribute, a device's."""
MAP_BYTES, MAP_ALIGNED = 128, 64
"""Of a tensor map, which tells the copy engine of a tensor."""
FLOAT_MAPS = {torch.float8_e4m3fn: 0, torch.float16: 6, torch.float32: 7, torch.bfloat16: 9}
"""Types of elements, as tensor maps number them; 8 bits are bytes there."""
PROMOTED_TO_128_BYTES = 2


class DriverError(RuntimeError):
    """The CUDA driver refused something."""


@functools.cache
def library() -> Any:
    """The driver; PyTorch has loaded it before."""
    return ctypes.CDLL("libcuda.so.1")


def checked(code: int, what: str) -> None:
    """Raise where the driver's answer is an error.

    Raises:
        DriverError: it is.
    """
    if code:
        text = ctypes.c_char_p()
        library().cuGetErrorString(code, ctypes.byref(text))
        said = text.value.decode() if text.value else "unknown error"
        raise DriverError(f"{what}: the CUDA driver says: {said} ({code})")


def make_context_current() -> None:
    """Threads begin without a context: give this one PyTorch's, of its device."""
    driver, context, device = library(), ctypes.c_void_p(), ctypes.c_int()
    checked(driver.cuCtxGetCurrent(ctypes.byref(context)), "looking for a context")
    if not context.value:
        checked(driver.cuDeviceGet(ctypes.byref(device), torch.cuda.current_device()), "finding a device")
        checked(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "finding a context")
        checked(driver.cuCtxSetCurrent(context), "making a context current")


def function_of(machine_code: bytes, name: str, shared: int) -> ctypes.c_void_p:
    """A kernel, loaded to the current device, allowed its ``shared`` bytes of shared memory."""
    make_context_current()
    driver, module, function = library(), ctypes.c_void_p(), ctypes.c_void_p()
    checked(driver.cuModuleLoadData(ctypes.byref(module), machine_code), f"loading {name}")
    checked(driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), f"loading {name}")
    if shared > LARGE:
        checked(
            driver.cuFuncSetAttribute(function, MOST_SHARED, shared), f"{name} with {shared} bytes of shared memory"
        )
    return function


@functools.lru_cache(maxsize=64)
def most_shared(device: int) -> int:
    """Bytes of shared memory that a program can have on a device."""
    found, handle = ctypes.c_int(), ctypes.c_int()
    make_context_current()
    checked(library().cuDeviceGet(ctypes.byref(handle), device), "finding a device")
    code = library().cuDeviceGetAttribute(ctypes.byref(found), MOST_SHARED_OF_A_DEVICE, handle)
    checked(code, "asking for shared memory")
    return found.value


class TensorMap:
    """What the copy engine is told of a tensor; the tensor may be exchanged for another of its shape.

    Args:
        address: of the first element.
        dtype: of the elements.
        sizes: of the dimensions, the last the one side by side.
        strides: in elements; the last is 1.
        box: sizes of what is copied at once.
        swizzle: how it is shuffled in shared memory, as the driver numbers that.
    """

    def __init__(
        self, address: int, dtype: torch.dtype, sizes: Sequence[int], strides: Sequence[int], box: Sequence[int],
        swizzle: int,
    ) -> None:  # fmt: skip
        rank, size = len(sizes), dtype.itemsize
        room = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNED)
        start = -(-ctypes.addressof(room) // MAP_ALIGNED) * MAP_ALIGNED
        self._room = room
        self.place = ctypes.c_void_p(start)
        wide, narrow = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank
        steps = [stride * size for stride in strides[-2::-1]]
        code = library().cuTensorMapEncodeTiled(
            self.place, FLOAT_MAPS[dtype], rank, ctypes.c_void_p(address), wide(*sizes[::-1]), wide(*steps, 0),
            narrow(*box[::-1]), narrow(*[1] * rank), 0, swizzle, PROMOTED_TO_128_BYTES, 0,
        )  # fmt: skip
        checked(code, f"describing a tensor of shape {tuple(sizes)} and strides {tuple(strides)}")
        self._address, self._replace = address, library().cuTensorMapReplaceAddress

    @property
    def value(self) -> int:
        """Where the tensor is; may be set."""
        return self._address

    @value.setter
    def value(self, address: int) -> None:
        if address != self._address:
            checked(self._replace(self.place, ctypes.c_void_p(address)), "exchanging a tensor")
            self._address = address
