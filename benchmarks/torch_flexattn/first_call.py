"""The first call of a mod in a process: milliseconds from a working CUDA context to the result on the device.

Both libraries are imported by then. Kernels are kept in a folder of the caller's: an empty one is a cold cache, which a
second process finds warm.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch_flexattn as tfa
from torch import Tensor

from benchmarks.provenance import ROOT
from benchmarks.torch_flexattn.torch_flex import compiled

IN_PROCESS = """
import torch
from benchmarks.torch_flexattn.first_call import first_call_ms
print(first_call_ms({who!r}, torch.device("cuda", 0)))
"""
CACHES = ("TORCH_FLEXATTN_CACHE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")

__all__ = ["first_call_ms", "in_new_process"]


def _mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return 7.25 * torch.tanh(score / 7.25) - 0.125 * (q_idx - kv_idx).abs()


def first_call_ms(who: str, device: torch.device) -> float:
    """Milliseconds of the first call."""
    q = torch.randn(1, 8, 1024, 64, device=device, dtype=torch.bfloat16)
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    if who == "ours":
        tfa.flex_attention(q, q, q, _mod)
    else:
        compiled()(q, q, q, score_mod=_mod)
    torch.cuda.synchronize(device)
    return (time.perf_counter() - start) * 1e3


def in_new_process(who: str, caches: Path) -> float:
    """`first_call_ms` of a new process that keeps kernels under ``caches``."""
    paths = [str(ROOT), *map(str, sorted(ROOT.glob("packages/*/src")))]
    environment = os.environ | {name: str(caches / name.lower()) for name in CACHES}
    found = subprocess.run(
        [sys.executable, "-c", IN_PROCESS.format(who=who)],
        env=environment | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if found.returncode:
        raise RuntimeError(f"first call of {who} in a new process: {found.stderr.strip().splitlines()[-1:]}")
    return float(found.stdout.split()[-1])
