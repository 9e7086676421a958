"""Sample calls of every op of torch-tcgnn, for the conformance suite; `conformance_cases.py` hands them over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_tcgnn as tcg
from torch import Tensor
from torch_tcgnn import reference

from tests.conformance.cases import OpCase

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
        **_attention(),
    }


def _spmm() -> list[OpCase]:
    def case(label, sizes, x, weight, dtype=torch.float32, layout="randn", grad=False, out_dtype=None):
        g = Graph(*sizes)
        x = getattr(g, layout)(g.sources, *x, dtype=dtype)
        weight = None if weight is None else g.randn(g.edges, *weight, dtype=dtype)

        def meaning(adj, adj_t, x, weight, precision, out_dtype):
            return reference.spmm(g.row, g.col, *_wide(x, weight), g.targets)

        at = () if not grad else (2,) if weight is None else (2, 3)
        args = g.adj, g.adj_t, x, weight, "ieee", out_dtype
        return _case(f"{label} as {out_dtype}" if out_dtype else label, args, meaning, out_dtype or dtype, at)

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
        case("float16", ODD, (17,), None, torch.float16, out_dtype=torch.float32),
        case("bfloat16, three heads", ODD, (3, 5), (3,), torch.bfloat16, out_dtype=torch.float32),
        case("float16, no edges", EMPTY, (3,), (), torch.float16, out_dtype=torch.float32),
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


def _additive_meaning(g: Graph, value, source, target, edge, slope):
    logits = reference.additive_logits(g.row, g.col, source, target, edge, slope)
    return reference.attention(g.row, g.col, value, logits, g.targets), logits


def _gatv2_meaning(g: Graph, left, right, att, edge, slope):
    logits = reference.gatv2_logits(g.row, g.col, left, right, att, edge, slope)
    return reference.attention(g.row, g.col, left, logits, g.targets), logits


def _dot_meaning(g: Graph, query, key, value, edge, scale):
    keys, values = key[g.col], value[g.col]
    if edge is not None:
        keys, values = keys + edge, values + edge
    logits = scale * (query[g.row] * keys).sum(-1)
    weight = reference.edge_softmax(g.row, logits, g.targets)
    return reference.segment_sum(g.row, weight.unsqueeze(-1) * values, g.targets), logits


def _row_logsumexp(g: Graph, logits: Tensor) -> Tensor:
    rows = [torch.logsumexp(logits[g.row == row], 0) for row in range(g.targets)]
    return torch.stack(rows) if rows else logits.new_zeros(0, *logits.shape[1:])


# Of each form: what it means, its number, and the shapes of its tensors ("M" targets, "K" sources, "E" edges).
FORMS = {
    "additive": (_additive_meaning, 0.2, (("K", "H", "F"), ("K", "H"), ("M", "H"), ("E", "H"))),
    "gatv2": (_gatv2_meaning, 0.2, (("K", "H", "F"), ("M", "H", "F"), ("H", "F"), ("E", "H", "F"))),
    "dot": (_dot_meaning, 0.6, (("M", "H", "F"), ("K", "H", "F"), ("K", "H", "F"), ("E", "H", "F"))),
}


def _attention() -> dict[str, list[OpCase]]:
    found: dict[str, list[OpCase]] = {}
    for form in FORMS:
        settings = [
            ("one head", ODD, (1, 3), False, torch.float32, "randn", True),
            ("two heads, edge operand", ODD, (2, 3), True, torch.float32, "randn", True),
            ("strided", ODD, (3, 2), True, torch.float32, "strided", True),
            ("no edges", EMPTY, (2, 3), True, torch.float32, "randn", True),
            ("no nodes", NO_NODES, (2, 3), False, torch.float32, "randn", False),
            ("two heads", ODD, (2, 5), False, torch.float64, "randn", False),
            ("two heads, edge operand", ODD, (2, 5), True, torch.bfloat16, "randn", False),
        ]
        pairs = [_attention_pair(form, *setting) for setting in settings]
        found[f"{form}_attention"] = [forward for forward, _ in pairs]
        found[f"{form}_attention_backward"] = [backward for _, backward in pairs]
    return found


def _attention_pair(form, label, sizes, widths, with_edge, dtype, layout, grad) -> tuple[OpCase, OpCase]:
    """The forward call, and the backward call with its results."""
    meaning, factor, shapes = FORMS[form]
    g = Graph(*sizes)
    size = {"K": g.sources, "M": g.targets, "E": g.edges, "H": widths[0], "F": widths[1]}
    tensors = [getattr(g, layout)(*(size[letter] for letter in shape), dtype=dtype) for shape in shapes]
    if not with_edge:
        tensors[3] = None
    args = (g.adj, g.adj_t, *tensors, factor, 0.0, torch.empty(0, dtype=torch.int64))

    def forward(adj, adj_t, a, b, c, edge, factor, dropout, seed):
        out, logits = meaning(g, *_wide(a, b, c, edge), factor)
        return out, _row_logsumexp(g, logits)

    def backward(adj, adj_t, a, b, c, edge, factor, dropout, seed, out, lse, grad):
        leaves = [
            t if t is None else t.requires_grad_()
            for t in _wide(*(t if t is None else t.detach().clone() for t in (a, b, c, edge)))
        ]
        present = [t for t in leaves if t is not None]
        grads = torch.autograd.grad(meaning(g, *leaves, factor)[0], present, grad.double(), materialize_grads=True)
        return (*grads, *([torch.empty(0, dtype=torch.float64)] if edge is None else []))

    out, lse = getattr(torch.ops.torch_tcgnn, f"{form}_attention")(*args)
    at = tuple(range(2, 6 if with_edge else 5)) if grad else ()
    upstream = getattr(g, layout)(*out.shape, dtype=dtype)
    return (
        _case(label, args, forward, dtype, at),
        _case(label, (*args, out, lse, upstream), backward, dtype, ()),
    )
