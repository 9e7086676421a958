"""A compressed-row matrix as it lies in a file: three arrays and a shape, checked before they are believed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class CsrArrays:
    """Compressed rows with plain NumPy arrays.

    Attributes:
        data: ``[nnz]`` values.
        indices: ``[nnz]`` integer columns.
        indptr: ``[rows + 1]`` integer row pointer.
        shape: ``(rows, columns)``.

    Raises:
        ValueError: when the arrays do not describe such a matrix.
    """

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        for name, kinds in (("data", "biuf"), ("indices", "iu"), ("indptr", "iu")):
            array = getattr(self, name)
            if array.ndim != 1 or array.dtype.kind not in kinds:
                wanted = "integers" if kinds == "iu" else "numbers"
                raise ValueError(f"{name} must be a list of {wanted}, got shape {array.shape} of {array.dtype}")
        rows, columns = self.shape
        nnz = self.indices.shape[0]
        good_pointer = (
            self.indptr.shape == (rows + 1,) and self.indptr[0] == 0 and self.indptr[-1] == nnz
            and bool((np.diff(self.indptr) >= 0).all())
        )  # fmt: skip
        if not good_pointer:
            raise ValueError(f"indptr does not describe {rows} rows of {nnz} entries")
        if self.data.shape != (nnz,):
            raise ValueError(f"data must have {nnz} entries like indices, got shape {self.data.shape}")
        if nnz and (self.indices.min() < 0 or self.indices.max() >= columns):
            raise ValueError(
                f"indices must lie in [0, {columns}), got {int(self.indices.min())} to {int(self.indices.max())}"
            )

    def rows(self) -> np.ndarray:
        """``[nnz]`` int64: row of each entry."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self.indptr))

    def coordinates(self) -> Tensor:
        """``[2, nnz]`` int64: row and column of each entry, in stored order."""
        return torch.from_numpy(np.stack([self.rows(), self.indices.astype(np.int64)]))

    def dense(self) -> Tensor:
        """``[rows, columns]`` float32; repeated entries add up."""
        place = torch.from_numpy(self.rows() * self.shape[1] + self.indices.astype(np.int64))
        out = torch.zeros(self.shape[0] * self.shape[1])
        out.index_add_(0, place, torch.from_numpy(self.data.astype(np.float32)))
        return out.view(self.shape)

    def sparse(self) -> Tensor:
        """``[rows, columns]`` float32 sparse CSR tensor."""
        parts = (self.indptr.astype(np.int64), self.indices.astype(np.int64), self.data.astype(np.float32))
        return torch.sparse_csr_tensor(*(torch.from_numpy(p) for p in parts), size=self.shape, check_invariants=False)
