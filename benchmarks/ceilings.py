"""What this device can do, measured in the same run: the roofs of the roofline.

Copy rate = (bytes read + bytes written) / time of an elementwise kernel: from memory with buffers far larger than any
cache, from cache with buffers that stay in it. Compute rate = 2·n³ / time of an n×n GEMM by the vendor's library.
The best of several samples counts: a ceiling that a busy neighbour lowers would flatter every fraction.
"""

from dataclasses import dataclass, field
from typing import get_args

import torch

from benchmarks.case import Case, Math, Run
from benchmarks.clock import Clock, calls_per_sample, clock_for
from benchmarks.result import Roofline
from benchmarks.tf32 import tf32

_MIB = 1 << 20
_DTYPE = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
_ROOF_NAME = {("cuda", "memory"): "hbm", ("cuda", "cache"): "l2", ("cpu", "memory"): "dram"}

__all__ = ["Ceilings"]


@dataclass
class Ceilings:
    """Lazily measured roofs of one device; `measured` holds them by name for the result file."""

    device: torch.device
    rounds: int = 10
    measured: dict[str, float] = field(default_factory=dict)

    def copy(self, *, cached: bool) -> float:
        """Bytes a second of a copy; from cache, the best of a few sizes (small ones are launch-bound)."""
        name = "cache_copy_bytes_per_s" if cached else "memory_copy_bytes_per_s"
        if name not in self.measured:
            cuda = self.device.type == "cuda"
            if cached:
                sizes = (4 * _MIB, 8 * _MIB, 16 * _MIB) if cuda else (_MIB // 4, _MIB, 4 * _MIB)
            else:
                sizes = (1024 * _MIB,) if cuda else (128 * _MIB,)
            self.measured[name] = max(self._copy_rate(size) for size in sizes)
        return self.measured[name]

    def _copy_rate(self, size: int) -> float:
        source = torch.ones(size // 4, device=self.device)
        target = torch.empty_like(source)
        return 2 * size / self._seconds(lambda: torch.neg(source, out=target))

    def gemm(self, kind: Math) -> float:
        """Floating-point operations a second of a large square GEMM."""
        if kind not in get_args(Math):
            raise ValueError(f"math must be one of {get_args(Math)}, got {kind!r}")
        name = f"gemm_{kind}_flops_per_s"
        if name not in self.measured:
            n = (4096 if kind in ("fp64", "fp32") else 8192) if self.device.type == "cuda" else 768
            a, b = (torch.ones(n, n, dtype=_DTYPE[kind], device=self.device) for _ in range(2))
            with tf32(kind == "tf32"):
                self.measured[name] = 2 * n**3 / self._seconds(lambda: a @ b)
        return self.measured[name]

    def roofline(self, case: Case, inputs: object, ours_ms: float) -> Roofline | None:
        """Where a case of `ours_ms` stands; None when it declares neither FLOPs nor bytes."""
        flops, size = (
            float(amount(inputs)) if callable(amount) else float(amount) for amount in (case.flops, case.bytes)
        )
        seconds = {}
        if size and case.bound in ("auto", "memory"):
            seconds["memory"] = size / self.copy(cached=False)
        if size and case.bound == "cache":
            seconds["cache"] = size / self.copy(cached=True)
        if flops and case.bound in ("auto", "compute"):
            seconds["compute"] = flops / self.gemm(case.math)
        if not seconds:
            return None
        bound = max(seconds, key=lambda name: seconds[name])
        roof = _ROOF_NAME.get((self.device.type, bound), bound)
        return Roofline(bytes=size, flops=flops, bound=roof, fraction=seconds[bound] * 1e3 / ours_ms)

    def _seconds(self, run: Run) -> float:
        clock: Clock = clock_for(self.device)
        calls = calls_per_sample(clock, run, sample_ms=2.0)
        return min(clock.warm(run, calls) for _ in range(self.rounds)) / 1e3
