"""Calls made before they count."""

from __future__ import annotations

import pytest
import torch
from torch_flexattn import (
    CallSpec,
    InputError,
    KindError,
    flex_attention,
    listening,
    masks,
    reset_stats,
    score_mod,
    stats,
    warmup,
)


def test_the_call_that_follows_records_and_builds_nothing():
    table = torch.zeros(2, 63, requires_grad=True)

    @score_mod
    def bias(score, b, h, q_idx, kv_idx):
        return score + table[h, q_idx - kv_idx + 31]

    mask = masks.causal() & masks.sliding_window(7)
    arguments = {"score_mod": bias, "mask_mod": mask}
    (warmed,) = warmup([CallSpec((1, 2, 32, 8), (1, 2, 32, 8), 4, torch.float32, backward=True, arguments=arguments)])
    assert warmed.kernels == ("cpu", "cpu")
    assert warmed.seconds > 0
    assert table.grad is None
    reset_stats()
    q = torch.randn(1, 2, 32, 8, requires_grad=True)
    flex_attention(q, q, q[..., :4], **arguments).sum().backward()
    assert (stats().masks_built, stats().compiles) == (0, 0)
    assert stats().masks_reused == 1


def test_kernels_of_a_gpu_are_written_and_compiled_ahead(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TORCH_FLEXATTN_CACHE", str(tmp_path))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    table = torch.zeros(20, device=device, requires_grad=True)
    arguments = {
        "mask_mod": lambda b, h, q, kv: q * 3 + 1 >= kv, "score_mod": lambda s, b, h, q, kv: s + table[kv] * 3.5,
        "backend": "triton", "check": False,
    }  # fmt: skip
    shape = (1, 1, 20, 8)
    (first,) = warmup([CallSpec(shape, shape, None, torch.float32, device, True, arguments)])
    assert first.kernels == ("triton", "triton")
    assert len(list(tmp_path.glob("kernel_*.py"))) >= 2
    (second,) = warmup([CallSpec(shape, shape, None, torch.float32, device, True, arguments)])
    assert (first.compiles >= 2, second.compiles) == (True, 0)
    before = stats().compiles
    q = torch.randn(shape, device=device, requires_grad=True)
    out = flex_attention(q, q, q, **arguments)
    torch.autograd.grad(out, [q, table], torch.ones_like(out))
    assert stats().compiles == before


def test_without_a_backward_pass_nothing_is_kept_for_one():
    shape = (2, 2, 16, 8)
    specs = [CallSpec(shape, shape, arguments={"return_lse": True}), CallSpec(shape, shape, dtype=torch.float32)]
    trained = []
    with listening(lambda call: trained.append(torch.is_grad_enabled())):
        assert [w.kernels for w in warmup(specs)] == [("cpu",), ("cpu",)]
    assert trained == [False, False]
    assert warmup([]) == ()


def test_wrong_specs_are_named():
    with pytest.raises(InputError, match=r"query must be four sizes, \[B, H, L, E\], got \(2, 3, 4\)"):
        CallSpec((2, 3, 4), (2, 3, 4, 5))
    with pytest.raises(InputError, match=r"key must be .* got \(2, 3, -4, 5\)"):
        CallSpec((2, 3, 4, 5), (2, 3, -4, 5))
    with pytest.raises(KindError, match="specs must hold CallSpec, got dict"):
        warmup([{}])
