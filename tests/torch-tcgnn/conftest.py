"""Fixtures that several files of this package's tests use."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

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


@pytest.fixture
def peak_bytes(tmp_path: Path) -> Callable[[Callable[[], object]], int]:
    """``peak_bytes(call)``: most memory that PyTorch held on the CPU during a call, beside what it held before."""

    def measure(call: Callable[[], object]) -> int:
        activities, trace = [torch.profiler.ProfilerActivity.CPU], tmp_path / "trace.json"
        with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
            call()
        profile.export_chrome_trace(str(trace))
        found = json.loads(trace.read_text())["traceEvents"]
        events = [event["args"] for event in found if event["name"] == "[memory]"]
        assert len(events) > 20
        totals = [event["Total Allocated"] for event in events]
        return max(totals) - (totals[0] - events[0]["Bytes"])

    return measure
