"""What torch-flexattn is measured by: `python -m benchmarks torch-flexattn`.

`tasks` has inputs and masks, `oracle` the float64 answers, `attention_cpu` the races, `facts` what is measured alone:
how long masks take to build, what a call and a new mod cost.
"""

from benchmarks.case import Case, Fact
from benchmarks.torch_flexattn import attention_cpu
from benchmarks.torch_flexattn import facts as facts_cpu

PEERS = ()
"""Distributions whose versions are recorded beside the results; PyTorch's own are."""

__all__ = ["PEERS", "cases", "facts"]


def cases() -> list[Case]:
    """All cases of the package."""
    return attention_cpu.cases()


def facts() -> list[Fact]:
    """All facts of the package."""
    return facts_cpu.facts()
