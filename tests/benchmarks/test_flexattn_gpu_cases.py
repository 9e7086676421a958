"""The GPU cases of torch-flexattn at small sizes on a CPU: inputs, answers, and who passes."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from benchmarks.case import Skip
from benchmarks.ceilings import Ceilings
from benchmarks.clock import CpuClock
from benchmarks.driver import Refused, run_case
from benchmarks.torch_flexattn import cases, facts, gpu_tasks, oracle_gpu, torch_flex
from benchmarks.torch_flexattn.attention_gpu import KINDS, ours
from benchmarks.torch_flexattn.decode_gpu import cudnn_rows, paged
from benchmarks.torch_flexattn.gpu_peers import backward

CPU = torch.device("cpu")
ROOFS = {"memory_copy_bytes_per_s": 1e9, "gemm_bf16_flops_per_s": 1e9}


class UntimedClock(CpuClock):
    """One call a sample and a fixed answer: only rightness is of interest here."""

    def warm(self, run, calls):
        run()
        return 1.0


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Sizes for a CPU; PyTorch's flex_attention is not compiled."""
    monkeypatch.setattr(gpu_tasks, "LENGTH", 200)
    monkeypatch.setattr(gpu_tasks, "HEADS", 4)
    monkeypatch.setattr(torch_flex, "compiled", lambda: torch_flex.flex_attention)


def on_gpu(kind):
    """Cases of a kind, by name."""
    return {case.name: case for case in cases() if "cuda" in case.devices and case.name.startswith(kind + "/")}


def judged(case):
    return run_case(case, CPU, UntimedClock(), Ceilings(CPU, measured=dict(ROOFS)), rounds=2)


def test_names_are_unique_on_each_device():
    for device in ("cpu", "cuda"):
        names = [item.name for item in (*cases(), *facts()) if device in item.devices]
        assert len(names) == len(set(names))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", [name for name in on_gpu("forward") if "d128" in name])
def test_forward_is_right_and_so_is_torchs(name):
    result = judged(on_gpu("forward")[name])
    assert {"torch-flex", "torch-flex-tma"} <= set(result.peers_ms)
    assert 0 < result.bound_share["ours"] < 1


@pytest.mark.parametrize("name", [name for name in on_gpu("backward") if "d128" in name])
def test_backward_is_right(name):
    case = on_gpu("backward")[name]
    result = judged(replace(case, peers={"none": Skip("there is no backward pass of it on a CPU")}))
    assert 0 < result.bound_share["ours"] < 1


def test_the_backward_case_times_no_forward_pass():
    forwards = []
    runner = backward(lambda task: lambda: forwards.append(1) or ours(task)())
    run = runner(gpu_tasks.make_task("causal", "", 16, CPU, backward=True))
    first, second = run(), run()
    assert len(forwards) == 1
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_gradient_of_the_table_is_wanted_only_where_the_name_says_so():
    wanted = {case.name: len(case.make(CPU).wanted) for case in on_gpu("backward").values() if "relative" in case.name}
    learnt = {f"backward/causal-relative-gradient/d{width}/bf16": 4 for width in (64, 128)}
    assert wanted == {"backward/causal-relative/d128/bf16": 3} | learnt


@pytest.mark.parametrize(("mask", "score", "width"), [kind for kind in KINDS if kind[2] == 128])
def test_the_library_says_what_the_plain_functions_say(mask, score, width, monkeypatch):
    length = 1100  # more than a window or a document
    monkeypatch.setattr(gpu_tasks, "LENGTH", length)
    task = gpu_tasks.make_task(mask, score, width, CPU)
    i, zero = torch.arange(length), torch.tensor(0)
    if task.mask is not None:
        assert torch.equal(task.mask(zero, zero, i[:, None], i), task.visible())
    if task.score is not None:
        h = torch.arange(4).view(4, 1, 1)
        s = torch.randn(4, length, length, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(task.score(s, zero, h, i[:, None], i), task.plain_score(s, zero, h, i[:, None], i))


def test_windows_and_documents_hide_what_causal_masks_show(monkeypatch):
    monkeypatch.setattr(gpu_tasks, "LENGTH", 1100)
    causal, window, documents = (
        gpu_tasks.make_task(mask, "", 16, CPU).visible() for mask in ("causal", "window1024", "documents1000")
    )
    assert int((causal & ~window).sum()) == sum(range(1100 - 1024 + 1))
    assert int((causal & ~documents).sum()) == 100 * 1000


@pytest.mark.parametrize("backwards", [False, True])
def test_a_wrong_row_is_refused(backwards):
    name = "backward" if backwards else "forward"
    case = on_gpu(name)[f"{name}/causal/d128/bf16"]

    def wrong(task):
        run = case.ours(task)

        def with_wrong_row():
            first, *others = [t.clone() for t in ([run()] if torch.is_tensor(run()) else run())]
            first[1, 3, 150] *= 1.1
            return [first, *others]

        return with_wrong_row

    with pytest.raises(Refused, match="times what is allowed"):
        judged(replace(case, ours=wrong, peers={}, note="alone"))


def test_a_nan_in_a_head_that_is_not_compared_is_refused():
    case = on_gpu("forward")["forward/causal/d128/bf16"]

    def spoilt(task):
        run = case.ours(task)

        def with_nan():
            out = run().clone()
            out[0, 1, 0, 0] = float("nan")
            return out

        return with_nan

    assert 1 not in case.make(CPU).heads
    with pytest.raises(Refused, match="differs"):
        judged(replace(case, ours=spoilt, peers={}, note="alone"))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("runner", [ours, torch_flex.torch_flex, partial(paged, 16), partial(paged, 64)])
def test_decoding_is_right(runner):
    (case, *_) = on_gpu("decode").values()
    small = replace(case, make=lambda device: gpu_tasks.decode_task(3, 200, device, heads=8, kv_heads=2))
    assert 0 < judged(replace(small, ours=runner, peers={}, note="alone")).bound_share["ours"] < 1


def test_query_heads_of_a_key_head_may_be_rows_of_one_head(monkeypatch):
    from benchmarks.torch_flexattn import decode_gpu

    monkeypatch.setattr(decode_gpu, "cudnn", ours)
    task = gpu_tasks.decode_task(3, 200, CPU, heads=8, kv_heads=2)
    torch.testing.assert_close(cudnn_rows(task)(), ours(task)())


def test_work_counts_visible_pairs():
    task = gpu_tasks.make_task("causal", "", 16, CPU)
    assert task.pairs() == 2 * 4 * 200 * 201 // 2
    assert gpu_tasks.make_task("full", "", 16, CPU).pairs() == 2 * 4 * 200 * 200


def test_the_answer_of_a_row_that_sees_one_key_is_its_value():
    task = gpu_tasks.make_task("causal", "", 16, CPU)
    exact = oracle_gpu.reference(task)[0]
    torch.testing.assert_close(exact[1, 1, 0], task.v[1, 3, 0].double())
