"""A kernel with its arguments in place: a further launch fills in the pointers that changed."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .binary import Binary
from .driver import CONTEXT_IS_MISSING, TensorMap, checked, library, make_context_current
from .signature import CONSTANT, Kind, Tile

NUMBERS = {
    "u1": ctypes.c_uint8,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "u64": ctypes.c_uint64,
    "fp32": ctypes.c_float,
}


class Prepared:
    """One launch, to be repeated with other tensors of the same shapes.

    Args:
        made: the compiled kernel.
        function: the same, as the device has it.
        grid: programs, along two axes.
        kinds: of the arguments.
        arguments: of the launch.
        device: the number of the device.
    """

    def __init__(
        self,
        made: Binary,
        function: Any,
        grid: tuple[int, int],
        kinds: Sequence[Kind],
        arguments: Sequence[Any],
        device: int,
    ) -> None:
        values: list[Any] = []
        self._pointers: list[Any] = []
        boxes = iter(made.boxes)
        for kind, value in zip(kinds, arguments, strict=True):
            if isinstance(value, Tile):
                tensor, (box, swizzle) = value.tensor, next(boxes)
                described = TensorMap(tensor.data_ptr(), tensor.dtype, tensor.shape, value.strides, box, swizzle)
                self._pointers.append(described)
                values += [described, *map(ctypes.c_int32, tensor.shape), *map(ctypes.c_int64, value.strides)]
            elif isinstance(value, Tensor):
                pointer = ctypes.c_void_p(value.data_ptr())
                self._pointers.append(pointer)
                values.append(pointer)
            elif kind[0] != CONSTANT:
                values.append(NUMBERS[kind[0]](value))
        values += [ctypes.c_void_p(), ctypes.c_void_p()]  # scratch memory, of which there is none
        sizes = tuple(128 if isinstance(v, TensorMap) else ctypes.sizeof(v) for v in values)
        if sizes != made.parameters:
            raise RuntimeError(f"{made.name} takes parameters of {made.parameters} bytes, got {sizes}")
        places = [v.place.value if isinstance(v, TensorMap) else ctypes.addressof(v) for v in values]
        self._parameters = (ctypes.c_void_p * len(places))(*places)
        self._held = values
        self._lock = threading.Lock()
        self._device = device
        self._launch = library().cuLaunchKernel
        self._shape = tuple(map(ctypes.c_uint, (*grid, 1, made.threads, 1, 1, made.shared)))
        self._function = function
        self._name = made.name

    def run(self, addresses: Sequence[int]) -> None:
        """Launch on the current stream.

        Args:
            addresses: of the tensors, in the order of the arguments.
        """
        with self._lock:
            for pointer, address in zip(self._pointers, addresses, strict=True):
                pointer.value = address
            self._queue()

    def _queue(self) -> None:
        stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(self._device))
        code = self._launch(self._function, *self._shape, stream, self._parameters, None)
        if code == CONTEXT_IS_MISSING:
            make_context_current()
            code = self._launch(self._function, *self._shape, stream, self._parameters, None)
        checked(code, f"launching {self._name}")
