"""Fixtures that several files of this package's tests use."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

# cuBLAS reads this at a process's first product; without it deterministic mode refuses products on a GPU.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture
def guarded(monkeypatch) -> Callable[[], None]:
    """New_empty and empty_like give memory between guards, all filled with NaN; the returned check reads the guards."""
    size, taken = 1 << 14, []
    new_empty, empty_like = torch.Tensor.new_empty, torch.empty_like

    def surrounded(self: Tensor, *shape: object, dtype: torch.dtype | None = None, **options: object) -> Tensor:
        shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        inner = new_empty(self, shape, dtype=dtype, **options)
        whole = new_empty(self, (inner.numel() + 2 * size,), dtype=dtype, **options)
        whole.fill_(float("nan") if whole.is_floating_point() else -77)
        taken.append(whole)
        return whole[size : size + inner.numel()].view(inner.shape)

    def surrounded_like(self: Tensor, **options: object) -> Tensor:
        return surrounded(self, self.shape) if self.is_contiguous() and not options else empty_like(self, **options)

    def check() -> None:
        assert taken
        for whole in taken:
            for guard in (whole[:size], whole[-size:]):
                assert (guard.isnan() if whole.is_floating_point() else guard == -77).all()

    monkeypatch.setattr(torch.Tensor, "new_empty", surrounded)
    monkeypatch.setattr(torch, "empty_like", surrounded_like)
    return check
