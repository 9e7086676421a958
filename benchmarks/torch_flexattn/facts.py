"""What is measured without a race: the time and the size of block masks, the cost of a call and of a new mod.

Targets are those of the package's design (issue text and wish list). A GPU's are not among them.
"""

import time
from functools import partial
from statistics import median

import torch
import torch_flexattn as tfa
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.case import Fact, Run
from benchmarks.clock import CpuClock, calls_per_sample
from benchmarks.torch_flexattn.tasks import mask_of

MASKS = ("causal", "window1000", "documents", "prefix")
LENGTHS = (131_072, 1_048_576)
REPEATS = 7

__all__ = ["facts"]


def _built(mask: str, length: int, device: torch.device) -> tfa.BlockMask:
    return tfa.create_block_mask(mask_of(mask, length, device), None, None, length, length, device=device)


def _build_ms(mask: str, length: int, device: torch.device, seed: int) -> float:
    mod = mask_of(mask, length, device)
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        tfa.create_block_mask(mod, None, None, length, length, device=device)
        seconds.append(time.perf_counter() - start)
    return median(seconds) * 1e3


def _mask_bytes(mask: str, length: int, device: torch.device, seed: int) -> float:
    return float(_built(mask, length, device).memory_bytes())


def _call_us(run: Run, device: torch.device, seed: int) -> float:
    """Microseconds of a call over inputs so small that only its overhead counts."""
    clock = CpuClock()
    calls = calls_per_sample(clock, run)
    return median(clock.warm(run, calls) for _ in range(50)) * 1e3


def _ours(device: torch.device, seed: int) -> float:
    q, mask = torch.randn(1, 1, 16, 16), tfa.masks.causal()
    return _call_us(lambda: tfa.flex_attention(q, q, q, block_mask=mask), device, seed)


def _sdpa(device: torch.device, seed: int) -> float:
    q = torch.randn(1, 1, 16, 16)
    return _call_us(lambda: scaled_dot_product_attention(q, q, q, is_causal=True), device, seed)


def _new_mod_ms(device: torch.device, seed: int) -> float:
    """Milliseconds of the first call of a mod that was never seen, in a process that has seen others."""
    q = torch.randn(1, 2, 256, 16)
    seconds = []
    for n in range(REPEATS):
        scope: dict[str, object] = {}
        exec(f"def mod(score, b, h, q_idx, kv_idx): return score * {n + 2} + (q_idx - kv_idx) % {n + 3}", scope)
        start = time.perf_counter()
        tfa.flex_attention(q, q, q, score_mod=scope["mod"])  # type: ignore[arg-type]
        seconds.append(time.perf_counter() - start)
    return median(seconds[1:]) * 1e3


def facts() -> list[Fact]:
    """Masks at both lengths, then calls."""
    on_cpu = partial(Fact, devices=("cpu",))
    builds = [
        on_cpu(
            name=f"mask-build/{mask}/s{length}",
            measure=partial(_build_ms, mask, length),
            unit="ms",
            tags=("mask", "cpu"),
        )
        for length in LENGTHS
        for mask in MASKS
    ]
    sizes = [
        on_cpu(
            name=f"mask-bytes/{mask}/s{LENGTHS[1]}", measure=partial(_mask_bytes, mask, LENGTHS[1]), unit="B",
            target="<= 134217728", tags=("mask", "cpu"),
        )
        for mask in MASKS
    ]  # fmt: skip
    return [
        *builds,
        *sizes,
        on_cpu(name="call/flex-attention", measure=_ours, unit="µs", tags=("host", "cpu")),
        on_cpu(
            name="call/sdpa", measure=_sdpa, unit="µs", tags=("host", "cpu"), note="of the same size, for comparison"
        ),
        on_cpu(name="first-call/new-mod", measure=_new_mod_ms, unit="ms", target="<= 3000", tags=("host", "cpu")),
    ]
