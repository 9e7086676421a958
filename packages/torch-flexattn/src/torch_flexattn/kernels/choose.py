"""Which kernels serve a call, and why not others."""

from __future__ import annotations

import functools
import importlib.util
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ..default_device import is_elsewhere
from ..errors import UnsupportedError
from ..options import KernelOptions
from .cpu.backward import backward as blockwise_backward
from .cpu.forward import forward as blockwise_forward

Backend = Literal["auto", "triton", "hopper", "decode", "cpu"]
OLDEST_ARCHITECTURE = (8, 0)


@dataclass(frozen=True)
class Kernels:
    """What is called.

    Attributes:
        name: ``"triton"``: those of GPUs, or ``"cpu"``: PyTorch's operations, block by block, on any device.
        forward: see ``kernels.cpu.forward``.
        backward: see ``kernels.cpu.backward``.
        takes_mods: whether, for these queries and share of dropout, a mask may come without its blocks.
        repeats: whether ``forward`` takes ``again`` (see ``kernels.launch.again``).
    """

    name: Literal["triton", "cpu"]
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    takes_mods: Callable[[torch.Tensor, float], bool]
    repeats: bool


def _blockwise(device: torch.device) -> Kernels:
    """PyTorch's operations, whose own tensors are made on a device."""
    on_cpu = device.type == "cpu"

    def there(kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*inputs: Any, **options: Any) -> Any:
            if on_cpu and not is_elsewhere(device):
                return kernel(*inputs, **options)
            with device:
                return kernel(*inputs, **options)

        return run

    return Kernels("cpu", there(blockwise_forward), there(blockwise_backward), lambda q, dropout_p: False, False)


@functools.lru_cache(maxsize=256)
def kernels_for(
    backend: Backend, device: torch.device, dtype: torch.dtype, check: bool, options: KernelOptions | None = None
) -> Kernels:
    """The kernels for tensors of a device and type.

    Args:
        backend: ``"auto"``: Triton's on a GPU, where they can serve.
        device: of the tensors.
        dtype: of the tensors.
        check: whether reads of captured tensors are checked, which Triton's kernels do not.
        options: of the kernels of a GPU.

    Raises:
        UnsupportedError: kernels of a GPU are asked for, and they cannot serve.
    """
    if backend == "cpu" or (backend == "auto" and device.type == "cpu"):
        return _untimed(device, options)
    reason = why_not_triton(device, dtype, check)
    if reason is None and backend == "hopper":
        from .passes import why_not_hopper

        reason = why_not_hopper(device)
    if reason is None:
        return _of_gpu(backend, options)
    if backend != "auto":
        raise UnsupportedError(f"backend={backend!r}: {reason}")
    warnings.warn(
        f"attention on {device.type} runs block by block in PyTorch operations, which is slow: {reason}", stacklevel=2
    )
    return _untimed(device, options)


def _of_gpu(backend: Literal["auto", "triton", "hopper", "decode"], options: KernelOptions | None) -> Kernels:
    """Without wishes, those of ``gpu``, which cost the least to call."""
    if backend == "auto" and options is None:
        from .gpu import backward, forward, takes_mods

        return Kernels("triton", forward, backward, takes_mods, True)
    from .configured import Configured

    wanted = Configured(backend, options or KernelOptions())
    return Kernels("triton", wanted.forward, wanted.backward, wanted.takes_mods, True)


def _untimed(device: torch.device, options: KernelOptions | None) -> Kernels:
    if options is not None and options.autotune is True:
        warnings.warn(
            "autotune=True: nothing is timed, because attention block by block in PyTorch operations has no tiles to "
            "choose among",
            stacklevel=3,
        )
    return _blockwise(device)


def why_not_triton(device: torch.device, dtype: torch.dtype, check: bool) -> str | None:
    """Why Triton's kernels cannot serve, or ``None``."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install 'torch-flexattn[triton]'"
    interpreted = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
    if device.type != "cuda" and not interpreted:
        return f"its kernels run on CUDA GPUs, and the tensors are on {device.type}"
    if dtype == torch.float64:
        return "its kernels sum in float32, and the tensors are float64"
    if check:
        return "its kernels do not check reads of captured tensors (check=True)"
    if interpreted:
        return None
    found = torch.cuda.get_device_capability(device)
    if found < OLDEST_ARCHITECTURE and torch.version.hip is None:
        return f"its kernels need compute capability 8.0, and this GPU has {found[0]}.{found[1]}"
    return None
