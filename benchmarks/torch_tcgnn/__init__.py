"""torch-tcgnn beside its peers: which cases there are.

One file a question and device: ``spmm_cpu``, ``sddmm_gpu``, ``layers_gpu``, … declare cases. Graphs and inputs are in
`tasks` and `gpu_tasks`, float64 answers in `oracle` and `layer_steps`, how far sums may lie from them in `bounds`, the
peers in `cpu_peers`, `gpu_peers` and `cusparse`; `facts`, `facts_gpu`, `accuracy` and `accuracy_gpu` measure what is no
race.
"""

from benchmarks.case import Case, Fact
from benchmarks.torch_tcgnn import (
    accuracy,
    accuracy_gpu,
    facts_gpu,
    layers_cpu,
    layers_gpu,
    sddmm_cpu,
    sddmm_gpu,
    spmm_cpu,
    spmm_gpu,
)
from benchmarks.torch_tcgnn import facts as facts_cpu

PEERS = ("scipy", "torch-geometric")

__all__ = ["PEERS", "cases", "facts"]


def cases() -> list[Case]:
    """All cases of the package."""
    on_cpu = (*spmm_cpu.cases(), *sddmm_cpu.cases(), *layers_cpu.cases())
    return [*on_cpu, *spmm_gpu.cases(), *sddmm_gpu.cases(), *layers_gpu.cases()]


def facts() -> list[Fact]:
    """All facts of the package."""
    return [*facts_cpu.facts(), *facts_gpu.facts(), *accuracy.facts(), *accuracy_gpu.facts()]
