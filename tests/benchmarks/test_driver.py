"""One case: who is timed, who is not, and in which order."""

from collections import Counter
from itertools import pairwise

import pytest
import torch

from benchmarks.case import Case, Fact, Skip
from benchmarks.ceilings import Ceilings
from benchmarks.clock import CpuClock, calls_per_sample
from benchmarks.driver import Refused, alternate, measure_fact, meets, run_case

CPU = torch.device("cpu")


@pytest.fixture
def ceilings():
    """Round roofs, so that fractions can be worked out by hand."""
    return Ceilings(CPU, measured={"memory_copy_bytes_per_s": 1e9, "gemm_fp32_flops_per_s": 1e9})


class CountingClock(CpuClock):
    """Counts samples, and answers a time of its own a runner."""

    def __init__(self, times):
        self.times, self.samples = times, Counter()

    def warm(self, run, calls):
        run()
        self.samples[run.__name__] += 1
        return self.times[run.__name__]


def named(name, function):
    def prepare(inputs):
        def run():
            return function(inputs)

        run.__name__ = name
        return run

    return prepare


def test_speedup_is_the_peers_median_over_ours(toy_case, ceilings):
    peers = {"slow": named("slow", lambda x: x.sum(1)), "fast": named("fast", lambda x: x.sum(1))}
    case = toy_case(ours=named("ours", lambda x: x.sum(1)), peers=peers)
    result = run_case(case, CPU, CountingClock({"ours": 2.0, "slow": 6.0, "fast": 1.0}), ceilings, rounds=5)
    assert result.ours_ms == 2.0
    assert result.speedup == {"slow": 3.0, "fast": 0.5}


def test_roofline_fraction_is_the_time_at_the_ceiling_over_ours(toy_case, ceilings):
    case = toy_case(ours=named("ours", lambda x: x.sum(1)), peers={}, note="alone", flops=1e6, bytes=4e6)
    result = run_case(case, CPU, CountingClock({"ours": 8.0}), ceilings, rounds=5)
    assert result.roofline is not None
    assert (result.roofline.bound, result.roofline.fraction) == ("dram", pytest.approx(0.5))  # 4e6 B at 1e9 B/s is 4 ms


def test_wrong_ours_is_refused_and_nobody_is_timed(toy_case, ceilings):
    clock = CountingClock({"ours": 1.0, "peer": 1.0})
    case = toy_case(ours=named("ours", lambda x: x.sum(1) + 1), peers={"peer": named("peer", lambda x: x.sum(1))})
    with pytest.raises(Refused, match=r"rowsum/64: .*differs from the reference"):
        run_case(case, CPU, clock, ceilings, rounds=5)
    assert not clock.samples


def test_ours_that_turns_wrong_while_timed_is_refused(toy_case, ceilings):
    calls = []

    def decays(x):
        calls.append(1)
        return x.sum(1) + (1.0 if len(calls) > 6 else 0.0)

    case = toy_case(ours=lambda x: lambda: decays(x), peers={}, note="alone")
    with pytest.raises(Refused, match="right before timing"):
        run_case(case, CPU, CpuClock(), ceilings, rounds=10)


def test_a_peer_that_is_wrong_broken_or_absent_is_recorded_with_its_reason(toy_case, ceilings):
    result = run_case(toy_case(), CPU, CpuClock(), ceilings, rounds=10)
    assert set(result.peers_ms) == {"matmul"}
    assert result.peers_skipped["absent"] == "needs a licence"
    assert result.peers_skipped["broken"] == "RuntimeError: no kernel for this shape"
    assert "differs from the reference" in result.peers_skipped["wrong"]


def test_a_peer_that_fails_while_timed_is_recorded(toy_case, ceilings):
    calls = []

    def tires(x):
        calls.append(1)
        if len(calls) > 8:
            raise RuntimeError("tired")
        return x.sum(1)

    case = toy_case(peers={"tired": lambda x: lambda: tires(x), "matmul": toy_case().peers["matmul"]})
    clock = CpuClock()
    clock.warm = lambda run, calls: run() is None or 1.0
    result = run_case(case, CPU, clock, ceilings, rounds=10)
    assert set(result.peers_ms) == {"matmul"}
    assert result.peers_skipped == {"tired": "RuntimeError: tired"}


def test_a_peer_of_lower_precision_is_held_to_its_own_tolerance(toy_case, ceilings):
    half = {"half": lambda x: lambda: x.half().sum(1)}
    assert "half" in run_case(toy_case(peers=half), CPU, CpuClock(), ceilings, rounds=10).peers_skipped
    result = run_case(toy_case(peers=half, peer_tolerance={"half": 1e-2}), CPU, CpuClock(), ceilings, rounds=10)
    assert result.peers_rel_err["half"] > 1e-5


def test_everyone_is_held_to_the_bound_of_each_element(toy_case, ceilings):
    off = torch.zeros(64)
    off[3] = 0.5
    peers = {"near": lambda x: lambda: x.sum(1) + off, "far": lambda x: lambda: x.sum(1) + 3 * off}
    bound = torch.full((64,), 1e-4)
    bound[3] = 1.0
    case = toy_case(peers=peers, tolerance=lambda x: bound)
    result = run_case(case, CPU, CpuClock(), ceilings, rounds=10)
    assert result.bound_share["near"] == pytest.approx(0.5, rel=1e-3)
    assert result.bound_share["ours"] < 1
    assert result.peers_skipped["far"].startswith("ValueError: differs from the reference: 1.5 times what is allowed")
    with pytest.raises(Refused, match=r"1\.5 times what is allowed"):
        run_case(toy_case(ours=peers["far"], tolerance=lambda x: bound), CPU, CpuClock(), ceilings, rounds=10)


def test_a_bound_is_computed_once_for_all(toy_case, ceilings):
    asked = []
    case = toy_case(tolerance=lambda x: asked.append(1) or torch.full((64,), 1e-3))
    run_case(case, CPU, CpuClock(), ceilings, rounds=10)
    assert len(asked) == 1


def test_a_part_of_the_outputs_may_stand_for_all(toy_case, ceilings):
    first_rows = {"compared": lambda x, out: out[:8], "reference": lambda x: x[:8].double().sum(1)}
    peers = {"later": lambda x: lambda: x.sum(1) + (torch.arange(64) >= 8), "early": lambda x: lambda: x.sum(1) + 1}
    result = run_case(toy_case(**first_rows, peers=peers), CPU, CpuClock(), ceilings, rounds=10)
    assert set(result.peers_ms) == {"later"}
    assert "differs from the reference" in result.peers_skipped["early"]


def test_without_leaves_a_peer_out_and_says_so(toy_case, ceilings):
    result = run_case(toy_case(), CPU, CpuClock(), ceilings, rounds=10, without=["matmul"])
    assert result.peers_ms == {}
    assert result.peers_skipped["matmul"] == "left out by --without"


def test_everyone_is_sampled_once_a_round_and_follows_everyone_else():
    order = []
    samplers = {name: lambda name=name: order.append(name) or 1.0 for name in "abc"}
    times, failed = alternate(samplers, rounds=30)
    assert all(sorted(order[i : i + 3]) == ["a", "b", "c"] for i in range(0, 90, 3))
    assert {first + second for first, second in pairwise(order)} >= {"ab", "ac", "ba", "bc", "ca", "cb"}
    assert {name: len(samples) for name, samples in times.items()} == {"a": 30, "b": 30, "c": 30}
    assert not failed


def test_short_calls_are_repeated_until_a_sample_is_long_enough():
    clock = CpuClock()
    run = lambda: torch.zeros(())  # noqa: E731
    calls = calls_per_sample(clock, run, sample_ms=0.5)
    assert calls > 5
    assert calls * min(clock.warm(run, calls) for _ in range(5)) > 0.05


def test_facts_carry_mean_and_deviation_over_seeds():
    fact = Fact(
        name="acc", measure=lambda device, seed: [80.0, 81.0, 82.0][seed], unit="%", target=">= 81", seeds=(0, 1, 2)
    )
    result = measure_fact(fact, CPU)
    assert (result.value, result.mean, result.std, result.met) == (81.0, 81.0, 1.0, True)


def test_a_target_may_be_a_reach_around_a_value():
    reached = [meets(value, "within 0.5 of 2") for value in (1.4, 1.5, 2.0, 2.5, 2.6)]
    assert reached == [False, True, True, True, False]


def test_a_target_that_cannot_be_read_is_an_error():
    with pytest.raises(ValueError, match="about 3"):
        meets(3.0, "about 3")


def test_a_case_without_peers_or_note_is_an_error():
    with pytest.raises(ValueError, match="without peers says why"):
        Case(name="c", tags=(), make=id, ours=id, reference=id, tolerance=0)


def test_a_skip_needs_a_reason():
    with pytest.raises(ValueError, match="why"):
        Skip("")
