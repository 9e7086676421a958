"""The search for tilings: what is timed, what wins, what is stored and then used by the launchers."""

import json

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn import cost, data, tiling, tune_tilings
from torch_tcgnn.cli import main
from torch_tcgnn.cli import tune as command
from torch_tcgnn.kernels.cuda import bitblock_spmm, csr_spmm
from torch_tcgnn.tiling import CHOICES, SHARED_BYTES, BlockTiling, RowTiling, bucket_of, tiling_on
from torch_tcgnn.tune_tilings import best, candidates, measure

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
RULE, OTHER, THIRD = RowTiling(256, 2, 4), RowTiling(128, 2, 4), RowTiling(256, 4, 4)
BUCKET = bucket_of(4, 64, 1_000, 9_000)
GRAPHS = {
    "few": lambda device: data.sbm([8] * 10, 0.5, 0.01, device=device),
    "many": lambda device: data.sbm([32] * 40, 0.5, 1e-3, device=device),
}


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A GPU by name only, and a clock: eight warps sum rows in four fifths of the time, nothing else matters.

    Yields the calls that were timed, as (device, rounds, keys).
    """
    monkeypatch.setenv("TORCH_TCGNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Imaginary 9000")
    monkeypatch.setattr(tune_tilings, "tunable", lambda device: torch.device("cpu"))
    monkeypatch.setattr(tune_tilings, "GRAPHS", GRAPHS)
    timed = []

    def clock(calls, device, *, rounds):
        timed.append((device, rounds, list(calls)))
        return {
            t: [drift * (8.0 if isinstance(t, RowTiling) and t.warps == 8 else 10.0) for drift in range(1, rounds + 1)]
            for t in calls
        }

    monkeypatch.setattr(tune_tilings, "kernel_samples_us", clock)
    tiling.forget_tilings()
    yield timed
    tiling.forget_tilings()


# --- candidates ---


def kernels(name, dtype, width):
    """By kind: the rule's tiling for a graph, and what configures a tiling for it."""
    graph = GRAPHS[name]("cpu")
    g = tcg.TCGraph.from_edge_index(graph.edge_index, graph.num_nodes)
    x = torch.ones(graph.num_nodes, width, dtype=dtype)
    found = tune_tilings._kernels(g, x, torch.empty_like(x))
    return {kind: (rule, configure) for kind, _, rule, configure, _ in found}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [16, 64, 256])
@pytest.mark.parametrize("name", GRAPHS)
def test_candidates_begin_with_the_rule_and_compile_to_different_kernels(dtype, width, name):
    for rule, configure in kernels(name, dtype, width).values():
        found = candidates(rule, dtype.itemsize, configure)
        assert next(iter(found)) == rule
        assert len(set(found.values())) == len(found) > 4
        assert all(found[t] == configure(t) for t in found)
        assert all(value in CHOICES[name] for t in found for name, value in t._asdict().items())
        assert {t.warps for t in found} == set(CHOICES["warps"]) or isinstance(rule, BlockTiling)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_candidate_asks_for_more_shared_memory_than_there_is(dtype):
    rule, configure = kernels("many", dtype, 256)["blocks"]
    found = candidates(rule, dtype.itemsize, configure)
    assert all(config.shared_bytes == t.shared_bytes(dtype.itemsize) <= SHARED_BYTES for t, config in found.items())


# --- the winner ---


def test_the_least_geometric_mean_over_the_graphs_of_a_bucket_wins():
    several = [{RULE: 1.0, OTHER: 0.5, THIRD: 0.8}, {RULE: 1.0, OTHER: 1.9, THIRD: 0.9}]
    found = best("rows", BUCKET, several)
    assert found.tiling == THIRD
    assert found.gain == pytest.approx(1 - (0.8 * 0.9) ** 0.5)


@pytest.mark.parametrize("ratio, tiling", [(0.975, None), (0.965, OTHER), (1.2, None)])
def test_less_than_three_percent_keeps_the_rule(ratio, tiling):
    found = best("rows", BUCKET, [{RULE: 1.0, OTHER: ratio}])
    assert found.tiling == tiling
    assert found.gain == pytest.approx(0.0 if tiling is None else 1 - ratio)


def test_a_tiling_that_was_not_timed_on_every_graph_cannot_win():
    assert best("rows", BUCKET, [{RULE: 1.0, OTHER: 0.5}, {RULE: 1.0}]).tiling is None


def test_graphs_of_one_bucket_with_different_rules_keep_them():
    assert best("rows", BUCKET, [{RULE: 1.0, OTHER: 0.5}, {THIRD: 1.0}]).tiling is None


def test_ratios_are_taken_round_by_round(monkeypatch):
    """A clock that slows down from round to round: medians of times would mix its phases."""

    def clock(calls, device, *, rounds):
        rule, *others = calls
        return {rule: [10.0, 20.0, 40.0]} | {t: [12.0, 18.0, 10.0] for t in others}

    monkeypatch.setattr(tune_tilings, "kernel_samples_us", clock)
    (_, _, relative), _ = measure(GRAPHS["few"]("cpu"), [16], torch.float32, rounds=3)
    assert sorted(set(relative.values())) == [pytest.approx(0.9), 1.0]


# --- the whole search ---


def test_winners_are_stored_and_looked_up_by_shape(bench):
    found = tune_tilings.tune_tilings(widths=(16, 64), rounds=3)
    assert {one.kind for one in found} == {"rows", "blocks"}
    for one in found:
        assert (one.tiling is not None) is (one.kind == "rows")
        assert one.gain == pytest.approx(0.2 if one.kind == "rows" else 0.0)
    many = GRAPHS["many"]("cpu")
    for width, itemsize in ((16, 4), (64, 4), (64, 2)):
        chosen = tiling_on(0, "rows", itemsize, width, many.num_nodes, many.num_edges)
        assert chosen.warps == 8
    assert tiling_on(0, "rows", 4, 128, many.num_nodes, many.num_edges) is None, "a width that was not timed"
    assert all(rounds == 3 and device.type == "cpu" for device, rounds, _ in bench)


def test_a_width_without_alignment_is_timed_as_it_runs(bench):
    assert {one.bucket for one in tune_tilings.tune_tilings(widths=(41,))} == {
        one.bucket for one in tune_tilings.tune_tilings(widths=(48,))
    }


def test_types_of_one_size_are_timed_once(bench):
    tune_tilings.tune_tilings(dtypes=DTYPES, widths=(16,))
    assert len(bench) == len(GRAPHS) * 2 * 2  # sizes, kernels


def test_a_second_search_replaces_the_first(bench, monkeypatch):
    tune_tilings.tune_tilings(widths=(16,))
    monkeypatch.setattr(
        tune_tilings, "kernel_samples_us", lambda calls, device, rounds: {t: [1.0] * rounds for t in calls}
    )
    tune_tilings.tune_tilings(widths=(16,))
    many = GRAPHS["many"]("cpu")
    assert tiling_on(0, "rows", 4, 16, many.num_nodes, many.num_edges) is None


@pytest.mark.parametrize("widths", [(), (16, 0)])
def test_widths_below_one_are_refused(bench, widths):
    with pytest.raises(ValueError, match="widths must be at least 1, got"):
        tune_tilings.tune_tilings(widths=widths)


def test_a_cpu_has_no_tilings():
    with pytest.raises(RuntimeError, match="a CPU has nothing to tune"):
        tune_tilings.tune_tilings("cpu")


def test_the_command_prints_and_writes_what_won(bench, monkeypatch, tmp_path, capsys):
    rates = cost.SM90
    monkeypatch.setattr(command, "tunable", lambda device: torch.device("cpu"))
    monkeypatch.setattr(command, "tune", lambda device, **options: {torch.float32: command_fit(rates)})
    out = tmp_path / "tune.json"
    assert main(["tune", "--dtypes", "float32", "--widths", "16", "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert "tilings: of 4 kinds of graph and width, 2 gain 3 % or more" in text
    assert text.count("warps 8") == 2
    assert "20 %" in text
    saved = json.loads(out.read_text())
    assert [one["tiling"] is None for one in saved["tilings"]] == [True, True, False, False]
    assert saved["rates"]["float32"]["right"] == 1.0


def command_fit(rates):
    from torch_tcgnn.tune import Fit

    return Fit(rates=rates, blocks_error=0.0, rows_error=0.0, right=1.0, regret=0.0)


# --- the launchers ---


class Chosen(Exception):
    """Stops a launch at the configuration."""


@pytest.fixture
def launched(monkeypatch):
    """Runs a launcher on CPU tensors up to the configuration that it would launch."""

    def stop(config, device):
        raise Chosen(config)

    for module in (csr_spmm, bitblock_spmm):
        monkeypatch.setattr(module, "_kernels", stop)
        monkeypatch.setattr(module.nvrtc, "launcher", lambda: None)

    def run(launch):
        with pytest.raises(Chosen) as caught:
            launch()
        return caught.value.args[0]

    return run


def test_launchers_take_the_stored_tiling(bench, launched, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: 0)
    many = GRAPHS["many"]("cpu")
    g = tcg.TCGraph.from_edge_index(many.edge_index, many.num_nodes)
    plan, blocks, a = g.views.plan, g.blocks, g.views.on(g.adjacency, ("tc",), torch.float32)
    x, out = torch.ones(many.num_nodes, 64), torch.empty(many.num_nodes, 64)

    def rows():
        return launched(lambda: csr_spmm.gather_sum(plan, a.col, a.edge, x, None, out))

    def windows():
        return launched(lambda: bitblock_spmm.multiply(a, x, None, "ieee", out))

    (row_rule, configure_rows), (block_rule, configure_blocks) = kernels("many", torch.float32, 64).values()
    assert rows() == configure_rows(row_rule)
    assert windows() == configure_blocks(block_rule)
    for_rows, for_blocks = RowTiling(128, 4, 8), BlockTiling(1, 3, 8)
    tiling.store_tilings("Imaginary 9000", {
        "rows": {bucket_of(4, 64, many.num_nodes, many.num_edges): for_rows},
        "blocks": {bucket_of(4, 64, blocks.items.shape[0], blocks.num_blocks): for_blocks},
    })  # fmt: skip
    assert rows() == configure_rows(for_rows) != configure_rows(row_rule)
    assert windows() == configure_blocks(for_blocks) != configure_blocks(block_rule)
    weight = torch.ones(many.num_edges)
    weighted = launched(lambda: csr_spmm.gather_sum(plan, a.col, a.edge, x, weight, out))
    assert weighted.warps == csr_spmm.WARPS, "tilings are timed without weights, and hold for sums of rows without"
    assert dict(rows().macros())["WARPS"] == "8"
    assert dict(rows().macros())["UNROLL"] == "4"
    assert dict(windows().macros())["STAGES"] == "3"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [16, 40, 128])
def test_every_candidate_gives_the_same_sums(dtype, width):
    graph = data.power_law(2_000, 60_000, device="cuda")  # with rows that are cut, and windows that are split
    g = tcg.TCGraph.from_edge_index(graph.edge_index, graph.num_nodes)
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(-4, 5, (graph.num_nodes, width), generator=rng).to("cuda", dtype)  # sums are exact
    expected = torch.zeros(graph.num_nodes, width, dtype=torch.float64, device="cuda")
    expected.index_add_(0, graph.edge_index[1], x[graph.edge_index[0]].double())
    for _, _, rule, configure, run in tune_tilings._kernels(g, x, out := torch.empty_like(x)):
        for tiling_, config in candidates(rule, dtype.itemsize, configure).items():
            out.fill_(float("nan"))
            run(config)
            assert torch.equal(out.double(), expected.to(dtype).double()), tiling_


@pytest.mark.gpu
def test_the_search_runs_on_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_TCGNN_CACHE", str(tmp_path))
    monkeypatch.setattr(tune_tilings, "GRAPHS", GRAPHS)
    tiling.forget_tilings()
    found = tune_tilings.tune_tilings(dtypes=DTYPES[:2], widths=(16, 128), rounds=2)
    assert tiling.tilings_file().exists()
    assert {one.kind for one in found} == {"rows", "blocks"}
    tiling.forget_tilings()
