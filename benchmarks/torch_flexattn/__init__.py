"""What torch-flexattn is measured by: `python -m benchmarks torch-flexattn`.

On a CPU: `tasks` has inputs and masks, `oracle` the float64 answers, `attention_cpu` the races, `facts` what is
measured alone. On a GPU: `gpu_tasks` and `plain_mods`, `oracle_gpu`, `attention_gpu` and `decode_gpu`, `facts_gpu` and
`costs_gpu`; the peers are in `gpu_peers` and `torch_flex`. There `python -m benchmarks.warm torch-flexattn` compiles
all kernels beforehand, many at a time.
"""

from benchmarks.case import Case, Fact
from benchmarks.torch_flexattn import attention_cpu, attention_gpu, costs_gpu, decode_gpu, facts_gpu
from benchmarks.torch_flexattn import facts as facts_cpu

PEERS = ("flash-attn-3",)
"""Distributions whose versions are recorded beside the results; PyTorch's own are."""

__all__ = ["PEERS", "cases", "facts"]


def cases() -> list[Case]:
    """All cases of the package."""
    return [*attention_cpu.cases(), *attention_gpu.cases(), *decode_gpu.cases()]


def facts() -> list[Fact]:
    """All facts of the package."""
    return [*facts_cpu.facts(), *facts_gpu.facts(), *costs_gpu.facts()]
