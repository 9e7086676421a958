"""Kernels by name, sizes, tuning, warm-up, graphs and ``bench`` on a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch_flexattn import CallSpec, UnsupportedError, flex_attention, masks, reset_stats, scores, stats, warmup
from torch_flexattn.cli import main

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.03}


def features(length: int, width: int = 64, dtype: torch.dtype = torch.bfloat16, queries: int = 0) -> list[Tensor]:
    draw = torch.Generator("cuda").manual_seed(0)
    lengths = (queries or length, length, length)
    return [torch.randn(2, 4, n, width, device="cuda", generator=draw).to(dtype).requires_grad_() for n in lengths]


def compared(inputs: list[Tensor], backend: str = "auto", tolerance: float | None = None, **options: object) -> str:
    """Outputs and gradients with those of the reference; returns which kernels served, forward and backward."""
    results, served = [], []
    for name in ("reference", backend):
        given = {} if name == "reference" else {"kernel_options": options or None}
        out = flex_attention(*inputs, scores.softcap(20.0), masks.causal(), backend=name, **given)
        served.append(stats().kernel)
        results.append([out, *torch.autograd.grad(out.float().sin().sum(), inputs)])
        served.append(stats().kernel)
    allowed = TOLERANCE[inputs[0].dtype] if tolerance is None else tolerance
    for right, found in zip(*results, strict=True):
        scale = float(right.float().abs().max())
        torch.testing.assert_close(found.float(), right.float(), atol=allowed * scale, rtol=0)
    return " ".join(served[2:])


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A cache folder of its own, and nothing known."""
    from torch_flexattn.tune.winner import forget_winners

    monkeypatch.setenv("TORCH_FLEXATTN_CACHE", str(tmp_path))
    forget_winners()
    yield tmp_path
    forget_winners()


@pytest.mark.skipif(not HOPPER, reason="needs compute capability 9.0")
@pytest.mark.parametrize("width", [64, 128, 256])
def test_hopper_by_name_and_by_itself(width: int) -> None:
    inputs = features(300, width)
    assert compared(inputs) == compared(inputs, "hopper") == "hopper hopper"
    assert compared(inputs, "triton") == "triton triton"


@pytest.mark.skipif(not HOPPER, reason="needs compute capability 9.0")
@pytest.mark.parametrize("width", [64, 128])
def test_sizes_that_hopper_takes(width: int) -> None:
    inputs = features(300, width)
    sizes = {"fwd_BLOCK_M": 128, "fwd_BLOCK_N": 64, "num_stages": 2, "bwd_BLOCK_M": 64}
    assert compared(inputs, **sizes) == "hopper hopper"
    assert compared(inputs, "hopper", fwd_num_stages=2, bwd_num_stages=1) == "hopper hopper"


def test_sizes_of_the_portable_kernels() -> None:
    inputs = features(300)
    assert compared(inputs, BLOCK_M=64, BLOCK_N=32, num_warps=4) == "triton triton"
    assert compared(inputs, "triton", BLOCK_M=32, BLOCK_N=64, num_stages=1) == "triton triton"
    few = [t.detach() for t in features(300, queries=2)]
    out = flex_attention(*few, kernel_options={"BLOCK_N": 32})
    assert stats().kernel == "decode"
    torch.testing.assert_close(out, flex_attention(*few, backend="reference"), atol=0.02, rtol=0)


def test_calls_made_again_keep_their_kernels_and_tiles() -> None:
    mask = masks.causal()
    for backend, sizes in (("auto", None), ("triton", {"BLOCK_M": 64}), ("decode", {"BLOCK_N": 32})):
        queries = 3 if backend == "decode" else 300
        for turn in range(4):
            q, k, v = (t.detach() + 0.1 * turn for t in features(300, queries=queries))
            found = flex_attention(q, k, v, None, mask, backend=backend, kernel_options=sizes)
            best = "hopper" if HOPPER else "triton"
            assert stats().kernel == (best if backend == "auto" else backend)
            right = flex_attention(q, k, v, None, mask, backend="reference")
            torch.testing.assert_close(found.float(), right.float(), atol=0.03, rtol=0)


def test_sizes_that_fit_nowhere_say_so() -> None:
    inputs = features(600, 256, torch.float32)
    with pytest.raises(UnsupportedError, match=r"kernel options do not fit .*256 features .* on sm_"):
        flex_attention(*inputs, kernel_options={"BLOCK_M": 128, "BLOCK_N": 128, "num_stages": 8})


def test_precision_of_float32() -> None:
    inputs = features(300, dtype=torch.float32)
    right = flex_attention(*inputs, backend="reference")
    errors = {}
    for precision in ("ieee", "tf32", "tf32x3"):
        out = flex_attention(*inputs, kernel_options={"precision": precision})
        errors[precision] = float((out - right).abs().max())
    assert errors["ieee"] < 1e-5
    assert errors["tf32x3"] < 5e-5
    assert 1e-4 < errors["tf32"] < 1e-2
    few = [t.detach() for t in features(300, dtype=torch.float32, queries=2)]
    one, other = (flex_attention(*few, kernel_options={"precision": p}) for p in ("ieee", "tf32"))
    assert stats().kernel == "decode"
    assert float((one - other).abs().max()) > 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_candidate_agrees_and_the_fastest_is_kept(dtype: torch.dtype, folder: Path) -> None:
    from torch_flexattn.tune.winner import Trial, timed_anew

    inputs, heard = features(600, dtype=dtype), []
    with timed_anew(lambda key, found: heard.append(found)):
        compared(inputs, autotune=True)
    assert len(heard) == 2
    for found in heard:
        wrong: list[Trial] = [t for t in found if t.error == "its results differ"]
        assert wrong == []
        assert sum(t.ms is not None for t in found) >= 3, [t.error for t in found]
    kept = json.loads((folder / "tuned.json").read_text())["winners"]
    assert sorted(key.split(" ")[3] for key in kept) == ["backward", "forward"]
    compared(inputs, autotune="db")


def test_decoding_is_tuned(folder: Path) -> None:
    few = [t.detach() for t in features(2000, 128, queries=1)]
    out = flex_attention(*few, mask_mod=masks.causal(), q_offset=1999, kernel_options={"autotune": True})
    assert stats().kernel == "decode"
    right = flex_attention(*few, mask_mod=masks.causal(), q_offset=1999, backend="reference")
    torch.testing.assert_close(out, right, atol=0.02, rtol=0)
    assert len(json.loads((folder / "tuned.json").read_text())["winners"]) == 1


def test_while_a_graph_is_captured_nothing_is_timed(folder: Path) -> None:
    inputs = [t.detach() for t in features(300)]
    mask = masks.causal()
    warmup([CallSpec((2, 4, 300, 64), (2, 4, 300, 64), device="cuda", arguments={"mask_mod": mask})])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flex_attention(*inputs, mask_mod=mask, kernel_options={"autotune": True})
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(out, flex_attention(*inputs, mask_mod=mask), atol=0.02, rtol=0)
    assert not (folder / "tuned.json").exists()


def test_a_warmed_call_can_be_captured_and_compiles_nothing() -> None:
    mask, score = masks.sliding_window(77), scores.softcap(11.0)
    arguments = {"mask_mod": mask, "score_mod": score}
    shape = (2, 4, 320, 64)
    (warmed,) = warmup(
        [CallSpec(shape, shape, dtype=torch.bfloat16, device="cuda", backward=True, arguments=arguments)]
    )
    assert warmed.kernels == (("hopper",) * 2 if HOPPER else ("triton",) * 2)
    reset_stats()
    inputs = features(320)
    out = flex_attention(*inputs, **arguments)
    torch.autograd.grad(out, inputs, torch.ones_like(out))
    assert (stats().compiles, stats().masks_built) == (0, 0)


@pytest.mark.parametrize("suite", ["paper", "gym", "decode", "paged", "mask", "biasgrad"])
def test_bench_runs(suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peers = {"paged": "contiguous", "mask": "torch_flex_eager"}.get(suite, "math,flash,efficient,cudnn")
    path = tmp_path / "found.json"
    assert main(["bench", "--suite", suite, "--quick", "--peers", peers, "--json", str(path)]) == 0
    cases = json.loads(path.read_text())["cases"]
    assert all(case["ours_ms"] > 0 for case in cases)
    assert all(case["peak_bytes"]["ours"] > 0 for case in cases)
    assert all(case["rates"]["flops_per_s"] > 0 for case in cases if suite != "mask")
    assert any(case["peers_ms"] for case in cases)
    differing = [case for case in cases if any("differ" in e for e in case["errors"].values())]
    assert differing == []
    capsys.readouterr()


def test_bench_races_pytorchs_flex_attention(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    line = ["bench", "--suite", "gym", "--quick", "--peers", "torch_flex", "--json", str(path)]
    assert main(line) == 0
    assert all(case["speedup"]["torch_flex"] > 0 for case in json.loads(path.read_text())["cases"])


@pytest.mark.parametrize("suite", ["decode", "paged"])
def test_bench_measures_other_packages_or_says_why_not(suite: str, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    line = ["bench", "--suite", suite, "--quick", "--peers", "fa2,fa3,flashinfer", "--json", str(path)]
    assert main(line) == 0
    found = json.loads(path.read_text())
    for name in ("fa2", "fa3", "flashinfer"):
        for case in found["cases"]:
            places = found["not_measured"], case["errors"], case["peers_ms"]
            assert sum(name in place for place in places) == 1
            assert "differ" not in case["errors"].get(name, "")


@pytest.mark.parametrize("suite", ["paper", "gym", "decode", "paged", "mask", "biasgrad"])
def test_bench_gives_equal_bits(suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bits.json"
    line = ["bench", "--suite", suite, "--quick", "--deterministic", "--repeat", "5", "--json", str(path)]
    assert main(line) == 0, capsys.readouterr().out
    found = json.loads(path.read_text())
    assert found["equal"]
    assert all(case["runs"] == 5 for case in found["cases"])
    if suite in ("paper", "gym", "biasgrad"):
        assert all(case["kernel"].endswith("/triton") for case in found["cases"])  # of the backward pass


def test_tune_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["tune", "--shape", "1,4,512,64", "--mask", "causal", "--score", "alibi(4)", "--backward"]
    assert main(line) == 0
    printed = capsys.readouterr().out
    assert printed.count(" ms ") >= 6
    assert f"kept in {folder / 'tuned.json'}" in printed
