"""Who takes part in which suite: by default, and at all."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..errors import InputError
from .contenders import PEERS
from .masks import PEERS as BUILDERS
from .torch_peers import BACKENDS

FLEX = ("torch_flex", "torch_flex_tma", "torch_flex_tuned")
FLASH = ("fa2", "fa3")
ALL: dict[str, tuple[str, ...]] = {
    "paper": (*FLEX, *BACKENDS, *FLASH, "flashinfer"),
    "gym": (*FLEX, *BACKENDS, *FLASH),
    "decode": (*FLEX, *BACKENDS, *FLASH, "flashinfer"),
    "paged": ("contiguous", *FLASH, "flashinfer"),
    "mask": tuple(BUILDERS),
    "biasgrad": (*FLEX, *BACKENDS, "fixed_bias"),
}
"""Everybody that a suite has a place for."""
SELDOM = ("torch_flex_tma", "torch_flex_tuned", "fa2")
"""Not by default: other ways of a peer that takes part anyway, which take long to compile."""
ON_CPU = ("torch_flex", "torch_flex_eager", "flash", "math", "contiguous", "fixed_bias")
KNOWN = tuple(dict.fromkeys(name for names in ALL.values() for name in names))


def usual(suite: str, device: torch.device) -> tuple[str, ...]:
    """Who takes part by default; on a CPU without those that have kernels for GPUs alone.

    Example:
        >>> usual("paged", torch.device("cpu"))
        ('contiguous',)
    """
    names = [name for name in ALL[suite] if name not in SELDOM]
    if device.type == "cuda":
        return tuple(names)
    return tuple(name for name in names if name in ON_CPU)


def chosen(text: str, suites: Sequence[str], device: torch.device) -> dict[str, tuple[str, ...]]:
    """What ``--peers`` says, for each suite.

    Args:
        text: ``auto``, ``all``, ``none``, or names with commas between.
        suites: whose peers they are.
        device: where they run.

    Raises:
        InputError: another name, one said twice, or one that none of the suites has a place for.

    Example:
        >>> chosen("math,contiguous", ["gym", "paged"], torch.device("cpu"))
        {'gym': ('math',), 'paged': ('contiguous',)}
    """
    if text == "none":
        return dict.fromkeys(suites, ())
    if text in ("auto", "all"):
        return {suite: ALL[suite] if text == "all" else usual(suite, device) for suite in suites}
    names = [name.strip() for name in text.split(",")]
    there = dict.fromkeys(name for suite in suites for name in ALL[suite])
    for name in names:
        if name not in KNOWN:
            raise InputError(f"--peers: {name!r} is none of auto, all, none, {', '.join(KNOWN)}")
        if name not in there:
            raise InputError(f"--peers: {name!r} takes no part in {', '.join(suites)}, which has {', '.join(there)}")
        if names.count(name) > 1:
            raise InputError(f"--peers: {name!r} is there more than once: {text!r}")
    return {suite: tuple(name for name in names if name in ALL[suite]) for suite in suites}


def absences(suite: str, names: Sequence[str], device: torch.device) -> dict[str, str]:
    """Why some of them cannot be measured on a device, whatever the case."""
    if suite == "mask":
        return {}
    found = {name: PEERS[name].absent(device) for name in names}
    return {name: why for name, why in found.items() if why}


__all__ = ["ALL", "KNOWN", "absences", "chosen", "usual"]
