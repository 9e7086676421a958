"""Samples of torch-tcgnn for the conformance suite: see tests/conformance/cases.py for what each function returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_tcgnn as tcg
from torch import Tensor
from torch_tcgnn import reference

from tests.conformance.cases import BadInputCase, CallbackCase, ModuleCase, OpCase

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


class Graph:
    """A small random graph: its edge list, and the tensor lists that the ops take."""

    def __init__(self, targets: int, sources: int, edges: int, seed: int = 0) -> None:
        self.rng = torch.Generator().manual_seed(seed)
        self.targets, self.sources, self.edges = targets, sources, edges
        self.row = torch.randint(max(targets, 1), (edges,), generator=self.rng)
        self.col = torch.randint(max(sources, 1), (edges,), generator=self.rng)
        graph = tcg.TCGraph.from_edge_index(torch.stack([self.col, self.row]), num_nodes=(sources, targets))
        self.adj, self.adj_t = graph.operands(), graph.t().operands()

    def randn(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Random values of any layout."""
        return torch.randn(shape, generator=self.rng, dtype=torch.float64).to(dtype)

    def strided(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The same, with the first dimension running fastest."""
        return self.randn(*shape[::-1], dtype=dtype).permute(*reversed(range(len(shape))))


ODD = (7, 5, 18)  # targets, sources, edges: duplicates, rows without edges
EMPTY = (3, 4, 0)
NO_NODES = (0, 0, 0)


def _case(
    label: str, args: tuple, meaning: Callable[..., Any], dtype: torch.dtype, differentiable: tuple[int, ...]
) -> OpCase:
    tolerance = TOLERANCE[dtype]
    return OpCase(f"{label}, {dtype}", args, meaning, rtol=tolerance, atol=tolerance, differentiable=differentiable)


def _wide(*tensors: Tensor | None) -> list[Tensor | None]:
    return [t if t is None else t.double() for t in tensors]


def ops() -> dict[str, list[OpCase]]:
    """Sample calls of every op."""
    return {
        "spmm": _spmm(),
        "spmm_extremum": _extremum(),
        "sddmm": _sddmm(),
        "edge_softmax": _edge_softmax(),
        "segment_sum": _segment_sum(),
        "gather_rows": _gather_rows(),
    }


def _spmm() -> list[OpCase]:
    def case(label, sizes, x, weight, dtype=torch.float32, layout="randn", grad=False):
        g = Graph(*sizes)
        x = getattr(g, layout)(g.sources, *x, dtype=dtype)
        weight = None if weight is None else g.randn(g.edges, *weight, dtype=dtype)

        def meaning(adj, adj_t, x, weight, precision):
            return reference.spmm(g.row, g.col, *_wide(x, weight), g.targets)

        at = () if not grad else (2,) if weight is None else (2, 3)
        return _case(label, (g.adj, g.adj_t, x, weight, "ieee"), meaning, dtype, at)

    return [
        case("weighted", ODD, (3,), (), grad=True),
        case("unweighted", ODD, (3,), None, grad=True),
        case("three heads", ODD, (3, 5), (3,), grad=True),
        case("strided x", ODD, (9,), (), layout="strided", grad=True),
        case("strided heads", ODD, (2, 3), (2,), layout="strided", grad=True),
        case("no edges", EMPTY, (3,), (), grad=True),
        case("no nodes", NO_NODES, (3,), ()),
        case("no features", ODD, (0,), ()),
        case("weighted", ODD, (17,), (), torch.float64),
        case("weighted", ODD, (17,), (), torch.float16),
        case("three heads", ODD, (3, 5), (3,), torch.bfloat16),
    ]


def _first_attaining(g: Graph, adj: list[Tensor], x: Tensor, weight: Tensor | None, best: Tensor) -> Tensor:
    """First entry of each row whose message is the extremum, -1 where a row has none."""
    rowptr, col, edge = adj[:3]
    edge = torch.arange(g.edges) if edge.numel() == 0 else edge.long()
    message = x[col.long()] if weight is None else x[col.long()] * weight[edge].unsqueeze(-1)
    arg = torch.full(best.shape, -1)
    for row in range(g.targets):
        for entry in reversed(range(int(rowptr[row]), int(rowptr[row + 1]))):
            arg[row] = torch.where(message[entry] == best[row], entry, arg[row])
    return arg


def _extremum() -> list[OpCase]:
    def case(label, sizes, x, weight, largest, dtype=torch.float32, layout="randn", grad=False):
        g = Graph(*sizes)
        x = getattr(g, layout)(g.sources, *x, dtype=dtype)
        weight = None if weight is None else g.randn(g.edges, *weight, dtype=dtype)

        def meaning(adj, x, weight, largest):
            best = reference.spmm_extremum(g.row, g.col, x, weight, g.targets, largest)
            return best, _first_attaining(g, adj, x, weight, best)

        at = () if not grad else (1,) if weight is None else (1, 2)
        return _case(label, (g.adj, x, weight, largest), meaning, dtype, at)

    return [
        case("maximum, weighted", ODD, (3,), (), True, grad=True),
        case("minimum, unweighted", ODD, (3,), None, False, grad=True),
        case("maximum, two heads", ODD, (2, 3), (2,), True, grad=True),
        case("minimum, strided x", ODD, (9,), (), False, layout="strided"),
        case("no edges", EMPTY, (3,), (), True, grad=True),
        case("no nodes", NO_NODES, (3,), None, True),
        case("minimum, weighted", ODD, (5,), (), False, torch.float64),
        case("maximum, unweighted", ODD, (5,), None, True, torch.bfloat16),
    ]


def _sddmm() -> list[OpCase]:
    def case(label, sizes, width, dtype=torch.float32, layout="randn", grad=False):
        g = Graph(*sizes)
        a, b = getattr(g, layout)(g.targets, *width, dtype=dtype), getattr(g, layout)(g.sources, *width, dtype=dtype)

        def meaning(adj, adj_t, a, b, precision):
            return reference.sddmm(g.row, g.col, *_wide(a, b))

        return _case(label, (g.adj, g.adj_t, a, b, "ieee"), meaning, dtype, (2, 3) if grad else ())

    return [
        case("one head", ODD, (3,), grad=True),
        case("two heads", ODD, (2, 5), grad=True),
        case("strided", ODD, (7,), layout="strided", grad=True),
        case("strided heads", ODD, (2, 3), layout="strided", grad=True),
        case("no edges", EMPTY, (3,), grad=True),
        case("no nodes", NO_NODES, (3,)),
        case("width 0", ODD, (0,)),
        case("one head", ODD, (17,), torch.float64),
        case("two heads", ODD, (2, 5), torch.float16),
        case("one head", ODD, (9,), torch.bfloat16),
    ]


def _edge_softmax() -> list[OpCase]:
    def case(label, sizes, heads, dtype=torch.float32, layout="randn", grad=False):
        g = Graph(*sizes)

        def meaning(adj, logits):
            return reference.edge_softmax(g.row, logits.double(), g.targets)

        logits = getattr(g, layout)(g.edges, *heads, dtype=dtype)
        return _case(label, (g.adj, logits), meaning, dtype, (1,) if grad else ())

    return [
        case("one head", ODD, (), grad=True),
        case("three heads", ODD, (3,), grad=True),
        case("strided heads", ODD, (3,), layout="strided", grad=True),
        case("no edges", EMPTY, (3,), grad=True),
        case("three heads", ODD, (3,), torch.float64),
        case("one head", ODD, (), torch.bfloat16),
    ]


def _segment_sum() -> list[OpCase]:
    def case(label, sizes, width, dtype=torch.float32, layout="randn", grad=False):
        g = Graph(*sizes)

        def meaning(adj, values):
            return reference.segment_sum(g.row, values.double(), g.targets)

        values = getattr(g, layout)(g.edges, *width, dtype=dtype)
        return _case(label, (g.adj, values), meaning, dtype, (1,) if grad else ())

    return [
        case("one value", ODD, (), grad=True),
        case("matrices", ODD, (2, 3), grad=True),
        case("strided", ODD, (3,), layout="strided", grad=True),
        case("no edges", EMPTY, (3,), grad=True),
        case("no nodes", NO_NODES, (3,)),
        case("one row", ODD, (5,), torch.float64),
        case("one row", ODD, (5,), torch.bfloat16),
    ]


def _gather_rows() -> list[OpCase]:
    def case(label, sizes, width, dtype=torch.float32, layout="randn", grad=False):
        g = Graph(*sizes)

        def meaning(adj, rows):
            return rows[g.row]

        rows = getattr(g, layout)(g.targets, *width, dtype=dtype)
        return _case(label, (g.adj, rows), meaning, dtype, (1,) if grad else ())

    return [
        case("one value", ODD, (), grad=True),
        case("matrices", ODD, (2, 3), grad=True),
        case("strided", ODD, (3,), layout="strided", grad=True),
        case("no edges", EMPTY, (3,), grad=True),
        case("one row", ODD, (5,), torch.float64),
        case("one row", ODD, (5,), torch.bfloat16),
    ]


def modules() -> list[ModuleCase]:
    """Every exported layer."""
    return []


def callbacks() -> list[CallbackCase]:
    """Every exported Lightning callback."""
    return []


def bad_inputs() -> list[BadInputCase]:
    """One wrong call or more of everything public that raises."""
    g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 1]]), num_nodes=3)
    x, rowptr, col = torch.ones(3, 2), torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    wrong_rowptr = torch.tensor([1, 1, 2])
    from_edge_index = tcg.TCGraph.from_edge_index

    def wrong(of: str, call: Callable[[], Any], raises: type[Exception], *fragments: str) -> BadInputCase:
        return BadInputCase(of, call, raises, fragments)

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
        wrong("sgt.translate", lambda: tcg.sgt.translate(wrong_rowptr, col), ValueError, "rowptr", "got 1"),
        wrong("sgt.translate", lambda: tcg.sgt.translate(rowptr, col, 0), ValueError, "window", "got 0"),
        wrong("sgt.count_tiles", lambda: tcg.sgt.count_tiles(rowptr, col, 16, 0), ValueError, "width", "got 0"),
        wrong("sgt.window_stats", lambda: tcg.sgt.window_stats(rowptr, col - 1), ValueError, "col", "got -1"),
    ]


def extras() -> dict[str, Callable[[], object]]:
    """A call that needs each extra."""
    edge_index = torch.tensor([[0, 1], [1, 0]])

    def digits() -> object:
        from torch_tcgnn import data

        return data.digits()

    def rcm() -> object:
        return tcg.TCGraph.from_edge_index(edge_index, 2, reorder="rcm").blocks

    return {"data": digits, "scipy": rcm}
