"""Wrong calls of torch-tcgnn's public surface, for the conformance suite; `conformance_cases.py` hands them over."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch_tcgnn as tcg
from torch_tcgnn import data, functional, interop, transforms

from tests.conformance.cases import BadInputCase, ModuleCase

from .conformance_layers import modules


def wrong(of: str, call: Callable[[], Any], raises: type[Exception], *fragments: str) -> BadInputCase:
    """A case whose message holds the argument's name (or the file's) and the value."""
    return BadInputCase(of, call, raises, fragments)


def bad_inputs() -> list[BadInputCase]:
    """One wrong call or more of everything public that raises."""
    return [
        *_graphs_and_functions(),
        *_attention(),
        *_layers(),
        *_formats(),
        *_generators(),
        *_files(),
        *_training(),
        *_adoption(),
    ]


def _graphs_and_functions() -> list[BadInputCase]:
    """Wrong calls of the graph and of the functional operators."""
    g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 1]]), num_nodes=3)
    x, rowptr, col = torch.ones(3, 2), torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    wrong_rowptr = torch.tensor([1, 1, 2])
    from_edge_index = tcg.TCGraph.from_edge_index

    return [
        wrong("TCGraph", lambda: from_edge_index(torch.ones(2, 3)), ValueError, "edge_index", "torch.float32"),
        wrong("TCGraph", lambda: from_edge_index(torch.ones(3, 2).long()), ValueError, "edge_index", "(3, 2)"),
        wrong("TCGraph", lambda: from_edge_index(torch.tensor([[5], [0]]), 2), ValueError, "edge_index", "node 5"),
        wrong("TCGraph", lambda: from_edge_index(torch.tensor([[0], [0]]), -1), ValueError, "num_nodes", "-1"),
        wrong("TCGraph", lambda: from_edge_index(torch.tensor([[0], [0]]), path="fast"), ValueError, "path", "'fast'"),
        wrong("TCGraph", lambda: from_edge_index(torch.tensor([[0], [0]]), flow="up"), ValueError, "flow", "'up'"),
        wrong(
            "TCGraph",
            lambda: from_edge_index(torch.tensor([[0], [0]]), edge_weight=torch.ones(4)),
            ValueError,
            "edge_weight",
            "(4,)",
        ),
        wrong("TCGraph", lambda: tcg.TCGraph.from_csr(wrong_rowptr, col), ValueError, "rowptr", "got 1"),
        wrong("TCGraph", lambda: tcg.TCGraph.from_csr(rowptr, col, size=(7, 2)), ValueError, "size", "(7, 2)"),
        wrong("spmm", lambda: tcg.spmm(g, torch.ones(4, 2)), ValueError, "x", "(4, 2)"),
        wrong("spmm", lambda: tcg.spmm(g, x.long()), TypeError, "x", "torch.int64"),
        wrong("spmm", lambda: tcg.spmm(g, x, reduce="median"), ValueError, "reduce", "'median'"),
        wrong("spmm", lambda: tcg.spmm(g, x, precision="fp8"), ValueError, "precision", "'fp8'"),
        wrong("spmm", lambda: tcg.spmm(g, x.half(), out_dtype=torch.float64), ValueError, "out_dtype", "torch.float64"),
        wrong("spmm", lambda: tcg.spmm(g, x, node_dim=-1), ValueError, "node_dim", "-1"),
        wrong("spmm", lambda: tcg.spmm(g, torch.ones(3, 4, 2), node_dim=-2), ValueError, "x", "(3, 4, 2)"),
        wrong("spmm", lambda: tcg.spmm(g, x, torch.ones(4)), ValueError, "weight", "(4,)"),
        wrong("spmm", lambda: tcg.spmm(g, x, torch.ones(3, 2)), ValueError, "weight", "(3, 2)"),
        wrong("sddmm", lambda: tcg.sddmm(g, x, torch.ones(3, 5)), ValueError, "b", "(3, 5)"),
        wrong("sddmm", lambda: tcg.sddmm(g, x, x.double()), TypeError, "b", "torch.float64"),
        wrong("edge_softmax", lambda: tcg.edge_softmax(g, torch.ones(4)), ValueError, "logits", "(4,)"),
        wrong("edge_softmax", lambda: tcg.edge_softmax(g, torch.ones(3, 1, 1)), ValueError, "logits", "(3, 1, 1)"),
        wrong("segment", lambda: tcg.segment(g, torch.ones(3), "median"), ValueError, "reduce", "'median'"),
        wrong("segment", lambda: tcg.segment(g, torch.ones(5)), ValueError, "values", "(5,)"),
        wrong("gather_dst", lambda: tcg.gather_dst(g, torch.ones(4)), ValueError, "rows", "(4,)"),
        wrong("gather_src", lambda: tcg.gather_src(g, torch.ones(4)), ValueError, "rows", "(4,)"),
        wrong("explain", lambda: functional.explain(g, torch.ones(4, 2)), ValueError, "x", "(4, 2)"),
        wrong("sgt.translate", lambda: tcg.sgt.translate(wrong_rowptr, col), ValueError, "rowptr", "got 1"),
        wrong("sgt.translate", lambda: tcg.sgt.translate(rowptr, col, 0), ValueError, "window", "got 0"),
        wrong("sgt.count_tiles", lambda: tcg.sgt.count_tiles(rowptr, col, 16, 0), ValueError, "width", "got 0"),
        wrong("sgt.window_stats", lambda: tcg.sgt.window_stats(rowptr, col - 1), ValueError, "col", "got -1"),
    ]


def _attention() -> list[BadInputCase]:
    g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 1]]), num_nodes=3)
    bipartite = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), num_nodes=(2, 5))
    h, alpha, att = torch.ones(3, 2, 4), torch.ones(3, 2), torch.ones(2, 4)
    five, whole = torch.ones(5, 2), torch.ones(3, 2, 4, dtype=torch.int64)
    return [
        wrong("gat_attention", lambda: tcg.gat_attention(g, h[0], alpha, alpha), ValueError, "h", "(2, 4)"),
        wrong("gat_attention", lambda: tcg.gat_attention(g, h, five, alpha), ValueError, "alpha_src", "(5, 2)"),
        wrong("gat_attention", lambda: tcg.gat_attention(g, h, alpha, five), ValueError, "alpha_dst", "(5, 2)"),
        wrong(
            "gat_attention", lambda: tcg.gat_attention(g, h, alpha, alpha, dropout=1.5), ValueError, "dropout", "1.5"
        ),
        wrong(
            "gat_attention",
            lambda: tcg.gat_attention(g, h, alpha, alpha, edge_logit=torch.ones(3, 7)),
            ValueError,
            "edge_logit",
            "(3, 7)",
        ),
        wrong("gatv2_attention", lambda: tcg.gatv2_attention(g, whole, h, att), TypeError, "left", "torch.int64"),
        wrong("gatv2_attention", lambda: tcg.gatv2_attention(g, h, h, att.t()), ValueError, "att", "(4, 2)"),
        wrong("gatv2_attention", lambda: tcg.gatv2_attention(g, h, h[:, :1], att), ValueError, "right", "(3, 1, 4)"),
        wrong("dot_attention", lambda: tcg.dot_attention(g, h, h[..., :3], h), ValueError, "(3, 2, 3)", "(3, 2, 4)"),
        wrong("dot_attention", lambda: tcg.dot_attention(g, h, h, h[:, :1]), ValueError, "v", "(3, 1, 4)"),
        wrong("cosine_attention", lambda: tcg.cosine_attention(bipartite, five), ValueError, "g", "5 and 2"),
        wrong("cosine_attention", lambda: tcg.cosine_attention(g, whole), TypeError, "x", "torch.int64"),
    ]


def _layers() -> list[BadInputCase]:
    def on_a_name(case: ModuleCase) -> Callable[[], Any]:
        x, _, *rest = case.inputs
        return lambda: case.factory()(x, "cora", *rest)

    def with_a_wrong_option(layer: torch.nn.Module) -> Callable[[], Any]:
        needed = {"GINConv": (torch.nn.Identity(),), "GINEConv": (torch.nn.Identity(),), "AGNNConv": ()}
        return lambda: type(layer)(*needed.get(type(layer).__name__, (2, 2)), aggr="foo")

    layers = {type(case.factory()).__name__: case.factory() for case in modules()}
    return [
        *(wrong(type(case.factory()).__name__, on_a_name(case), TypeError, "edge_index", "str") for case in modules()),
        *(wrong(name, with_a_wrong_option(layer), ValueError, "aggr", "'foo'") for name, layer in layers.items()),
    ]


def _formats() -> list[BadInputCase]:
    edge_index = torch.tensor([[0, 1], [1, 0]])
    plain = tcg.TCGraph.from_edge_index(edge_index, 2)
    heavy = plain.with_weight(torch.ones(2))
    cube = torch.ones(2, 2, 2).to_sparse()
    return [
        wrong("as_graph", lambda: interop.as_graph("cora"), TypeError, "edge_index", "str"),
        wrong("read_edges", lambda: interop.read_edges("cora"), TypeError, "edge_index", "str"),
        wrong("from_batch", lambda: interop.from_batch([]), ValueError, "graphs", "none"),
        wrong("from_batch", lambda: interop.from_batch([plain, heavy]), ValueError, "graphs", "1 of 2"),
        wrong("from_sparse", lambda: interop.from_sparse(cube), ValueError, "adj", "(2, 2, 2)"),
        wrong("from_torch_sparse", lambda: interop.from_torch_sparse(edge_index), TypeError, "adj_t", "Tensor"),
        wrong("from_scipy", lambda: interop.from_scipy(edge_index), TypeError, "matrix", "Tensor"),
        wrong("from_dgl", lambda: interop.from_dgl(edge_index), TypeError, "graph", "Tensor"),
    ]


def _generators() -> list[BadInputCase]:
    edge_index = torch.tensor([[0, 1], [1, 0]])
    return [
        wrong(
            "GraphData",
            lambda: data.GraphData(edge_index=edge_index, num_nodes=1, name="pair"),
            ValueError,
            "edge_index",
            "got 1",
        ),
        wrong(
            "GraphData",
            lambda: data.GraphData(edge_index=edge_index, num_nodes=2, name="pair", x=torch.ones(3, 1)),
            ValueError,
            "x",
            "(3, 1)",
        ),
        wrong("rmat", lambda: data.rmat(8, 8, a=0.9), ValueError, "a, b, c, d", "0.9"),
        wrong("rmat", lambda: data.rmat(3, 100), ValueError, "num_edges", "100"),
        wrong("power_law", lambda: data.power_law(20, 40, 1.5), ValueError, "exponent", "1.5"),
        wrong("sbm", lambda: data.sbm([3, 3], 1.5, 0.1), ValueError, "p_in", "1.5"),
        wrong("sbm", lambda: data.sbm([3, 0], 0.5, 0.1), ValueError, "blocks", "[3, 0]"),
        wrong("grid_road", lambda: data.grid_road(9, 1000), ValueError, "num_edges", "1000"),
        wrong("molecule_batch", lambda: data.molecule_batch(0, 5, 2.0), ValueError, "graphs", "got 0"),
        wrong("generate", lambda: data.generate("atlantis"), ValueError, "name", "'atlantis'"),
        wrong("generate", lambda: data.generate("ppi", scale=-1.0), ValueError, "scale", "-1.0"),
        wrong("generate", lambda: data.generate("ppi", features="few"), ValueError, "features", "'few'"),
        wrong("digits", lambda: data.digits(k=0), ValueError, "k", "got 0"),
        wrong("nci", lambda: data.nci(molecules=0), ValueError, "molecules", "got 0"),
        wrong("undirected", lambda: data.undirected(edge_index, 1), ValueError, "edge_index", "node 1"),
        wrong("load", lambda: data.load("atlantis"), ValueError, "name", "'atlantis'"),
    ]


def _files() -> list[BadInputCase]:
    def on(text: str, read: Callable[[Path], Any]) -> Callable[[], Any]:
        def call() -> Any:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "graph.txt"
                path.write_text(text)
                return read(path)

        return call

    def in_empty(read: Callable[[str], Any]) -> Callable[[], Any]:
        def call() -> Any:
            with tempfile.TemporaryDirectory(prefix="nothing-here") as folder:
                return read(folder)

        return call

    header = "%%MatrixMarket matrix coordinate pattern general\n"
    source = data.Source("cora", ("cora",), (("ind.cora.x",),))
    return [
        wrong("mtx", on("hello\n", data.mtx), ValueError, "graph.txt", "'hello'"),
        wrong("mtx", on(header + "2 3 1\n1 1\n", data.mtx), ValueError, "graph.txt", "2 x 3"),
        wrong("mtx", on("", lambda path: data.mtx(path, edges="some")), ValueError, "edges", "'some'"),
        wrong("mtx", on(header + "2 2 1\n1 x\n", data.mtx), ValueError, "graph.txt", "line 3", "'1 x'"),
        wrong("edge_list", on("0,1\n-4,1\n", data.edge_list), ValueError, "graph.txt", "line 2", "-4"),
        wrong("edge_list", on("0,1\n4;1\n", data.edge_list), ValueError, "graph.txt", "line 2", "'4;1'"),
        wrong("npz", on("", lambda path: data.npz(path, features="few")), ValueError, "features", "'few'"),
        wrong("planetoid", lambda: data.planetoid("atlantis"), ValueError, "name", "'atlantis'"),
        wrong(
            "planetoid", in_empty(lambda root: data.planetoid("cora", root)), FileNotFoundError, "cora", "nothing-here"
        ),
        wrong("tu", in_empty(lambda root: data.tu("MUTAG", root)), FileNotFoundError, "MUTAG", "nothing-here"),
        wrong("locate", in_empty(lambda root: data.locate(source, root)), FileNotFoundError, "cora", "nothing-here"),
    ]


def _training() -> list[BadInputCase]:
    from torch_tcgnn import lightning as tcl

    layer, bare = torch.nn.Linear(2, 2), data.GraphData(edge_index=torch.tensor([[0], [1]]), num_nodes=2, name="bare")
    accelerator, monitor, classifier = tcl.TCGNNAccelerator, tcl.GraphStatsMonitor, tcl.NodeClassifier
    return [
        wrong("TCGNNAccelerator", lambda: accelerator(precision="fp8"), ValueError, "precision", "'fp8'"),
        wrong("GraphStatsMonitor", lambda: monitor(every_n_batches=0), ValueError, "every_n_batches", "got 0"),
        wrong("NodeClassifier", lambda: classifier("GCN", num_classes=2), TypeError, "model", "str"),
        wrong("NodeClassifier", lambda: classifier(layer, num_classes=1), ValueError, "num_classes", "got 1"),
        wrong("NodeClassifier", lambda: classifier(layer, num_classes=2, lr="fast"), TypeError, "lr", "'fast'"),
        wrong("FullGraph", lambda: tcl.FullGraph(3), TypeError, "data", "int"),
        wrong("NodeClassifier", lambda: classifier(layer, num_classes=2, lr=-1.0), ValueError, "lr", "-1.0"),
        wrong(
            "NodeClassifier",
            lambda: classifier(layer, num_classes=2, decayed=["head"]),
            ValueError,
            "decayed",
            "'head'",
        ),
        wrong("FullGraph", lambda: tcl.FullGraph(bare), ValueError, "data", "lacks x, y"),
        wrong("FullGraph", lambda: tcl.FullGraph("atlantis"), ValueError, "name", "'atlantis'"),
    ]


def _adoption() -> list[BadInputCase]:
    from torch_geometric.data import Data

    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    no_edges = Data(x=torch.ones(2, 3))
    return [
        wrong("accelerate", lambda: tcg.accelerate(model, precision="fp8"), ValueError, "precision", "'fp8'"),
        wrong("accelerate", lambda: tcg.accelerate(model, layers=["head"]), ValueError, "layers", "'head'"),
        wrong("accelerate", lambda: tcg.accelerate(model, layers="head"), TypeError, "layers", "'head'"),
        wrong("accelerate", lambda: tcg.accelerate("model"), TypeError, "model", "str"),
        wrong("restore", lambda: tcg.restore("model"), TypeError, "model", "str"),
        wrong("report", lambda: tcg.report(None), TypeError, "model", "NoneType"),
        wrong("ToTCGraph", lambda: transforms.ToTCGraph()(no_edges), ValueError, "data", "x=[2, 3]"),
        wrong("TCGraphCache", lambda: tcg.TCGraphCache(max_graphs=0), ValueError, "max_graphs", "got 0"),
        wrong("TCGraphCache", lambda: tcg.TCGraphCache(max_bytes=-3), ValueError, "max_bytes", "got -3"),
    ]
