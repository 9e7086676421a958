"""The operators as PyTorch sees them: opcheck, whole-graph compilation, one compilation for every batch size."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch_tcgnn as tcg
from torch._dynamo.testing import CompileCounterWithBackend
from torch_tcgnn.adjacency import Adjacency
from torch_tcgnn.row_plan import plan_rows

ops = torch.ops.torch_tcgnn
SOURCES, TARGETS, EDGES = 6, 7, 18


def edge_list(sources: int = SOURCES, targets: int = TARGETS, edges: int = EDGES, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(n, (edges,), generator=rng) for n in (sources, targets)])


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), requires_grad=True)


def half(*shape: int) -> torch.Tensor:
    return randn(*shape).detach().half().requires_grad_()


def full_operands(g: tcg.TCGraph) -> list[torch.Tensor]:
    """Everything that a GPU's operands may hold."""
    a = g.adjacency
    return Adjacency(a.rowptr, a.col, a.edge, plan_rows(a.rowptr), g.blocks).tensors()


GRAPH = tcg.TCGraph.from_edge_index(edge_list(), (SOURCES, TARGETS))
BARE = (GRAPH.operands(), GRAPH.t().operands())
FULL = (full_operands(GRAPH), full_operands(GRAPH.t()))
SAMPLES = {
    "spmm": lambda a, t: (ops.spmm, (a, t, randn(SOURCES, 3), None, "ieee")),
    "spmm [E]": lambda a, t: (ops.spmm, (a, t, randn(SOURCES, 3), randn(EDGES), "ieee")),
    "spmm [E, H]": lambda a, t: (ops.spmm, (a, t, randn(SOURCES, 2, 3), randn(EDGES, 2), "ieee")),
    "spmm to float32": lambda a, t: (ops.spmm, (a, t, half(SOURCES, 3), half(EDGES), "ieee", torch.float32)),
    "spmm_extremum": lambda a, t: (ops.spmm_extremum, (a, randn(SOURCES, 3), randn(EDGES), True)),
    "sddmm": lambda a, t: (ops.sddmm, (a, t, randn(TARGETS, 2, 3), randn(SOURCES, 2, 3), "ieee")),
    "edge_softmax": lambda a, t: (ops.edge_softmax, (a, randn(EDGES, 2))),
    "segment_sum": lambda a, t: (ops.segment_sum, (a, randn(EDGES, 2))),
    "gather_rows": lambda a, t: (ops.gather_rows, (a, randn(TARGETS, 2))),
}


@pytest.mark.parametrize("operands", [BARE, FULL], ids=["bare rows", "plan and blocks"])
@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_opcheck(sample, operands):
    op, args = sample(*operands)
    torch.library.opcheck(op.default, args)


@pytest.mark.parametrize("in_order", [False, True])
def test_edge_softmax_of_strided_logits_is_contiguous_as_its_fake_kernel_says(in_order):
    edges = edge_list()
    g = tcg.TCGraph.from_edge_index(edges[:, edges[1].argsort()] if in_order else edges, (SOURCES, TARGETS))
    logits = randn(3, EDGES).detach().t()
    assert ops.edge_softmax(g.operands(), logits).stride() == (3, 1)
    torch.library.opcheck(ops.edge_softmax.default, (g.operands(), logits), test_utils="test_faketensor")


@pytest.mark.parametrize("parts", [(), ("plan",), ("blocks",), ("plan", "blocks"), ("plan", "blocks", "rest")])
def test_operand_lists_say_what_they_hold(parts):
    a = GRAPH.adjacency
    have = {"plan": plan_rows(a.rowptr), "blocks": GRAPH.blocks, "rest": plan_rows(a.rowptr, rows=torch.tensor([1]))}
    packed = replace(a, **{part: have[part] for part in parts})
    again = Adjacency.unpack(packed.tensors())
    assert tuple(part for part in have if getattr(again, part) is not None) == parts
    assert all(s is t for s, t in zip(packed.tensors(), again.tensors(), strict=True))


def everything(g: tcg.TCGraph, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Every operator of functional.aggregate in one expression."""
    h = tcg.spmm(g, x, tcg.edge_softmax(g, tcg.sddmm(g, x, x)) * w)
    h = h + tcg.spmm(g, h, reduce="mean") + tcg.spmm(g, h, w, reduce="max")
    e = tcg.gather_src(g, h) - tcg.gather_dst(g, h)
    return tcg.segment(g, e) + tcg.segment(g, e, "mean") + tcg.segment(g, e, "min")


@pytest.mark.parametrize("dynamic", [False, None])
def test_compiled_operators_equal_eager_ones_forward_and_backward(dynamic):
    g = tcg.TCGraph.from_edge_index(edge_list(7, 7, 20), 7)
    x, w = randn(7, 3), randn(20)
    expected = torch.autograd.grad(everything(g, x, w).square().sum(), [x, w])
    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    fresh = tcg.TCGraph.from_edge_index(edge_list(7, 7, 20), 7)
    for graph in (fresh, g):
        grads = torch.autograd.grad(compiled(graph, x, w).square().sum(), [x, w])
        torch.testing.assert_close(grads, expected)


def translate_and_sum(edge_index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return tcg.spmm(tcg.TCGraph.from_edge_index(edge_index, x.shape[0], validate=False), x)


@pytest.mark.parametrize("where", ["graph given", "graph built inside"])
def test_twenty_batch_sizes_take_at_most_two_compilations(where):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    function = tcg.spmm if where == "graph given" else translate_and_sum
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    for nodes in range(10, 30):
        edge_index, x = edge_list(nodes, nodes, 3 * nodes + nodes % 4), randn(nodes, 5)
        graph = tcg.TCGraph.from_edge_index(edge_index, nodes)
        out = compiled(graph if where == "graph given" else edge_index, x)
        expected = tcg.spmm(graph, x)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(
            torch.autograd.grad(out.square().sum(), x), torch.autograd.grad(expected.square().sum(), x)
        )
    assert counter.frame_count <= 2


def test_deterministic_mode_changes_nothing():
    g, x, w = tcg.TCGraph.from_edge_index(edge_list(7, 7, 20), 7), randn(7, 3), randn(20)
    expected = torch.autograd.grad(everything(g, x, w).square().sum(), [x, w])
    torch.use_deterministic_algorithms(True)
    try:
        grads = torch.autograd.grad(everything(g, x, w).square().sum(), [x, w])
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(grads, expected))


def test_inference_mode_gives_the_same_values():
    g, x = tcg.TCGraph.from_edge_index(edge_list(7, 7, 20), 7), randn(7, 3)
    with torch.inference_mode():
        y = tcg.spmm(g, x)
    assert torch.equal(y, tcg.spmm(g, x))


def test_a_process_where_every_warning_is_an_error_can_train():
    """PyTorch calls CSR tensors beta, once a process; the kernels use them inside."""
    code = (
        "import torch, torch_tcgnn as tcg\n"
        "g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), 2)\n"
        "w = torch.ones(2, requires_grad=True)\n"
        "tcg.spmm(g, torch.ones(2, 3), w).sum().backward()\n"
        "print(w.grad.tolist())"
    )
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code], capture_output=True, text=True, env=here, check=False
    )
    assert (ran.stdout.strip(), ran.stderr) == ("[3.0, 3.0]", "")
