"""What one thing costs over another, on a GPU: two calls timed in turns, the ratio of their medians.

A score modification over plain causal attention, the gradient of a bias over a backward pass without it, pages over
contiguous keys; and the rate at which keys and values are read beside that of a copy, which reads and writes.
"""

from functools import partial
from statistics import median

import torch

from benchmarks.case import Fact, Run
from benchmarks.clock import clock_for
from benchmarks.driver import alternate
from benchmarks.torch_flexattn.attention_gpu import ours
from benchmarks.torch_flexattn.decode_gpu import PAGED_SIZES, PAGES, SIZES, key_value_bytes, named, paged
from benchmarks.torch_flexattn.gpu_peers import backward
from benchmarks.torch_flexattn.gpu_tasks import WIDTH, decode_task, make_task

ROUNDS = 30

__all__ = ["facts"]


def _times_longer(first: Run, second: Run, device: torch.device) -> float:
    """Median time of the first over that of the second."""
    clock = clock_for(device)
    runs = {"first": first, "second": second}
    times, failed = alternate({name: partial(clock.warm, run, 1) for name, run in runs.items()}, ROUNDS)
    if failed:
        raise RuntimeError(f"failed while timed: {failed}")
    return median(times["first"]) / median(times["second"])


def _of_score(score: str, device: torch.device, seed: int) -> float:
    with_score, without = (ours(make_task("causal", name, WIDTH, device)) for name in (score, ""))
    return _times_longer(with_score, without, device)


def _of_bias_gradient(device: torch.device, seed: int) -> float:
    with_gradient, without = (
        backward(ours)(make_task("causal", "relative", WIDTH, device, backward=True, of_table=of_table))
        for of_table in (True, False)
    )
    return _times_longer(with_gradient, without, device)


def _of_pages(page: int, size: tuple[int, int], device: torch.device, seed: int) -> float:
    task = decode_task(*size, device)
    return _times_longer(paged(page, task), ours(task), device)


def _of_copy(size: tuple[int, int], device: torch.device, seed: int) -> float:
    """Bytes a second of our decoding over those of a copy: half the time of a copy of as many bytes over ours."""
    task = decode_task(*size, device)
    source = torch.ones(key_value_bytes(task) // 4, device=device)
    target = torch.empty_like(source)
    return _times_longer(lambda: target.copy_(source), ours(task), device) / 2


def facts() -> list[Fact]:
    """All ratios."""
    on_gpu = partial(Fact, devices=("cuda",))
    scores = [
        on_gpu(
            name=f"cost/{score}-over-causal/forward", measure=partial(_of_score, score), unit="×", target="<= 1.4",
            tags=("cost", "gpu", "forward"),
        )
        for score in ("softcap", "relative")
    ]  # fmt: skip
    bias = on_gpu(
        name="cost/bias-gradient/backward", measure=_of_bias_gradient, unit="×", target="<= 1.25",
        tags=("cost", "gpu", "backward", "bias-gradient"), note="of a table [H, 2S - 1], over none",
    )  # fmt: skip
    pages = [
        on_gpu(
            name=f"cost/page{page}/{named(*size)}", measure=partial(_of_pages, page, size), unit="×",
            target="<= 1.05" if page == 64 else "<= 1.10", tags=("cost", "gpu", "paged"),
            note="over our contiguous call",
        )
        for page in PAGES for size in PAGED_SIZES
    ]  # fmt: skip
    rates = [
        on_gpu(
            name=f"decode-bandwidth/{named(*size)}", measure=partial(_of_copy, size), target=">= 0.8",
            tags=("decode", "gpu"), note="keys and values read a second, over what a copy reads and writes a second",
        )
        for size in SIZES
    ]  # fmt: skip
    return [*scores, bias, *pages, *rates]
