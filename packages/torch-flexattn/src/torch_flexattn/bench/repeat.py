"""Whether the same call gives the same bits, however often it is made: ``deterministic=True``, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..stats import stats
from . import contenders, masks
from .race import reason
from .suites import Attend, Build, Case
from .task import Task, make_task

Named = dict[str, Tensor]
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass
class Repeated:
    """What became of a case.

    Attributes:
        name: of the case.
        runs: how often it ran.
        kernel: which of our kernels served, forward and backward.
        differing: of what differs from the first run: in how many runs, and how many numbers at most, in words.
        error: why it has no result.
    """

    name: str
    runs: int = 0
    kernel: str = ""
    differing: dict[str, str] = field(default_factory=dict)
    error: str = ""

    @property
    def is_equal(self) -> bool:
        """Every run gave the bits of the first."""
        return not self.error and not self.differing

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"equal": self.is_equal}


def repeated_cases(cases: Sequence[Case]) -> list[Case]:
    """Each once: a backward case runs the forward pass, too, and one that only the pass tells apart is the same."""
    return list(dict.fromkeys(replace(c, backward=False) if isinstance(c, Attend) else c for c in cases))


def name_of(case: Case) -> str:
    """What is repeated of a case: both passes, but for pages, which have no backward pass."""
    if isinstance(case, Build) or case.page:
        return case.name
    return case.name.replace("forward/", "both/", 1)


def repeat(case: Case, device: torch.device, dtype: torch.dtype, times: int) -> Repeated:
    """Run ours ``times`` times and compare the bits of everything with those of the first run."""
    result = Repeated(name_of(case))
    worst: dict[str, tuple[int, int, int]] = {}
    try:
        first: Named = {}
        for found in _runs(case, device, dtype, times, result):
            result.runs += 1
            first = first or found
            for name, tensor in found.items():
                off = differing_numbers(tensor, first[name])
                if off:
                    runs, most, _ = worst.get(name, (0, 0, 0))
                    worst[name] = runs + 1, max(most, off), tensor.numel()
    except Exception as error:  # recorded: the other cases go on
        result.error = reason(error)
    result.differing = {
        name: f"in {runs} of {result.runs} runs, at most {most:,} of {count:,} numbers"
        for name, (runs, most, count) in worst.items()
    }
    return result


def differing_numbers(one: Tensor, other: Tensor) -> int:
    """How many numbers have other bits: −0 is not 0, and a NaN is equal to itself."""
    kind = BITS[one.element_size()]
    return int((one.contiguous().view(kind) != other.contiguous().view(kind)).sum())


def _runs(case: Case, device: torch.device, dtype: torch.dtype, times: int, result: Repeated) -> Iterator[Named]:
    if isinstance(case, Build):
        make = masks.ours(case, device)
        for _ in range(times):
            yield {"blocks": masks.blocks_of(make())[0]}
        return
    both = not case.page
    task = make_task(replace(case, backward=both), device, dtype)
    run = contenders.ours(task, deterministic=True) if both else contenders.ours(task)
    for _ in range(times):
        yield _both_passes(task, run, result) if both else _forward_pass(run, result)


def _forward_pass(run: Callable[[], Any], result: Repeated) -> Named:
    with torch.no_grad():
        found = {"output without gradients": run()}
    result.kernel = stats().kernel
    return found


def _both_passes(task: Task, run: Callable[[], Any], result: Repeated) -> Named:
    """A call without gradients may have other kernels than one with: both are compared."""
    found = _forward_pass(run, result)
    out = run()
    result.kernel = stats().kernel
    gradients = torch.autograd.grad(out, task.wanted, task.grad)
    result.kernel += f"/{stats().kernel}"
    names = ["query", "key", "value", *(f"captured tensor {n}" for n in range(len(task.variant.learnt)))]
    return found | {"output": out.detach()} | {f"gradient of {n}": g for n, g in zip(names, gradients, strict=True)}
