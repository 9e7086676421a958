"""torch-tcgnn beside its peers: which cases there are.

Graphs and inputs are in `tasks`, their float64 answers in `oracle`. One file a question (`spmm_cpu`, `sddmm_cpu`,
`layers_cpu`) declares its cases, `cpu_peers` adapts the peers, `facts` and `accuracy` measure what is no race.
"""

from benchmarks.case import Case, Fact
from benchmarks.torch_tcgnn import accuracy, layers_cpu, sddmm_cpu, spmm_cpu
from benchmarks.torch_tcgnn import facts as measures

PEERS = ("scipy", "torch-geometric")

__all__ = ["PEERS", "cases", "facts"]


def cases() -> list[Case]:
    """All cases of the package."""
    return [*spmm_cpu.cases(), *sddmm_cpu.cases(), *layers_cpu.cases()]


def facts() -> list[Fact]:
    """All facts of the package."""
    return [*measures.facts(), *accuracy.facts()]
