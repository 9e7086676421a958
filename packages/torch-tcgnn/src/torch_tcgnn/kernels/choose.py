"""Which kernel runs on a GPU, and why: the CUDA implementations of the operators go through here.

Two views of a pattern, bit blocks (tensor cores) and rows (CUDA cores); for either, CUDA C++ where NVRTC is there, else
Triton. An adjacency carries the views its path allows; where it carries both, the cost model decides.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..adjacency import Adjacency
from ..cost import prefer_blocks
from .cuda import nvrtc
from .device import on_device

Kernel = Literal["cuda_blocks", "cuda_rows", "triton_blocks", "triton_rows"]
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class Choice:
    """A kernel and the reason for it.

    Attributes:
        kernel: ``"…_blocks"`` run on tensor cores, ``"…_rows"`` on CUDA cores; ``"cuda_…"`` is CUDA C++.
        reason: why this one, in words.
    """

    kernel: Kernel
    reason: str


def explain_spmm(adjacency: Adjacency, x: Tensor, weight: Tensor | None) -> Choice:
    """The kernel that :func:`spmm` runs for these operands; launches nothing."""
    by_head = weight is not None and weight.dim() == 2
    missing = nvrtc.unavailable()
    blocks, reason = _prefers_blocks(adjacency, x, weight is not None)
    if blocks and by_head and (adjacency.plan is not None or missing is not None):
        blocks, reason = False, "weights differ by head"
    if missing is not None:
        return Choice("triton_blocks" if blocks else "triton_rows", f"{reason}, and {missing}")
    if blocks:
        return Choice("cuda_blocks", reason)
    if adjacency.plan is None:
        return Choice("triton_rows", f"{reason}, and it has no work list for the CUDA C++ kernel")
    return Choice("cuda_rows", reason)


def explain_sddmm(adjacency: Adjacency, a: Tensor, b: Tensor) -> Choice:
    """The kernel that :func:`sddmm` runs for these operands; launches nothing.

    Products need no sums over a row, so blocks save little: rows were faster on every graph measured.
    """
    if adjacency.blocks is None or adjacency.plan is not None:
        return Choice("triton_rows", "CUDA cores are faster for products at edges")
    if a.dtype == torch.float64:
        return Choice("triton_rows", "tensor cores do not take float64")
    missing = nvrtc.unavailable()
    if missing is not None:
        return Choice("triton_rows", f"the graph has tensor-core blocks only, but {missing}")
    return Choice("cuda_blocks", "the graph has tensor-core blocks only")


def _prefers_blocks(adjacency: Adjacency, gathered: Tensor, weighted: bool) -> tuple[bool, str]:
    """Whether tensor cores should do it, and why; ``gathered`` holds the rows that are read again and again."""
    blocks = adjacency.blocks
    if blocks is None:
        return False, "the graph has no tensor-core blocks"
    if gathered.dtype == torch.float64:
        return False, "tensor cores do not take float64"
    if adjacency.plan is None:
        return True, "the graph has tensor-core blocks only"
    sizes = adjacency.num_rows, adjacency.num_edges, blocks.num_blocks
    row_bytes = gathered.numel() // gathered.shape[0] * gathered.element_size()
    if prefer_blocks(*sizes, row_bytes, device=gathered.device, dtype=gathered.dtype, weighted=weighted):
        return True, "tensor cores are predicted to be faster"
    return False, "CUDA cores are predicted to be faster"


def spmm(adjacency: Adjacency, x: Tensor, weight: Tensor | None, precision: str) -> Tensor:
    """``[M, ...]``: weighted sums of ``[K, ...]`` features; ``weight`` in input edge order."""
    _check_dtype("x", x)
    if adjacency.num_edges == 0 or x.numel() == 0:
        return x.new_zeros(adjacency.num_rows, *x.shape[1:])
    if x.dim() == 3 and (weight is None or weight.dim() == 1):
        return spmm(adjacency, x.flatten(1), weight, precision).view(adjacency.num_rows, *x.shape[1:])
    kernel = explain_spmm(adjacency, x, weight).kernel
    if kernel == "cuda_blocks":
        from .cuda import bitblock_spmm

        with on_device(x):
            return bitblock_spmm.spmm(adjacency, x, weight, precision)
    if kernel == "cuda_rows":
        from .cuda import csr_spmm

        with on_device(x):
            return csr_spmm.spmm(adjacency, x, weight)
    _require_triton()
    _say_what_is_missing()
    if kernel == "triton_blocks":
        from .triton.blocks_spmm import blocks_spmm

        return blocks_spmm(adjacency, x, weight, precision)
    from .triton.csr_spmm import csr_spmm

    return csr_spmm(adjacency, x, weight)


def segment_sum(adjacency: Adjacency, values: Tensor) -> Tensor:
    """``[M, ...]``: sums of ``[E, ...]`` values, in input edge order, over each row."""
    _check_dtype("values", values)
    if values.numel() == 0:
        return values.new_zeros(adjacency.num_rows, *values.shape[1:])
    if adjacency.plan is not None and nvrtc.unavailable() is None:
        from .cuda import csr_spmm

        with on_device(values):
            return csr_spmm.segment_sum(adjacency, values)
    _require_triton()
    _say_what_is_missing()
    from .triton.csr_spmm import segment_sum

    return segment_sum(adjacency, values)


def sddmm(adjacency: Adjacency, a: Tensor, b: Tensor, precision: str) -> Tensor:
    """``[E]`` or ``[E, H]``: products of target and source rows, in input edge order."""
    _check_dtype("a", a)
    _check_dtype("b", b)
    if adjacency.num_edges == 0 or a.numel() == 0:
        return a.new_zeros(adjacency.num_edges, *a.shape[1:-1])
    if explain_sddmm(adjacency, a, b).kernel == "cuda_blocks":
        from .cuda import bitblock_sddmm

        with on_device(a):
            return bitblock_sddmm.sddmm(adjacency, a, b, precision)
    _require_triton()
    if adjacency.blocks is not None:
        _say_what_is_missing()
    from .triton.csr_sddmm import csr_sddmm

    return csr_sddmm(adjacency, a, b)


def spmm_extremum(adjacency: Adjacency, x: Tensor, weight: Tensor | None, largest: bool) -> tuple[Tensor, Tensor]:
    """``[M, ...]``: extremum of (weighted) features (0 in empty rows), and the attaining entry (int64, or −1)."""
    _check_dtype("x", x)
    if adjacency.num_edges == 0 or x.numel() == 0:
        shape = (adjacency.num_rows, *x.shape[1:])
        return x.new_zeros(shape), torch.full(shape, -1, dtype=torch.int64, device=x.device)
    _require_triton()
    from .triton.csr_extremum import csr_extremum

    return csr_extremum(adjacency, x, weight, largest)


def edge_softmax(adjacency: Adjacency, logits: Tensor) -> Tensor:
    """Softmax of ``[E]`` or ``[E, H]`` logits, in input edge order, over each row."""
    _check_dtype("logits", logits)
    if logits.numel() == 0:
        return logits.new_empty(logits.shape)
    _require_triton()
    from .triton.edge_softmax import edge_softmax

    return edge_softmax(adjacency, logits)


def _check_dtype(name: str, t: Tensor) -> None:
    if t.dtype not in DTYPES:
        raise TypeError(f"{name} must be float32, float16, bfloat16 or float64 on a GPU, got {t.dtype}")


@functools.cache
def _require_triton() -> None:
    """Raises where Triton is missing; a success is remembered."""
    if importlib.util.find_spec("triton") is None:
        raise ImportError("kernels on a GPU need Triton, which is not installed: pip install 'torch-tcgnn[triton]'")


def _say_what_is_missing() -> None:
    """Triton stands in for CUDA C++: say so, once a reason."""
    missing = nvrtc.unavailable()
    if missing is not None:
        _warn_once(f"kernels in CUDA C++ cannot be compiled, Triton's run in their place: {missing}")


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(f"torch_tcgnn: {message}", stacklevel=4)
