"""``launch``: the one way from the host to a kernel."""

from __future__ import annotations

import functools
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...stats import COUNTS
from .binary import Binary, binary
from .driver import function_of, most_shared
from .kernel import Kernel
from .prepared import Prepared
from .signature import Kind, Tile, kinds_of

KEPT = 1024
"""Launches that are remembered."""

_prepared: OrderedDict[Any, Prepared] = OrderedDict()
_functions: dict[Any, tuple[Binary, Any]] = {}
"""Compiled kernels, and as the device has them: None where they do not fit."""
_lock = threading.Lock()


class DoesNotFit(RuntimeError):
    """A kernel wants more shared memory than the device has."""


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on any device."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def launch(
    kernel: Kernel,
    grid: tuple[int, int],
    arguments: Sequence[Any],
    *,
    warps: int = 4,
    stages: int = 3,
    **constants: Any,
) -> Prepared | None:
    """Run a kernel on the current device and stream.

    Args:
        kernel: its source.
        grid: programs, along two axes; none: nothing is done.
        arguments: tensors, :class:`Tile`, numbers and None, in the order of the source.
        warps: of a program.
        stages: of pipelines that the compiler makes where the source does not say.
        constants: arguments that are part of the kernel.

    Returns:
        What repeats the launch, on an NVIDIA GPU.

    Raises:
        DoesNotFit: it wants more shared memory than there is.
        DriverError: the driver refuses.
    """
    if not (grid[0] and grid[1]):
        return None
    if interpreted() or torch.version.hip is not None:
        given = [a.detach() if isinstance(a, Tensor) else a for a in arguments]
        _interpreted(kernel)[grid](*given, **constants, num_warps=warps, num_stages=stages)
        return None
    device = torch.cuda.current_device()
    key = (kernel, grid, device, warps, stages, *constants.values(), *map(_identity, arguments))
    with _lock:
        found = _prepared.get(key)
        if found is not None:
            _prepared.move_to_end(key)
    if found is None:
        kinds = kinds_of(kernel.names, arguments, kernel.unspecialised)
        made, function = _loaded(kernel, kinds, constants, (warps, stages), device)
        found = Prepared(made, function, grid, kinds, arguments, device)
        with _lock:
            _prepared[key] = found
            while len(_prepared) > KEPT:
                _prepared.popitem(last=False)
    found.run(addresses(arguments))
    return found


def forget() -> None:
    """Prepare every launch anew from now on."""
    with _lock:
        _prepared.clear()


def addresses(arguments: Sequence[Any]) -> list[int]:
    """Of the tensors among arguments."""
    return [
        a.data_ptr() if isinstance(a, Tensor) else a.tensor.data_ptr()
        for a in arguments
        if isinstance(a, Tensor | Tile)
    ]


def _identity(value: Any) -> Any:
    """What tells a launch from another: of tensors the type and the alignment, of numbers the value."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, Tile):
        return value.tensor.dtype, value.tensor.shape, value.strides, value.box
    return type(value), value


@functools.lru_cache(maxsize=1024)
def _interpreted(kernel: Kernel) -> Any:
    """The function, counted once."""
    COUNTS.kernels_loaded += 1
    return kernel.function


def _loaded(
    kernel: Kernel, kinds: tuple[Kind, ...], constants: dict[str, Any], shape: tuple[int, int], device: int
) -> tuple[Binary, Any]:
    """The compiled kernel, and as the device has it."""
    key = kernel, kinds, tuple(constants.items()), shape, device
    found = _functions.get(key)
    if found is None:
        made = binary(kernel, kinds, constants, *shape, _architecture(device))
        fits = made.shared <= most_shared(device)
        found = _functions[key] = made, function_of(made.code, made.name, made.shared) if fits else None
    made, function = found
    if function is None:
        raise DoesNotFit(
            f"{made.name} needs {made.shared} bytes of shared memory, and the device has {most_shared(device)}"
        )
    return found


@functools.lru_cache(maxsize=64)
def _architecture(device: int) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
