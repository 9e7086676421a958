"""Child process: import torch, then the package named on the command line, and print as JSON what that import did.

`python -P watch_import.py torch_x` prints seconds, the top-level modules loaded, what was printed, files
written, connections and processes opened, and which global settings changed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
import warnings
from typing import Any

WRITES = {
    "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.chmod", "os.symlink",
    "shutil.copyfile", "tempfile.mkstemp", "tempfile.mkdtemp",
}  # fmt: skip
OUTSIDE = {
    "socket.connect", "socket.getaddrinfo", "socket.bind", "urllib.Request",
    "subprocess.Popen", "os.system", "os.fork", "os.posix_spawn",
}  # fmt: skip


class Witness:
    """Notes audit events while it is switched on."""

    def __init__(self) -> None:
        self.on = False
        self.events: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple) -> None:
        if self.on and (event in WRITES or event in OUTSIDE or (event == "open" and _opens_to_write(args))):
            self.events.append(f"{event} {args[0]!r}")


def _opens_to_write(args: tuple) -> bool:
    _, mode, flags = args
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return bool((flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def settings() -> dict[str, Any]:
    """Everything global that an import must leave alone."""
    import torch

    return {
        "default dtype": torch.get_default_dtype(),
        "random state": torch.get_rng_state().tolist(),
        "threads": torch.get_num_threads(),
        "grad mode": torch.is_grad_enabled(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "environment": dict(os.environ),
        "warning filters": len(warnings.filters),
        "recursion limit": sys.getrecursionlimit(),
        "working folder": os.getcwd(),
    }


def watch(package: str) -> dict[str, Any]:
    """Import the package and tell what happened."""
    import torch

    witness = Witness()
    before, modules = settings(), set(sys.modules)
    with tempfile.TemporaryFile() as printed:
        kept = os.dup(1), os.dup(2)
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
        witness.on = True
        start = time.perf_counter()
        importlib.import_module(package)
        seconds = time.perf_counter() - start
        witness.on = False
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        printed.seek(0)
        text = printed.read().decode(errors="replace")
    after = settings()
    return {
        "seconds": seconds,
        "roots": sorted({name.partition(".")[0] for name in set(sys.modules) - modules}),
        "events": witness.events,
        "printed": text,
        "changed": [name for name in before if before[name] != after[name]],
        "cuda": torch.cuda.is_initialized(),
    }


if __name__ == "__main__":
    print(json.dumps(watch(sys.argv[1])))
