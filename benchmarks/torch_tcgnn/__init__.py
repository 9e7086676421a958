"""torch-tcgnn beside its peers: which cases there are.

Graphs and inputs are in `tasks`, one file a question (`spmm_cpu`, `sddmm_cpu`, `gcn_cpu`) declares its cases, and peers
have their adapters in `cpu_peers`.
"""

from benchmarks.case import Case
from benchmarks.torch_tcgnn import gcn_cpu, sddmm_cpu, spmm_cpu

PEERS = ("scipy", "torch-geometric")

__all__ = ["PEERS", "cases"]


def cases() -> list[Case]:
    """All cases of the package."""
    return [*spmm_cpu.cases(), *sddmm_cpu.cases(), *gcn_cpu.cases()]
