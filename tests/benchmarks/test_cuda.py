"""The driver on a GPU: warm and cold, memory, ceilings."""

import time

import pytest
import torch

from benchmarks.case import Case
from benchmarks.ceilings import Ceilings
from benchmarks.clock import clock_for
from benchmarks.driver import run_case

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

MIB = 1 << 20


@pytest.fixture(scope="module")
def ceilings():
    return Ceilings(torch.device("cuda", 0))


def doubled(mib, **changes):
    """Twice a vector of that many MiB: reads it once, writes as much."""
    fields = {
        "name": f"double/{mib}",
        "tags": (),
        "make": lambda device: torch.ones(mib * MIB // 4, device=device),
        "ours": lambda x: lambda: x * 2,
        "peers": {"add": lambda x: lambda: x + x},
        "reference": lambda x: x.double() * 2,
        "tolerance": 0.0,
        "bytes": 2 * mib * MIB,
    }
    return Case(**(fields | changes))


def measure(case, ceilings):
    device = torch.device("cuda", 0)
    return run_case(case, device, clock_for(device), ceilings, rounds=10)


def test_a_vector_that_fits_in_l2_is_slower_cold_than_warm(ceilings):
    result = measure(doubled(8), ceilings)
    assert result.cold is not None
    assert result.cold.ours_ms > result.ours_ms
    assert result.cold.speedup.keys() == result.speedup.keys() == {"add"}


def test_a_call_on_the_hosts_clock_includes_the_launch_that_warm_time_leaves_out(ceilings):
    slow = {"slow": lambda x: lambda: time.sleep(5e-4) or x * 2}
    result = measure(doubled(1, peers=slow), ceilings)
    assert result.call is not None
    assert result.call.ours_ms > result.ours_ms
    assert result.call.peers_ms["slow"] > 0.5
    assert result.peers_ms["slow"] < 0.05


def test_a_copy_from_memory_runs_near_the_measured_ceiling(ceilings):
    result = measure(doubled(1024), ceilings)
    assert result.roofline is not None
    assert result.roofline.bound == "hbm"
    assert 0.7 < result.roofline.fraction < 1.15
    assert 0.8 < result.speedup["add"] < 1.25


def test_peak_memory_is_that_of_the_output(ceilings):
    result = measure(doubled(64, peers={"twice": lambda x: lambda: (x + 0) + (x + 0)}), ceilings)
    assert result.peak_bytes == {"ours": 64 * MIB, "twice": 3 * 64 * MIB}


def test_ceilings_are_ordered_as_the_hardware_is(ceilings):
    assert ceilings.copy(cached=True) > ceilings.copy(cached=False)
    assert ceilings.gemm("fp16") > ceilings.gemm("tf32") > ceilings.gemm("fp32")
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_peer_that_runs_out_of_memory_is_recorded(ceilings):
    hungry = {"hungry": lambda x: lambda: torch.empty(1 << 50, device=x.device)}
    result = measure(doubled(1, peers=hungry, note="alone"), ceilings)
    assert result.peers_skipped["hungry"].startswith("OutOfMemoryError")
