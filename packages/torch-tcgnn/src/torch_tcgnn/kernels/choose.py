"""Which kernel runs on a GPU, and why: the CUDA implementations of the operators go through here.

Two views of a pattern, bit blocks (tensor cores) and rows (CUDA cores); for either, CUDA C++ where NVRTC is there, else
Triton. An adjacency carries the views its path allows. Where it carries both, blocks hold the windows that gain by
them, and the cost model decides between blocks with the remaining rows, and rows for all.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ..adjacency import Adjacency
from ..cost import Work, rates_on
from .cuda import bitblock_sddmm, bitblock_spmm, csr_spmm, nvrtc, padding
from .device import on_device

Path = Literal["tc", "cuda", "mixed"]
Language = Literal["cuda", "triton"]
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class Choice:
    """A kernel and the reason for it.

    Attributes:
        path: ``"tc"`` (tensor cores), ``"cuda"`` (CUDA cores), or ``"mixed"``: both, each for its rows.
        language: of the kernels: CUDA C++ or Triton.
        reason: why these, in words.
    """

    path: Path
    language: Language
    reason: str

    @property
    def kernel(self) -> str:
        """The choice in a word: ``"cuda_blocks"``, ``"triton_rows"``, ``"cuda_mixed"``, …"""
        views = {"tc": "blocks", "cuda": "rows", "mixed": "mixed"}
        return f"{self.language}_{views[self.path]}"


def explain_spmm(adjacency: Adjacency, x: Tensor, weight: Tensor | None) -> Choice:
    """The kernels that :func:`spmm` runs for these operands; launches nothing."""
    by_head = weight is not None and weight.dim() == 2
    path, reason = _spmm_path(adjacency, x, weighted=weight is not None, by_head=by_head)
    missing = nvrtc.unavailable()
    if missing is None and (path == "tc" or adjacency.plan is not None):
        return Choice(path, "cuda", reason)
    if path != "cuda" and by_head:  # Triton's kernel over blocks takes one weight an edge
        path, reason = "cuda", "weights differ by head"
    return Choice(path, "triton", f"{reason}, and {missing or 'it has no work list for the CUDA C++ kernel'}")


def explain_sddmm(adjacency: Adjacency, a: Tensor, b: Tensor) -> Choice:
    """The kernel that :func:`sddmm` runs for these operands; launches nothing.

    Products need no sums over a row, so blocks save little: rows were faster on every graph measured.
    """
    if adjacency.blocks is None or adjacency.plan is not None:
        return Choice("cuda", "triton", "CUDA cores are faster for products at edges")
    if a.dtype == torch.float64:
        return Choice("cuda", "triton", "tensor cores do not take float64")
    missing = nvrtc.unavailable()
    if missing is not None:
        return Choice("cuda", "triton", f"the graph has tensor-core blocks only, but {missing}")
    return Choice("tc", "cuda", "the graph has tensor-core blocks only")


def predict_us(adjacency: Adjacency, x: Tensor, *, weighted: bool) -> dict[Path, float]:
    """Microseconds by path that the cost model predicts; empty where there is no choice."""
    blocks, rest = adjacency.blocks, adjacency.rest
    if blocks is None or adjacency.plan is None or x.dtype == torch.float64:
        return {}
    slots = blocks.slot_entry.shape[0]
    by_blocks = Work(blocks.items.shape[0], blocks.num_blocks, slots)
    by_rows = Work(rows=adjacency.num_rows, entries=adjacency.num_edges)
    rates = rates_on(x.device, x.dtype)
    row_bytes = x.numel() // x.shape[0] * x.element_size()
    predicted: dict[Path, float] = {"cuda": rates.predict_us(by_rows, row_bytes, weighted=weighted)}
    if rest is None:
        predicted["tc"] = rates.predict_us(by_blocks, row_bytes, weighted=weighted)
    else:
        both = replace(by_blocks, rows=rest.num_rows, entries=adjacency.num_edges - slots)
        predicted["mixed"] = rates.predict_us(both, row_bytes, weighted=weighted)
    return predicted


def _spmm_path(adjacency: Adjacency, x: Tensor, *, weighted: bool, by_head: bool) -> tuple[Path, str]:
    """The path, and why; decided once for an adjacency, a type and a width."""
    key = (x.dtype, x.shape[1:], weighted, by_head)
    if key not in adjacency.decisions:
        adjacency.decisions[key] = _decide(adjacency, x, weighted=weighted, by_head=by_head)
    return adjacency.decisions[key]


def _decide(adjacency: Adjacency, x: Tensor, *, weighted: bool, by_head: bool) -> tuple[Path, str]:
    if adjacency.blocks is None:
        return "cuda", "the graph has no tensor-core blocks"
    if x.dtype == torch.float64:
        return "cuda", "tensor cores do not take float64"
    if adjacency.plan is None:
        return "tc", "the graph has tensor-core blocks only"
    if by_head:
        return "cuda", "weights differ by head"
    predicted = predict_us(adjacency, x, weighted=weighted)
    fastest = min(predicted, key=predicted.__getitem__)
    if fastest == "mixed":
        share = adjacency.blocks.slot_entry.shape[0] / adjacency.num_edges
        return "mixed", f"tensor cores are predicted to be faster for windows with {share:.0%} of the edges"
    return fastest, f"{'tensor' if fastest == 'tc' else 'CUDA'} cores are predicted to be faster"


def spmm(
    adjacency: Adjacency, x: Tensor, weight: Tensor | None, precision: str, out_dtype: torch.dtype | None = None
) -> Tensor:
    """``[M, ...]``: weighted sums of ``[K, ...]`` features; ``weight`` in input edge order.

    ``out_dtype``: type of the sums where it is not that of ``x``: float32, of 16-bit features.
    """
    _check_dtype("x", x)
    shape = (adjacency.num_rows, *x.shape[1:])
    if adjacency.num_edges == 0 or x.numel() == 0:
        return x.new_zeros(shape, dtype=out_dtype)
    if x.dim() == 3 and (weight is None or weight.dim() == 1):
        return spmm(adjacency, x.flatten(1), weight, precision, out_dtype).view(shape)
    out = x.new_empty(shape, dtype=out_dtype)
    _write_spmm(adjacency, x, weight, precision, out)
    return out


def _write_spmm(adjacency: Adjacency, x: Tensor, weight: Tensor | None, precision: str, out: Tensor) -> None:
    choice = explain_spmm(adjacency, x, weight)
    rest = adjacency.rest if choice.path == "mixed" else None
    if choice.language == "triton":
        _require_triton()
        _say_what_is_missing()
        from .triton.blocks_spmm import blocks_spmm as by_blocks
        from .triton.csr_spmm import csr_spmm as by_rows
    else:
        by_blocks, by_rows = bitblock_spmm.spmm, csr_spmm.spmm
        if choice.path != "cuda" or padding.pays(x, adjacency.num_edges):
            x = padding.padded(x)
    with on_device(x):
        if choice.path != "cuda":
            by_blocks(adjacency, x, weight, precision, out)
        if choice.path != "tc":
            by_rows(adjacency, x, weight, out, rest)


def segment_sum(adjacency: Adjacency, values: Tensor) -> Tensor:
    """``[M, ...]``: sums of ``[E, ...]`` values, in input edge order, over each row."""
    _check_dtype("values", values)
    if values.numel() == 0:
        return values.new_zeros(adjacency.num_rows, *values.shape[1:])
    out = values.new_empty(adjacency.num_rows, *values.shape[1:])
    if adjacency.plan is not None and nvrtc.unavailable() is None:
        with on_device(values):
            csr_spmm.segment_sum(adjacency, values, out)
        return out
    _require_triton()
    _say_what_is_missing()
    from .triton.csr_spmm import segment_sum

    segment_sum(adjacency, values, out)
    return out


def sddmm(adjacency: Adjacency, a: Tensor, b: Tensor, precision: str) -> Tensor:
    """``[E]`` or ``[E, H]``: products of target and source rows, in input edge order."""
    _check_dtype("a", a)
    _check_dtype("b", b)
    if adjacency.num_edges == 0 or a.numel() == 0:
        return a.new_zeros(adjacency.num_edges, *a.shape[1:-1])
    if explain_sddmm(adjacency, a, b).path == "tc":
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
