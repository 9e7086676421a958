"""The declared cases of torch-tcgnn: uniquely named, and right on a small real graph, ours and peers alike."""

import pytest
import torch

from benchmarks.ceilings import Ceilings
from benchmarks.clock import CpuClock
from benchmarks.driver import run_case
from benchmarks.torch_tcgnn import cases

CPU = torch.device("cpu")
ROOFS = {"memory_copy_bytes_per_s": 1e9, "gemm_fp32_flops_per_s": 1e9}


class UntimedClock(CpuClock):
    """One call a sample and a fixed answer: only rightness is of interest here."""

    def warm(self, run, calls):
        run()
        return 1.0


def quick_cases():
    """The first quick CPU case of each kind."""
    first = {}
    for case in cases():
        if "quick" in case.tags and "cpu" in case.devices:
            first.setdefault(case.name.split("/")[0], case)
    return list(first.values())


def test_names_are_unique_on_each_device():
    for device in ("cpu", "cuda"):
        names = [case.name for case in cases() if device in case.devices]
        assert len(names) == len(set(names))


@pytest.mark.data
@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("case", quick_cases(), ids=lambda case: case.name.split("/")[0])
def test_ours_and_every_peer_agree_with_the_reference(case, data_root):
    pytest.importorskip("torch_geometric")
    pytest.importorskip("scipy")
    result = run_case(case, CPU, UntimedClock(), Ceilings(CPU, measured=dict(ROOFS)), rounds=2)
    assert set(result.peers_skipped) <= {"scipy"}
    assert set(result.peers_ms) == set(case.peers) - set(result.peers_skipped)
