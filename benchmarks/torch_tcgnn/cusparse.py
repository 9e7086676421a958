"""cuSPARSE's SpMM by its C interface, on the library that torch has loaded: the best a user of it can get.

``cusparseSpMM`` on an int32 CSR with row-major dense matrices and float32 sums, after ``cusparseSpMM_preprocess``, by
whichever of ``CUSPARSE_SPMM_CSR_ALG1``, ``ALG2`` and ``ALG3`` is the fastest on these operands. All of that is found
out before the clock starts. Enumerators are those of ``cusparse.h`` (CUDA 12 and 13).
"""

import ctypes
import re
import weakref
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.clock import clock_for

ALGORITHMS = {"ALG1": 4, "ALG2": 6, "ALG3": 12}
_VALUE_TYPE = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}
_INT32, _ZERO_BASED, _ROW_MAJOR, _AS_IT_IS, _SUM_IN_FP32 = c_int(2), c_int(0), c_int(2), c_int(0), c_int(0)
_TRIALS, _CALLS = 5, 4

__all__ = ["Product", "fastest"]


@cache
def _library() -> ctypes.CDLL:
    maps = Path("/proc/self/maps")
    loaded = re.findall(r"\S*/libcusparse\.so[.\d]*", maps.read_text()) if maps.exists() else []
    if not loaded:
        raise ImportError("torch has loaded no libcusparse in this process")
    return ctypes.CDLL(loaded[0])


def _call(function: str, *arguments: object) -> None:
    status = getattr(_library(), function)(*arguments)
    if status:
        raise RuntimeError(f"{function} returned status {status}")


@cache
def _handle(device: torch.device) -> c_void_p:
    """One context a device, on the stream that was current when it was made."""
    handle = c_void_p()
    with torch.cuda.device(device):
        _call("cusparseCreate", byref(handle))
        _call("cusparseSetStream", handle, c_void_p(torch.cuda.current_stream().cuda_stream))
    return handle


def _pointer(tensor: Tensor) -> c_void_p:
    return c_void_p(tensor.data_ptr())


def _dense(tensor: Tensor) -> c_void_p:
    descriptor, (rows, columns) = c_void_p(), map(c_int64, tensor.shape)
    kind = c_int(_VALUE_TYPE[tensor.dtype])
    _call("cusparseCreateDnMat", byref(descriptor), rows, columns, columns, _pointer(tensor), kind, _ROW_MAJOR)
    return descriptor


def _sparse(rowptr: Tensor, col: Tensor, values: Tensor, num_cols: int) -> c_void_p:
    descriptor, sizes = c_void_p(), map(c_int64, (rowptr.shape[0] - 1, num_cols, col.shape[0]))
    arrays = map(_pointer, (rowptr, col, values))
    kinds = (_INT32, _INT32, _ZERO_BASED, c_int(_VALUE_TYPE[values.dtype]))
    _call("cusparseCreateCsr", byref(descriptor), *sizes, *arrays, *kinds)
    return descriptor


def _destroy(sparse: c_void_p, dense: tuple[c_void_p, ...]) -> None:
    _call("cusparseDestroySpMat", sparse)
    for matrix in dense:
        _call("cusparseDestroyDnMat", matrix)


class Product:
    """``A · x`` of one matrix, one ``x`` and one algorithm; calling it computes into a new tensor.

    Args:
        rowptr, col: int32 CSR of A.
        values: ``[E]`` of the dtype of ``x``.
        x: ``[K, F]`` contiguous; float32, float16 or bfloat16.
        algorithm: a key of `ALGORITHMS`.

    Raises:
        ImportError: no libcusparse is loaded.
        RuntimeError: cuSPARSE refuses; the message has the function and its status.
    """

    def __init__(self, rowptr: Tensor, col: Tensor, values: Tensor, x: Tensor, algorithm: str) -> None:
        self.algorithm = algorithm
        self._shape = (rowptr.shape[0] - 1, x.shape[1])
        self._operands = (rowptr, col, values, x)  # cuSPARSE holds their addresses only
        out = x.new_empty(self._shape)
        self._out = _dense(out)
        matrix, right = _sparse(rowptr, col, values, x.shape[0]), _dense(x)
        weakref.finalize(self, _destroy, matrix, (right, self._out)).atexit = False
        one, zero, kind = c_float(1.0), c_float(0.0), c_int(ALGORITHMS[algorithm])
        self._arguments = (
            _handle(x.device), _AS_IT_IS, _AS_IT_IS, byref(one), matrix, right, byref(zero), self._out, _SUM_IN_FP32,
            kind,
        )  # fmt: skip
        size = c_size_t()
        _call("cusparseSpMM_bufferSize", *self._arguments, byref(size))
        self._buffer = torch.empty(max(size.value, 1), dtype=torch.uint8, device=x.device)
        _call("cusparseSpMM_preprocess", *self._arguments, _pointer(self._buffer))

    def __call__(self) -> Tensor:
        out = self._operands[3].new_empty(self._shape)
        _call("cusparseDnMatSetValues", self._out, _pointer(out))
        _call("cusparseSpMM", *self._arguments, _pointer(self._buffer))
        return out


def fastest(rowptr: Tensor, col: Tensor, values: Tensor, x: Tensor) -> Product:
    """The product by the algorithm whose best of a few trials is the shortest.

    Raises:
        ImportError, RuntimeError: as `Product`, where no algorithm runs.
    """
    clock = clock_for(x.device)
    times: dict[Product, float] = {}
    refusals = []
    for algorithm in ALGORITHMS:
        try:
            product = Product(rowptr, col, values, x, algorithm)
            trial = partial(clock.warm, product, _CALLS)
            times[product] = min(trial() for _ in range(_TRIALS))
        except RuntimeError as error:
            refusals.append(f"{algorithm}: {error}")
    if not times:
        raise RuntimeError("; ".join(refusals))
    return min(times, key=lambda product: times[product])
