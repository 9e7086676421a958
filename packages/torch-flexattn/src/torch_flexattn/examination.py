"""What of this package works on this machine, found out by trying.

Kernels are called on small inputs and compared with the dense reference; a device that they cannot serve is reported as
such, in the words of the error that a caller who insists on them would get.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

import torch

from . import masks, scores
from .functional import flex_attention
from .functional.attention import BACKENDS
from .kernels.launch.files import cache_dir

Status = Literal["works", "absent", "fails"]
OLDEST_TORCH = (2, 11)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.05}
"""Largest error of a kernel, of values of about 1."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: of what.
        status: ``"works"``; ``"absent"``: not there, and nothing is wrong; ``"fails"``.
        found: what was found, in words.

    Example:
        >>> print(Finding("GPU", "absent", "PyTorch sees none"))
        absent  GPU: PyTorch sees none
    """

    name: str
    status: Status
    found: str

    def __str__(self) -> str:
        return f"{self.status:<7} {self.name}: {self.found}"


def doctor() -> tuple[Finding, ...]:
    """Everything that matters to this package on this machine; takes about a second.

    Example:
        >>> [f.name for f in doctor()][:3]
        ['Python', 'PyTorch', 'Triton']
    """
    looks: list[tuple[str, Callable[[], tuple[Status, str]]]] = [
        ("Python", _python),
        ("PyTorch", _torch),
        ("Triton", _triton),
        ("GPU", _gpu),
        ("cache folder", _cache),
        ("CPU kernels, forward and backward", lambda: _kernels("cpu", "cpu")),
        ("GPU kernels, forward and backward", lambda: _kernels("cuda", "triton")),
        ("Hopper kernels, forward and backward", lambda: _kernels("cuda", "hopper", torch.bfloat16)),
        ("backend= takes", lambda: ("works", ", ".join(BACKENDS))),
    ]
    return tuple(Finding(name, *look()) for name, look in looks)


def _python() -> tuple[Status, str]:
    return "works", f"{platform.python_version()} on {platform.system()} {platform.machine()}"


def _torch() -> tuple[Status, str]:
    version = torch.__version__
    number = re.match(r"(\d+)\.(\d+)", version)
    old = number is None or (int(number[1]), int(number[2])) < OLDEST_TORCH
    return ("fails" if old else "works"), f"{version}{', older than 2.11' * old}, {torch.get_num_threads()} threads"


def _triton() -> tuple[Status, str]:
    if importlib.util.find_spec("triton") is None:
        return "absent", "not installed; only GPU kernels need it: pip install 'torch-flexattn[triton]'"
    try:
        version = metadata.version("triton")
    except metadata.PackageNotFoundError:  # built from source
        version = "of unknown version"
    interpreted = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
    return "works", version + ", in the interpreter (TRITON_INTERPRET is set)" * interpreted


def _gpu() -> tuple[Status, str]:
    if not torch.cuda.is_available():
        built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        return "absent", f"PyTorch sees none (it was built {built})"
    found = []
    for number in range(torch.cuda.device_count()):
        of = torch.cuda.get_device_properties(number)
        found.append(f"{of.name}, compute capability {of.major}.{of.minor}, {of.total_memory / 2**30:.0f} GiB")
    return "works", "; ".join(found)


def _cache() -> tuple[Status, str]:
    folder = cache_dir()
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    kernels = len(list(folder.glob("kernel_*.py")))
    kept = f"{folder} ({f'{kernels} kernels' if folder.is_dir() else 'not made yet'})"
    try:
        with tempfile.TemporaryFile(dir=there):
            return "works", kept
    except OSError as error:
        return (
            "fails",
            f"{kept}, nothing can be written there ({error.strerror}): set TORCH_FLEXATTN_CACHE to a folder that can",
        )


def _kernels(device: str, backend: str, dtype: torch.dtype = torch.float32) -> tuple[Status, str]:
    """Run attention there with these kernels and no others, and compare with the reference."""
    if device == "cuda" and not torch.cuda.is_available():
        return "absent", "not tried, there is no GPU"
    try:
        errors = [_error(device, dtype, backend=backend, gradient=gradient) for gradient in (False, True)]
    except NotImplementedError as error:
        return "absent", str(error)
    except Exception as error:  # whatever a driver or a compiler says is the finding
        return "fails", f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    worst, allowed = max(errors), TOLERANCE[dtype]
    agrees = worst <= allowed
    return (
        "works" if agrees else "fails"
    ), f"off the reference by {worst:.1e}{f', more than {allowed:.0e}' * (not agrees)}"


def _error(device: str, dtype: torch.dtype, *, backend: str, gradient: bool) -> float:
    """Largest difference of the output, or of the gradients, from those of the reference."""
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, 2, 80, 16, generator=draw).to(device, dtype) for _ in range(3)]
    mask, score = masks.causal() & masks.sliding_window(50), scores.softcap(20.0)
    results = []
    for name in (backend, "reference"):
        q, k, v = (x.clone().requires_grad_(gradient) for x in inputs)
        out = flex_attention(q, k, v, score, mask, backend=name)  # type: ignore[arg-type]
        results.append(torch.cat(torch.autograd.grad(out.sin().sum(), [q, k, v])) if gradient else out)
    return float((results[0].float() - results[1].float()).abs().max())
