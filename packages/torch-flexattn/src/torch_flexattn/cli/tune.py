"""``tune``: times the tiles of a call on a GPU and keeps the fastest, for ``kernel_options={"autotune": "db"}``."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import torch

from ..errors import InputError
from ..kernels.choose import kernels_for
from ..mods import MaskMod, ScoreMod
from ..warmup import CallSpec, warmup
from .expression import parse
from .options import HELP, add_device, count, device_of

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("tune", help="find the fastest tiles of a call", description=__doc__)
    parser.add_argument("--shape", required=True, metavar="B,H,L,E", help="of the queries, and keys unless said below")
    parser.add_argument("--kv-heads", type=count, metavar="N", help="heads of keys")
    parser.add_argument("--kv-seq", type=count, metavar="N", help="keys")
    parser.add_argument("--value-width", type=count, metavar="N", help="features of values")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="bf16", help="default: bf16")
    parser.add_argument("--mask", metavar="EXPR", help=HELP)
    parser.add_argument("--score", metavar="EXPR", help='such as "softcap(20)"')
    parser.add_argument("--backward", action="store_true", help="the backward pass, too")
    parser.add_argument("--backend", choices=("auto", "triton", "hopper", "decode"), default="auto")
    add_device(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print what was timed, and where the fastest is kept."""
    device, dtype = device_of(options), DTYPES[options.dtype]
    spec = _spec(options, device, dtype)
    if kernels_for(options.backend, device, dtype, False).name == "cpu":
        print(f"nothing to tune on {device.type}: attention runs there in PyTorch operations, which have no tiles")
        return 0
    from ..tune.store import store
    from ..tune.winner import Trial, timed_anew

    heard: list[tuple[str, list[Trial]]] = []
    with timed_anew(lambda key, found: heard.append((key, found))):
        warmup([spec])
    for key, found in heard:
        print(key)
        for trial in sorted(found, key=lambda t: float("inf") if t.ms is None else t.ms):
            print(f"  {trial.error if trial.ms is None else f'{trial.ms:.3f} ms':>12}  {trial.candidate}")
    print(f"kept in {store().path}")
    return 0


def _spec(options: argparse.Namespace, device: torch.device, dtype: torch.dtype) -> CallSpec:
    sizes = options.shape.split(",")
    try:
        batch, heads, queries, width = (count(size) for size in sizes)
    except (ValueError, argparse.ArgumentTypeError):
        raise InputError(f"--shape must be four sizes B,H,L,E of at least 1, got {options.shape!r}") from None
    mask, score = (None if text is None else _there(parse(text), device) for text in (options.mask, options.score))
    if mask is not None and not isinstance(mask, MaskMod):
        raise InputError(f"--mask must be a mask, got a score modification: {options.mask!r}")
    if score is not None and not isinstance(score, ScoreMod):
        raise InputError(f"--score must be a score modification, got a mask: {options.score!r}")
    kv_heads, keys = options.kv_heads or heads, options.kv_seq or queries
    arguments = {
        "mask_mod": mask,
        "score_mod": score,
        "enable_gqa": True,
        "q_offset": keys - queries if queries < keys else 0,
        "backend": options.backend,
        "check": False,
        "kernel_options": {"autotune": True},
    }
    return CallSpec(
        (batch, heads, queries, width), (batch, kv_heads, keys, width), options.value_width, dtype, device,
        options.backward, arguments,
    )  # fmt: skip


def _there(mod: Any, device: torch.device) -> Any:
    return dataclasses.replace(mod, captures=tuple(c.to(device) for c in mod.captures))
