"""`spmm(..., node_dim=-2)`: any batch of features over one graph equals its members one by one."""

from __future__ import annotations

import pytest
import torch
import torch_tcgnn as tcg

SOURCES, TARGETS, EDGES = 9, 7, 40
RNG = torch.Generator().manual_seed(0)
EDGE_INDEX = torch.stack([torch.randint(n, (EDGES,), generator=RNG) for n in (SOURCES, TARGETS)])
GRAPH = tcg.TCGraph.from_edge_index(EDGE_INDEX, (SOURCES, TARGETS))
WEIGHT = torch.randn(EDGES, generator=RNG, dtype=torch.float64)
REDUCES = ["sum", "mean", "max", "min"]


def features(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def one_by_one(g, x, weight, reduce):
    members = [tcg.spmm(g, member, weight, reduce=reduce) for member in x.reshape(-1, *x.shape[-2:])]
    return torch.stack(members).view(*x.shape[:-2], g.num_rows, x.shape[-1])


@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("lead", [(), (1,), (3,), (2, 3)])
def test_each_member_is_aggregated_by_itself(lead, reduce, weight):
    x = features(*lead, SOURCES, 5)
    out = tcg.spmm(GRAPH, x, weight, reduce=reduce, node_dim=-2)
    expected = one_by_one(GRAPH, x, weight, reduce) if lead else tcg.spmm(GRAPH, x, weight, reduce=reduce)
    assert out.is_contiguous()
    assert torch.equal(out, expected)


@pytest.mark.parametrize("shape", [(2, SOURCES, 0), (0, SOURCES, 3)])
def test_empty_batches_and_features(shape):
    assert tcg.spmm(GRAPH, features(*shape), node_dim=-2).shape == (shape[0], TARGETS, shape[2])


def test_strided_and_expanded_batches():
    for x in (features(SOURCES, 2, 5).transpose(0, 1), features(SOURCES, 5).expand(4, -1, -1)):
        assert torch.equal(tcg.spmm(GRAPH, x, WEIGHT, node_dim=-2), one_by_one(GRAPH, x, WEIGHT, "sum"))


@pytest.mark.parametrize("reduce", REDUCES)
def test_first_and_second_gradients_equal_finite_differences(reduce):
    inputs = [features(2, SOURCES, 2).requires_grad_(), WEIGHT.clone().requires_grad_()]

    def call(x, w):
        return tcg.spmm(GRAPH, x, w, reduce=reduce, node_dim=-2)

    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs)


def test_out_dtype_goes_with_it():
    x = features(2, SOURCES, 3).half()
    out = tcg.spmm(GRAPH, x, node_dim=-2, out_dtype=torch.float32)
    assert torch.equal(out, tcg.spmm(GRAPH, x.float(), node_dim=-2))


def test_weights_of_the_graph_are_used():
    g, x = GRAPH.with_weight(WEIGHT), features(2, SOURCES, 3)
    assert torch.equal(tcg.spmm(g, x, node_dim=-2), tcg.spmm(GRAPH, x, WEIGHT, node_dim=-2))


@pytest.mark.parametrize("node_dim", [1, -1, 2, True, None, "nodes", 0.5, -2.0, torch.zeros(2)])
def test_other_dimensions_are_refused(node_dim):
    with pytest.raises(ValueError, match="node_dim must be 0 or -2, got"):
        tcg.spmm(GRAPH, features(SOURCES, 3), node_dim=node_dim)


@pytest.mark.parametrize("shape", [(SOURCES,), (2, TARGETS, 3), (SOURCES, 2, 3)])
def test_features_that_do_not_fit_are_named(shape):
    with pytest.raises(ValueError, match=r"x must have shape \[\.\.\., 9, F\] with node_dim=-2.*got shape"):
        tcg.spmm(GRAPH, features(*shape), node_dim=-2)


@pytest.mark.parametrize("graph", [GRAPH, GRAPH.with_weight(WEIGHT.view(-1, 1).expand(-1, 2))])
def test_weights_that_differ_by_head_are_refused(graph):
    weight = None if graph is not GRAPH else WEIGHT.view(-1, 1).expand(-1, 2)
    with pytest.raises(ValueError, match=r"weight of shape \(40, 2\) needs .*node_dim=0, got .*node_dim=-2"):
        tcg.spmm(graph, features(4, SOURCES, 3), weight, node_dim=-2)


@pytest.mark.gpu
@pytest.mark.parametrize("path", ["tc", "cuda"])
@pytest.mark.parametrize("reduce", REDUCES)
def test_on_a_gpu(path, reduce):
    g = tcg.TCGraph.from_edge_index(EDGE_INDEX, (SOURCES, TARGETS), path=path).to("cuda")
    x, w = features(2, 3, SOURCES, 8).float().cuda(), WEIGHT.float().cuda()
    torch.testing.assert_close(tcg.spmm(g, x, w, reduce=reduce, node_dim=-2), one_by_one(g, x, w, reduce))
