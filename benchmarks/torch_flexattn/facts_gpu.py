"""What is measured on a GPU without a race: block masks, the host's share of a call, first calls, peak memory.

Targets are those of the package's design. Times of masks and first calls end when the device is done; peaks are of
PyTorch's allocator. The host's share is that of calls too small to make it wait.
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch_flexattn as tfa
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.case import Fact, Run, Runner
from benchmarks.torch_flexattn.attention_gpu import ours
from benchmarks.torch_flexattn.first_call import in_new_process
from benchmarks.torch_flexattn.gpu_tasks import BATCH, HEADS, LENGTH, WIDTH, make_task
from benchmarks.torch_flexattn.tasks import mask_of
from benchmarks.torch_flexattn.torch_flex import compiled

MASKS = ("causal", "window1000", "documents", "prefix")
LENGTHS = {131_072: ("<= 1.3", 32 << 20), 1_048_576: ("<= 20", 128 << 20)}
TINY = ((16, 16), (256, 64))
REPEATS, CALLS, SAMPLES = 7, 200, 20

__all__ = ["facts"]


def _build(mask: str, length: int, device: torch.device) -> Run:
    mod = mask_of(mask, length, device)

    def run() -> Tensor:
        return tfa.create_block_mask(mod, None, None, length, length, device=device).runs

    return run


def _build_ms(mask: str, length: int, device: torch.device, seed: int) -> float:
    run = _build(mask, length, device)
    seconds = []
    for _ in range(1 + REPEATS):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        run()
        torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return median(seconds[1:]) * 1e3


def _peak_bytes(run: Run, device: torch.device) -> float:
    """Of a call after the first, what it returns included."""
    run()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return float(torch.cuda.max_memory_allocated(device) - before)


def _build_bytes(mask: str, length: int, device: torch.device, seed: int) -> float:
    return _peak_bytes(_build(mask, length, device), device)


def _step_bytes(mask: str, score: str, device: torch.device, seed: int) -> float:
    """Peak of forward and backward, without inputs, output and gradients."""
    task = make_task(mask, score, WIDTH, device, backward=True)
    forward = ours(task)
    peak = _peak_bytes(lambda: torch.autograd.grad(forward(), task.wanted, task.grad), device)
    return peak - sum(t.numel() * t.element_size() for t in (task.q, *task.wanted))


def _step_target() -> str:
    """8 B a row, 4 B an element of q, and 1 MiB."""
    rows = BATCH * HEADS * LENGTH
    return f"<= {(8 + 4 * WIDTH) * rows + (1 << 20)}"


def _host_us(make: Runner, size: tuple[int, int], device: torch.device, seed: int) -> float:
    """Microseconds of the host to queue one call of one head."""
    run = make(torch.randn(1, 1, *size, device=device, dtype=torch.bfloat16))

    def sample() -> float:
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        for _ in range(CALLS):
            run()
        return (time.perf_counter() - start) / CALLS * 1e6

    sample()
    return median(sample() for _ in range(SAMPLES))


def _ours(q: Tensor) -> Run:
    mask = tfa.masks.causal()
    return lambda: tfa.flex_attention(q, q, q, mask_mod=mask)


def _torch_flex(q: Tensor) -> Run:
    attend = compiled()
    return lambda: attend(q, q, q)


def _sdpa(q: Tensor) -> Run:
    return lambda: scaled_dot_product_attention(q, q, q, is_causal=True)


HOSTS = (
    ("flex-attention", _ours, "<= 40", ()),
    ("torch-flex", _torch_flex, "", ("compiled",)),
    ("sdpa", _sdpa, "", ()),
)


def _first_call_ms(who: str, warm: bool, device: torch.device, seed: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        if warm:
            in_new_process(who, Path(folder))
        return in_new_process(who, Path(folder))


def _on_gpu(
    name: str,
    measure: Callable[[torch.device, int], float],
    unit: str,
    target: str = "",
    note: str = "",
    *tags: str,
) -> Fact:
    kind = name.split("/")[0]
    return Fact(
        name=name, measure=measure, unit=unit, target=target, tags=(kind, "gpu", *tags), devices=("cuda",), note=note
    )


def facts() -> list[Fact]:
    """Masks at both lengths, calls, first calls, memory."""
    return [
        *(
            _on_gpu(f"mask-build/{mask}/s{length}", partial(_build_ms, mask, length), "ms", target, "", "mask")
            for length, (target, _) in LENGTHS.items() for mask in MASKS
        ),
        *(
            _on_gpu(f"mask-peak/{mask}/s{length}", partial(_build_bytes, mask, length), "B", f"<= {peak}", "", "mask")
            for length, (_, peak) in LENGTHS.items() for mask in MASKS
        ),
        *(
            _on_gpu(f"peak-memory/{mask}{score and '-' + score}/forward-backward", partial(_step_bytes, mask, score),
                    "B", _step_target(), "beside inputs, output and gradients", "memory")
            for mask, score in (("full", ""), ("causal", ""), ("causal", "softcap"))
        ),
        *(
            _on_gpu(f"call/{name}/{rows}x{width}", partial(_host_us, make, (rows, width)), "µs", target,
                    "to queue a call of one head", "host", *tags)
            for name, make, target, tags in HOSTS for rows, width in TINY
        ),
        _on_gpu("first-call/cold", partial(_first_call_ms, "ours", False), "ms", "<= 3000", "empty caches", "host"),
        _on_gpu("first-call/warm", partial(_first_call_ms, "ours", True), "ms", "<= 300",
                "a new process that finds the kernels on disk", "host"),
        _on_gpu("first-call-torch-flex/cold", partial(_first_call_ms, "torch-flex", False), "ms", "",
                "torch.compile, empty caches", "host"),
    ]  # fmt: skip
