"""What tells a call from one that is remembered, beside its tensors and modifications."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch_flexattn.functional.remembered import key_of

SWITCH = torch.backends.cuda.matmul


@pytest.fixture
def switch() -> Iterator[Any]:
    before = SWITCH.fp32_precision
    yield SWITCH
    SWITCH.fp32_precision = before


@pytest.mark.parametrize(("dtype", "tells"), [(torch.float32, True), (torch.bfloat16, False)])
def test_float32_on_a_gpu_is_told_by_the_switch_of_tf32(
    dtype: torch.dtype, tells: bool, switch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    q, keys = torch.zeros(1, 1, 16, 16, dtype=dtype), []
    for asked in ("ieee", "tf32", "ieee"):
        switch.fp32_precision = asked
        keys.append(key_of(q, q, q, None, (None, None, None), None, None, 0.0, None))
    assert keys[0] == keys[2]
    assert (keys[0] != keys[1]) == tells
