"""Where and with what a result was measured: device name and slug, git commit, versions."""

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent

__all__ = ["ROOT", "available_cpus", "commit", "device_name", "device_slug", "versions"]


def available_cpus() -> int:
    """CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_name(device: torch.device) -> str:
    """The hardware's own name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text()) if cpuinfo.exists() else None
    model = found[1].strip() if found else platform.processor() or platform.machine()
    return f"{model}, {torch.get_num_threads()} threads"


def device_slug(name: str, *, device_type: str, threads: int) -> str:
    """Folder name of a device's results.

    >>> device_slug("NVIDIA H200", device_type="cuda", threads=16)
    'h200'
    >>> device_slug("Some CPU @ 2 GHz", device_type="cpu", threads=2)
    'cpu-2c'
    """
    if device_type == "cpu":
        return f"cpu-{threads}c"
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return re.sub(r"^(nvidia-)?(geforce-)?", "", words)


def commit() -> str:
    """The checked-out commit, with ``-dirty`` when tracked sources differ from it; ``unknown`` without git."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        head = git("rev-parse", "HEAD")
        changed = git("status", "--porcelain", "--", "packages", "benchmarks", ":(exclude)benchmarks/results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("-dirty" if changed else "")


def versions(peers: Sequence[str] = ()) -> dict[str, object]:
    """Versions of Python, torch, triton and of the peers' distributions (``""``: not installed)."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "cuda": torch.version.cuda or "",
        "peers": {peer: _version(peer) for peer in peers},
    }


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
