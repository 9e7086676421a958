"""What a winner is kept under: all that decides which tiles are fast, lengths by powers of two."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import torch

from ..kernels.launch.binary import compiler_version
from ..kernels.passes import Pass
from ..mods import MaskMod
from ..program import Program


def key_of(call: Pass, names: Sequence[str]) -> str:
    """The key of a pass that some kernels can serve."""
    q, k, v = call.features
    mask, score = call.options["mask"], call.options["score"]
    mod = mask if mask is None or isinstance(mask, MaskMod) else mask.mod
    block = (0, 0) if isinstance(mask, MaskMod) else call.block
    return " ".join(
        [
            machine(q.device),
            "backward" if call.backward else "forward",
            f"of={','.join(names)}",
            f"dtype={str(q.dtype).removeprefix('torch.')}",
            f"products={call.products}",
            f"E={q.shape[3]}",
            f"Ev={v.shape[3]}",
            f"group={q.shape[1] // k.shape[1]}",
            f"L<={_bucket(q.shape[2])}",
            f"S<={_bucket(k.shape[2])}",
            f"block={block[0]}x{block[1]}",
            f"mask={_digest(None if mod is None else mod.program)}",
            f"score={_digest(None if score is None else score.program)}",
            f"lens={call.kv_lens is not None}",
            f"dropout={call.dropout_p > 0}",
            f"deterministic={call.deterministic}",
        ]
    )


@functools.lru_cache(maxsize=64)
def machine(device: torch.device) -> str:
    """The GPU, and the compiler of the kernels."""
    compiler = f"triton={compiler_version()}"
    if device.type != "cuda":
        return f"{device.type} {compiler}"
    of = torch.cuda.get_device_properties(device)
    return f"{of.name.replace(' ', '_')} sm_{of.major}{of.minor} {compiler}"


def _bucket(length: int) -> int:
    return 1 << (max(length, 1) - 1).bit_length()


@functools.lru_cache(maxsize=1024)
def _digest(program: Program | None) -> str:
    return "none" if program is None else hashlib.sha256(program.text.encode()).hexdigest()[:16]
