"""Launches on a GPU: threads, graphs, kernels from disk, addresses that change."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from torch_flexattn import clear_caches, flex_attention, masks, scores

pytestmark = pytest.mark.gpu


def tensors(*shape: int) -> list[torch.Tensor]:
    make = torch.Generator("cuda").manual_seed(0)
    return [torch.randn(*shape, generator=make, device="cuda", dtype=torch.bfloat16) for _ in range(3)]


@pytest.mark.parametrize(("length", "width"), [(256, 64), (8, 64), (256, 40), (256, 20)])
def test_calls_made_again_see_their_own_tensors(length: int, width: int) -> None:
    mask, score = masks.causal(), scores.alibi(scores.alibi_slopes(4).cuda())
    calls = [tensors(2, 4, length, width) for _ in range(4)]
    calls[2] = [t.flip(0) for t in calls[2]]
    calls[3][1] = calls[3][0]
    sinks = torch.randn(4, device="cuda")
    for q, k, v in [*calls, *calls]:
        out, lse = flex_attention(q, k, v, score, mask, return_lse=True, sinks=sinks)
        want, of_rows = flex_attention(q, k, v, score, mask, return_lse=True, sinks=sinks, backend="reference")
        assert (out - want).abs().max() < 0.03
        assert (lse - of_rows).abs().max() < 0.03


@pytest.mark.parametrize("length", [256, 8])
def test_calls_made_again_with_gaps_between_numbers(length: int) -> None:
    q, k, v = (t[..., ::2] for t in tensors(2, 4, length, 128))
    sinks = torch.randn(8, device="cuda")[::2]
    want = flex_attention(q, k, v, sinks=sinks, backend="reference")
    for _ in range(3):
        assert (flex_attention(q, k, v, sinks=sinks) - want).abs().max() < 0.03


def test_an_address_that_is_aligned_otherwise() -> None:
    q, k, v = tensors(1, 2, 256, 64)
    room = torch.empty(q.numel() + 1, device="cuda", dtype=q.dtype)
    apart = room[1:].view(q.shape)
    apart.copy_(q)
    wanted = flex_attention(q, k, v)
    for given in (q, apart, q, apart):
        assert (flex_attention(given, k, v) - wanted).abs().max() < 0.02


def test_a_captured_tensor_may_change_between_calls() -> None:
    q, k, v = tensors(1, 2, 256, 64)
    table = torch.zeros(2, 511, device="cuda")
    score = scores.relative_bias(table)
    before = flex_attention(q, k, v, score)
    assert torch.equal(flex_attention(q, k, v, score), before)
    table[:, 255] = 3.0
    changed = flex_attention(q, k, v, score)
    assert (changed - flex_attention(q, k, v, score, backend="reference")).abs().max() < 0.03
    table.data = torch.zeros_like(table)
    assert torch.equal(flex_attention(q, k, v, score), before)


@pytest.mark.parametrize("length", [256, 8])
def test_calls_made_again_notice_the_switch_of_tf32(length: int) -> None:
    q, k, v = (t.float() / 3 for t in tensors(1, 2, length, 64))  # of more digits than TF32 has
    switch = torch.backends.cuda.matmul
    before = switch.fp32_precision
    found = []
    try:
        for asked in ("ieee", "tf32", "ieee"):
            switch.fp32_precision = asked
            outs = [flex_attention(q, k, v) for _ in range(3)]
            clear_caches()
            outs.append(flex_attention(q, k, v))
            assert all(torch.equal(out, outs[0]) for out in outs)
            found.append(outs[0])
            for _ in range(2):
                flex_attention(q, k, v)  # remembered, for the next switch to find
    finally:
        switch.fp32_precision = before
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


def test_threads_of_their_own() -> None:
    q, k, v = tensors(1, 2, 256, 64)
    wanted, found = flex_attention(q, k, v), []

    def attend() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            found.append([flex_attention(q, k, v) for _ in range(50)][-1])
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=attend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(torch.equal(out, wanted) for out in found)


def test_a_graph_replays_calls() -> None:
    q, k, v = tensors(1, 2, 256, 64)
    mask = masks.causal()
    flex_attention(q, k, v, mask_mod=mask)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flex_attention(q, k, v, mask_mod=mask)
    q.copy_(torch.randn_like(q))
    graph.replay()
    assert torch.equal(out, flex_attention(q, k, v, mask_mod=mask))


AGAIN = """
import sys, torch
from torch_flexattn import clear_caches, flex_attention, masks
q = torch.ones(1, 1, 256, 64, device="cuda", dtype=torch.bfloat16)
print(flex_attention(q, q, q, mask_mod=masks.causal()).sum().item(), "triton" in sys.modules)
"""


def test_a_process_that_finds_its_kernels_imports_no_compiler(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FLEXATTN_CACHE", str(tmp_path))
    said = [
        subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, check=True, timeout=120).stdout
        for _ in range(2)
    ]
    assert said == ["16384.0 True\n", "16384.0 False\n"]
