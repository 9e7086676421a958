"""The command line: what it prints, what it stores, what it refuses."""

import json
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_tcgnn import cost, data, tiling, tune_tilings
from torch_tcgnn import tune as procedure
from torch_tcgnn.cli import main
from torch_tcgnn.cli.progress import track
from torch_tcgnn.cost import SM90, Rate, Rates
from torch_tcgnn.inspect import degrees, inspect
from torch_tcgnn.tune import Sample, fit, judge

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")
PREFERS_BLOCKS = Rates(blocks=Rate(1.0, 0.0, 0.0, 0.0), rows=Rate(1000.0, 0.0, 0.0, 0.0))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, and neither rates nor tilings remembered from another one."""
    monkeypatch.setenv("TORCH_TCGNN_CACHE", str(tmp_path / "cache"))
    cost.forget_rates()
    tiling.forget_tilings()
    yield tmp_path / "cache"
    cost.forget_rates()
    tiling.forget_tilings()


@pytest.fixture
def named_gpu(monkeypatch):
    """A GPU as far as names go: no kernel runs."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Imaginary 9000")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))


# --- tiles ---


@pytest.mark.data
def test_tiles_prints_the_papers_table(data_root, tmp_path, capsys):
    out = tmp_path / "tiles.json"
    assert main(["tiles", "cora", "citeseer", "pubmed", "--root", str(data_root), "--json", str(out)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    table = {(line[0], line[3]): (line[4], line[5]) for line in lines[1:]}
    assert table[("cora", "16x8")] == ("7,477", "1,268")
    assert table[("cora", "16x16")] == ("6,509", "681")
    assert table[("citeseer", "16x8")] == ("7,624", "1,197")
    assert table[("citeseer", "16x16")] == ("6,918", "659")
    assert table[("pubmed", "16x8")] == ("84,094", "11,474")
    saved = json.loads(out.read_text())
    assert saved["edges"] == "listed"
    assert saved["tiles"][0]["greedy"] == 7_477
    assert saved["tiles"][0]["reduction"] == pytest.approx(1 - 1_268 / 7_477)


def test_tiles_counts_a_file(triangle_mtx, capsys):
    assert main(["tiles", str(triangle_mtx)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        *("triangle", "4", "6", "16x8", "1", "1"),
        *("0.0", "%", "4.69", "%"),
    ]


# --- inspect ---


@pytest.fixture
def triangle_mtx(tmp_path):
    path = tmp_path / "triangle.mtx"
    path.write_text("%%MatrixMarket matrix coordinate pattern symmetric\n4 4 3\n2 1\n3 1\n3 2\n")
    return path


@pytest.fixture
def loops_npz(tmp_path):
    """Edges 0→1 twice, 1→1, 2→0."""
    path = tmp_path / "loops.npz"
    np.savez(
        path,
        adj_data=np.ones(4, dtype=np.float32),
        adj_indices=np.array([1, 1, 1, 0]),
        adj_indptr=np.array([0, 2, 3, 4]),
        adj_shape=np.array([3, 3]),
    )
    return path


def inspected(path, tmp_path, *more):
    out = tmp_path / "inspect.json"
    status = main(["inspect", str(path), "--device", "cpu", "--reorder", "none", "lsh", "--json", str(out), *more])
    assert status == 0
    return json.loads(out.read_text())


def test_inspect_describes_an_mtx_file(triangle_mtx, tmp_path, capsys):
    found = inspected(triangle_mtx, tmp_path, "--widths", "16")
    assert (found["num_nodes"], found["num_edges"], found["symmetric"]) == (4, 6, True)
    assert found["degrees"] == {"least": 0, "median": 2, "mean": 1.5, "p99": 2, "most": 2, "empty": 1}
    assert found["windows"]["none"]["blocks"] == 1
    assert found["windows"]["none"]["reuse"] == 2.0
    assert found["times"][0]["measured_us"] == {}
    text = capsys.readouterr().out
    assert "triangle: 4 nodes, 6 edges (symmetric)" in text
    assert "tc/lsh" in text


def test_inspect_counts_duplicates_and_loops_of_an_npz_file(loops_npz, tmp_path):
    found = inspected(loops_npz, tmp_path)
    assert (found["num_edges"], found["distinct_edges"], found["self_loops"]) == (4, 3, 1)
    assert found["symmetric"] is False
    assert found["fill"] == pytest.approx(3 / 9)


def test_inspect_cleans_the_edges_when_asked(loops_npz, tmp_path):
    found = inspected(loops_npz, tmp_path, "--edges", "undirected")
    assert (found["num_edges"], found["self_loops"], found["symmetric"]) == (4, 0, True)


@pytest.mark.parametrize("name, text", [("pairs.csv", "from,to\n0,1\n1,2\n"), ("pairs.txt", "# a path\n0 1\n1 2\n")])
def test_inspect_reads_edge_lists(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    assert inspected(path, tmp_path)["num_edges"] == 2


def test_inspect_measures_digits_on_a_cpu(tmp_path, capsys):
    pytest.importorskip("sklearn")
    found = inspected("digits", tmp_path, "--measure", "--widths", "16", "32")
    assert found["num_nodes"] == 1797
    assert [times["width"] for times in found["times"]] == [16, 32]
    assert all(times["measured_us"]["cpu"] > 0 for times in found["times"])
    assert found["windows"]["lsh"]["blocks"] < found["windows"]["none"]["blocks"]
    assert "measured µs" in capsys.readouterr().out


def test_inspect_generates_a_stand_in(tmp_path):
    found = inspected("artist/50-like", tmp_path)
    assert found["name"] == "artist/50-like"
    assert found["num_nodes"] == round(50_515 / 50)


def test_inspect_predicts_by_the_shipped_rates_without_a_gpu(cache):
    graph = data.sbm([8] * 4, 1.0, 0.0)
    (times,) = inspect(graph, reorders=("none",), widths=(16,)).times
    assert times.predicted_us == {
        "cuda": SM90.rows.predict_us(32, 224, 64),
        "tc/none": SM90.blocks.predict_us(4, 4, 64),
    }


def test_inspect_says_which_orders_pay(tmp_path, capsys):
    """Cliques with scattered ids: nothing to share as they are, whole windows where signatures bring them together."""
    nodes = torch.randperm(720, generator=torch.Generator().manual_seed(0)).tolist()
    path = tmp_path / "cliques.txt"
    cliques = [nodes[start : start + 8] for start in range(0, 720, 8)]
    path.write_text("".join(f"{a} {b}\n" for clique in cliques for a in clique for b in clique))
    out = tmp_path / "inspect.json"
    orders = ["none", "degree", "lsh", "community"]
    assert main(["inspect", str(path), "--device", "cpu", "--reorder", *orders, "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["used"] == ["lsh", "community"]
    assert found["windows"]["none"]["reuse"] < 1.5
    assert found["windows"]["lsh"]["reuse"] == 8.0
    assert found["windows"]["community"]["v16"] == 720
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert lines["order"][-1] == "used"
    assert [lines[name][-1] for name in orders[1:]] == ["no", "yes", "yes"]
    assert lines["lsh"][4:8] == ["8.00", "8.00", "100", "%"]


def test_inspect_goes_on_without_scipy(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    out = tmp_path / "inspect.json"
    assert main(["inspect", "artist/100-like", "--device", "cpu", "--reorder", "none", "rcm", "--json", str(out)]) == 0
    assert list(json.loads(out.read_text())["skipped"]) == ["rcm"]
    assert "rcm: skipped, reorder='rcm' needs SciPy" in capsys.readouterr().out


def test_degrees_of_a_graph_without_nodes():
    from torch_tcgnn import TCGraph

    assert degrees(TCGraph.from_edge_index(torch.empty(2, 0, dtype=torch.long), num_nodes=0)).most == 0


# --- bench ---

CASE_KEYS = {
    *("graph", "num_nodes", "num_edges", "width", "kernel", "ours_us", "peers_us", "speedup", "skipped"),
    *("max_rel_err", "gather_bytes", "gather_bytes_per_s", "copy_fraction"),
}


def test_bench_writes_every_case(tmp_path, capsys):
    out = tmp_path / "bench.json"
    peers = ["torch-csr-int32", "gather-index_add"]
    arguments = ["bench", "--quick", "--device", "cpu", "--rounds", "2", "--peers", *peers, "--json", str(out)]
    assert main([*arguments, "--graphs", "com-amazon/100-like", "YeastH/500-like"]) == 0
    saved = json.loads(out.read_text())
    assert {"device", "threads", "dtype", "rounds", "versions", "copy_bytes_per_s", "cases"} == set(saved)
    assert saved["versions"]["torch"] == torch.__version__ or saved["versions"]["torch"] in torch.__version__
    assert [(case["graph"], case["width"]) for case in saved["cases"]] == [
        *(("com-amazon/100-like", 16), ("com-amazon/100-like", 64)),
        *(("YeastH/500-like", 16), ("YeastH/500-like", 64)),
    ]
    for case in saved["cases"]:
        assert set(case) == CASE_KEYS
        assert case["max_rel_err"] < 1e-6
        assert set(case["peers_us"]) == set(peers)
        assert case["gather_bytes"] == case["num_edges"] * case["width"] * 4
        for peer in peers:
            assert case["speedup"][peer] == pytest.approx(case["peers_us"][peer] / case["ours_us"])
    text = capsys.readouterr().out
    assert "geometric mean" in text
    assert "embedding_bag" in text


def test_bench_lists_a_peer_that_is_missing_or_wrong(monkeypatch, tmp_path, capsys):
    from torch_tcgnn.cli import peers

    monkeypatch.setitem(sys.modules, "torch_geometric.nn", None)
    monkeypatch.setitem(peers.PEERS, "torch-csr-int32", lambda graph, x: lambda: torch.zeros_like(x))
    out = tmp_path / "bench.json"
    arguments = ["--quick", "--device", "cpu", "--rounds", "1", "--widths", "8", "--graphs", "com-amazon/200-like"]
    assert main(["bench", *arguments, "--peers", "pyg", "torch-csr-int32", "--json", str(out)]) == 0
    (case,) = json.loads(out.read_text())["cases"]
    assert case["peers_us"] == {}
    assert case["skipped"]["pyg"] == "PyG is not installed: pip install 'torch-tcgnn[pyg]'"
    assert case["skipped"]["torch-csr-int32"].startswith("it is off by 1.00e+00")
    assert "pyg skipped" in capsys.readouterr().out


def test_bench_refuses_to_time_a_wrong_result(monkeypatch):
    from torch_tcgnn.cli import bench

    monkeypatch.setattr(bench, "spmm", lambda g, x: torch.zeros_like(x))
    with pytest.raises(ArithmeticError, match="ours is off"):
        main(["bench", "--quick", "--device", "cpu", "--graphs", "com-amazon/200-like"])


# --- tune ---


def samples(rate, noise=0.0):
    """Calls that cost what ``rate`` says, up to a relative error."""
    rng = torch.Generator().manual_seed(0)
    sizes = [(r, r * d, b) for r in (3_000, 50_000, 400_000) for d in (2, 9, 40) for b in (64, 256, 1024)]
    factors = (1 + noise * torch.randn(len(sizes), generator=rng, dtype=torch.float64)).tolist()
    return [Sample(*size, rate.predict_us(*size) * factor) for size, factor in zip(sizes, factors, strict=True)]


@pytest.mark.parametrize("true", [SM90.blocks, SM90.rows, Rate(4.0, 0.0, 7.5, 0.2), Rate(0.0, 10.0, 0.0, 0.1)], ids=str)
def test_fit_recovers_the_coefficients(true):
    found = fit(samples(true))
    for name in ("fixed", "per_row", "per_entry", "per_byte"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=1e-6, abs=1e-6)


def test_fit_withstands_noise_and_never_goes_negative():
    true = Rate(6.0, 200.0, 0.0, 0.12)
    found = fit(samples(true, noise=0.05))
    assert found.per_byte == pytest.approx(true.per_byte, rel=0.1)
    assert min(found.fixed, found.per_row, found.per_entry, found.per_byte) >= 0
    predicted = [found.predict_us(s.rows, s.entries, s.row_bytes) / s.us for s in samples(true)]
    assert max(predicted) < 1.15
    assert min(predicted) > 0.85


@pytest.mark.parametrize("broken, message", [([], "at least four"), ([Sample(1, 1, 1, 0.0)] * 4, "got 0.0")])
def test_fit_refuses_bad_samples(broken, message):
    with pytest.raises(ValueError, match=message):
        fit(broken)


def test_judge_counts_right_picks_and_what_the_others_cost():
    tc = samples(Rate(10.0, 0.0, 0.0, 0.1))
    cuda = samples(Rate(2.0, 0.0, 0.0, 0.4))
    perfect = judge(tc, cuda)
    assert perfect.right == 1.0
    assert perfect.regret == 0.0
    assert perfect.blocks_error < 1e-6


def test_tune_on_a_cpu_says_why_not(capsys):
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="PyTorch sees none here"):
            procedure.tune()
    with pytest.raises(RuntimeError, match="a CPU has nothing to tune"):
        procedure.tune("cpu")
    assert main(["tune", "--device", "cpu"]) == 2
    assert "a CPU has nothing to tune" in capsys.readouterr().err


@pytest.mark.gpu
def test_tune_stores_rates_of_this_gpu(cache, monkeypatch, capsys):
    few = dict(list(procedure.GRAPHS.items())[:4])
    monkeypatch.setattr(procedure, "GRAPHS", few)
    monkeypatch.setattr(tune_tilings, "GRAPHS", few)
    assert main(["tune", "--dtypes", "float32", "--widths", "16", "64"]) == 0
    assert (torch.cuda.get_device_name(), "float32") in cost.fitted_rates()
    assert cost.rates_on(GPU, torch.float32) != SM90
    text = capsys.readouterr().out
    assert "picks the faster path" in text
    assert "tilings: of " in text
    assert tiling.stored_tilings()[torch.cuda.get_device_name()]["rows"]


@pytest.mark.gpu
def test_inspect_and_bench_measure_both_paths_on_a_gpu(tmp_path):
    graph = data.sbm([32] * 100, 0.4, 1e-3)
    names = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))
    scattered = data.GraphData(edge_index=names[graph.edge_index], num_nodes=graph.num_nodes, name="scattered")
    orders = ("none", "degree", "community")
    found = inspect(scattered, reorders=orders, widths=(32,), device="cuda", measure=True)
    assert found.used == ["community"]
    assert set(found.times[0].measured_us) == {"cuda", "tc/none", "tc/community"}
    assert set(found.times[0].predicted_us) == {"cuda", "tc/none", "tc/degree", "tc/community"}
    out = tmp_path / "bench.json"
    assert main(["bench", "--quick", "--json", str(out)]) == 0
    assert all(case["copy_fraction"] > 0 for case in json.loads(out.read_text())["cases"])


# --- the stored rates ---


def test_stored_rates_change_the_decision(cache, named_gpu):
    def prefers_blocks(device: torch.device = CPU, dtype: torch.dtype = torch.float32) -> bool:
        rates, sizes = cost.rates_on(device, dtype), cost.Work(10_000, 40_000, rows=80_000, entries=160_000)
        by_blocks, by_rows = replace(sizes, rows=0), replace(sizes, windows=0)
        return rates.predict_us(by_blocks, 512) < rates.predict_us(by_rows, 512)

    assert not prefers_blocks(device=GPU)
    path = cost.store_rates("Imaginary 9000", {torch.float32: PREFERS_BLOCKS})
    assert path == cache / "rates.json"
    assert prefers_blocks(device=GPU)
    assert not prefers_blocks(device=GPU, dtype=torch.float16)
    assert not prefers_blocks()


def test_stored_rates_of_other_devices_stay(cache, named_gpu):
    cost.store_rates("Another", {torch.float32: SM90})
    cost.store_rates("Imaginary 9000", {torch.float32: PREFERS_BLOCKS, torch.bfloat16: PREFERS_BLOCKS})
    cost.store_rates("Imaginary 9000", {torch.bfloat16: SM90})
    assert cost.fitted_rates() == {
        ("Another", "float32"): SM90,
        ("Imaginary 9000", "float32"): PREFERS_BLOCKS,
        ("Imaginary 9000", "bfloat16"): SM90,
    }
    assert cost.rates_on(GPU, torch.float32) == PREFERS_BLOCKS


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"format": 99, "devices": {}}',
        '{"format": 1}',
        '{"format": 1, "devices": {"Imaginary 9000": {"float32": {"blocks": {"fixed": 1}}}}}',
        json.dumps({"format": 1, "devices": {"Imaginary 9000": {"float32": {"blocks": {}, "rows": None}}}}),
    ],
)
def test_a_damaged_file_costs_one_warning(cache, named_gpu, content):
    cache.mkdir()
    cost.rates_file().write_text(content)
    with pytest.warns(UserWarning, match=r"rates\.json cannot be used .*shipped rates apply"):
        assert cost.rates_on(GPU, torch.float32) == SM90
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cost.rates_on(GPU, torch.float16) == cost.SM90_16BIT


@pytest.mark.parametrize("value", [-1.0, float("inf"), "fast", True, None])
def test_a_coefficient_that_is_no_time_is_damage(cache, named_gpu, value):
    cost.store_rates("Imaginary 9000", {torch.float32: PREFERS_BLOCKS})
    stored = json.loads(cost.rates_file().read_text())
    stored["devices"]["Imaginary 9000"]["float32"]["rows"]["per_byte"] = value
    cost.rates_file().write_text(json.dumps(stored))
    cost.forget_rates()
    with pytest.warns(UserWarning, match="coefficients must be finite and not negative"):
        assert cost.rates_on(GPU, torch.float32) == SM90


# --- bad input ---


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["inspect", "atlantis"], "unknown graph 'atlantis'"),
        (["inspect", "missing.mtx"], "no such file: missing.mtx"),
        (["inspect", "artist/0.5-like"], "the divisor must be at least 1, got 0.5"),
        (["inspect", "artist/100-like", "--widths", "0", "--device", "cpu"], "widths must be at least 1, got 0"),
        (["inspect", "digits", "--device", "abacus"], "--device must be cpu, cuda or cuda:N, got 'abacus'"),
        (["bench", "--rounds", "0"], "--rounds must be at least 1, got 0"),
        (["tiles", "cora", "--root", "nowhere"], "data set 'cora'"),
        (["tiles", "artist/100-like", "--json", "no/such/folder.json"], "no/such/folder.json"),
        (["fly"], "invalid choice: 'fly'"),
        ([], "required: COMMAND"),
    ],
)
def test_bad_input_ends_with_status_2_and_a_reason(arguments, message, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    "name, content",
    [("bad.mtx", b"nonsense\n"), ("bad.npz", b"nonsense"), ("bad.csv", b"0,1\n2,x\n"), ("bad.mtx.gz", b"x")],
)
def test_a_file_that_is_not_what_its_ending_says_is_named(tmp_path, capsys, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    assert main(["inspect", str(path)]) == 2
    assert name in capsys.readouterr().err


def test_help_is_no_error(capsys):
    assert main(["--help"]) == 0
    assert main(["inspect", "--help"]) == 0
    assert "--measure" in capsys.readouterr().out


def test_progress_names_each_step_on_standard_error(capsys):
    assert list(track(["one", ("two", 2)], "walk")) == ["one", ("two", 2)]
    captured = capsys.readouterr()
    assert captured.err.splitlines() == ["walk 1/2: one", "walk 2/2: two, 2"]
    assert captured.out == ""
