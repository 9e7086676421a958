"""What a package declares to be measured: a `Case` is timed beside peers, a `Fact` is measured on its own.

A *runner* has two steps, so that preparation is never timed: ``prepare(inputs)`` returns ``run``, and ``run()`` is
what the clock sees. Its outputs (a tensor or a sequence of tensors) are compared with the reference.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

Outputs = torch.Tensor | Sequence[torch.Tensor]
Run = Callable[[], Outputs]
Runner = Callable[[Any], Run]
Tolerance = float | Callable[[Any], Outputs]
Math = Literal["fp64", "fp32", "tf32", "bf16", "fp16"]
Bound = Literal["auto", "memory", "cache", "compute"]

__all__ = ["Bound", "Case", "Fact", "Math", "Outputs", "Run", "Runner", "Skip", "Tolerance", "matches"]


@dataclass(frozen=True)
class Skip:
    """A peer that is not measured here, and why (it is printed and saved, never dropped)."""

    reason: str

    def __post_init__(self) -> None:
        if not self.reason:
            raise ValueError("Skip(reason=''): say why the peer is not measured")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One comparison.

    Args:
        name: unique in the package, parts split by slashes: ``spmm/cora/d64/fp32``.
        tags: words for ``--filter``; cases tagged ``quick`` are the ones that ``--quick`` runs.
        make: ``make(device)`` gives the inputs, from a fixed seed. Every runner gets the same object.
        ours: our runner.
        peers: name of a peer → its runner, or `Skip`.
        reference: ``reference(inputs)`` gives the outputs in float64 (or exact integers), by the plainest means.
        tolerance: largest allowed error of everyone: a number, in the measure of `benchmarks.check.relative_error`, or
            a function of the inputs that gives the largest allowed ``|out - ref|`` of every element of the outputs.
        compared: ``compared(inputs, outputs)`` gives what of the outputs is compared with the reference; default: all.
            Never timed.
        peer_tolerance: peer → its own tolerance, for a peer that computes in a lower precision by design.
        flops, bytes: work that the task needs at least, as a number or a function of the inputs; ``bytes`` counts
            each input read once and each output written once unless ``note`` says otherwise.
        math: which GEMM gives the compute ceiling.
        bound: which ceiling the roofline fraction is taken of; ``"auto"`` takes the one that costs more time.
        kernel: which of our kernels runs, as a string or a function of the inputs.
        devices: device types the case makes sense on.
        note: what a reader must know; required when there is no peer.
    """

    name: str
    tags: tuple[str, ...]
    make: Callable[[torch.device], Any]
    ours: Runner
    reference: Callable[[Any], Outputs]
    tolerance: Tolerance
    peers: Mapping[str, Runner | Skip] = field(default_factory=dict)
    compared: Callable[[Any, Outputs], Outputs] | None = None
    peer_tolerance: Mapping[str, Tolerance] = field(default_factory=dict)
    flops: float | Callable[[Any], float] = 0.0
    bytes: float | Callable[[Any], float] = 0.0
    math: Math = "fp32"
    bound: Bound = "auto"
    kernel: str | Callable[[Any], str] = ""
    devices: tuple[str, ...] = ("cpu", "cuda")
    note: str = ""

    def __post_init__(self) -> None:
        if not callable(self.tolerance) and not self.tolerance >= 0:
            raise ValueError(f"{self.name}: tolerance must be >= 0, got {self.tolerance}")
        if not self.peers and not self.note:
            raise ValueError(f"{self.name}: a case without peers says why in note=")
        if "ours" in self.peers:
            raise ValueError(f"{self.name}: 'ours' cannot be the name of a peer")
        if unknown := set(self.peer_tolerance) - set(self.peers):
            raise ValueError(f"{self.name}: peer_tolerance names no peer: {sorted(unknown)}")


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A measured value that is no race: bytes, an accuracy, a build rate.

    Args:
        name: unique in the package.
        measure: ``measure(device, seed)`` gives one value.
        unit: unit of the value (``B``, ``%``, ``ms``, …; empty for a plain ratio or count).
        target: what we want, as ``"<= 150"``, ``">= 0.95"`` or ``"within 0.5 of 0"``; empty for none.
        seeds: one measurement a seed; mean and standard deviation are saved when there are several.
    """

    name: str
    measure: Callable[[torch.device, int], float]
    unit: str = ""
    target: str = ""
    seeds: tuple[int, ...] = (0,)
    tags: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu", "cuda")
    note: str = ""

    def __post_init__(self) -> None:
        if not self.seeds:
            raise ValueError(f"{self.name}: seeds must not be empty")


def matches(item: Case | Fact, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns is a tag of the item or a part of its name (no pattern: always)."""
    return not patterns or any(pattern in item.tags or pattern in item.name for pattern in patterns)
