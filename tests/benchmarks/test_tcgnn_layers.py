"""The formulas of layers, and inputs far from the kink of LeakyReLU, where float32 and float64 may differ in slope."""

import torch
from torch.nn.functional import linear

from benchmarks.torch_tcgnn.layer_steps import gatv2, reference_step, sage
from benchmarks.torch_tcgnn.layers_cpu import KINDS
from benchmarks.torch_tcgnn.tasks import Task


def ring(width, *, isolated=0):
    """A ring of 64 nodes, and some without edges."""
    nodes = 64 + isolated
    source = torch.arange(64)
    target = (source + 1) % 64
    order = target.argsort()
    rowptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(target, minlength=nodes).cumsum(0)])
    random = torch.Generator().manual_seed(0)
    x, y, grad = (torch.randn(nodes, width, generator=random) for _ in range(3))
    return Task(torch.stack([source, target])[:, order], rowptr, nodes, x, y, grad, None)


def test_hidden_features_of_gatv2_lie_far_from_0_on_both_sides():
    layer = KINDS["gatv2-step"].draw(ring(128))
    left, right = (
        linear(layer.task.x, layer.parameters[f"lin_{side}.weight"], layer.parameters[f"lin_{side}.bias"])
        for side in "lr"
    )
    hidden = left.unsqueeze(0) + right.unsqueeze(1)  # of every pair of nodes
    assert hidden.abs().min() > 0.2
    assert 0.3 < (hidden > 0).float().mean() < 0.7


def test_logits_of_gat_lie_far_from_0_on_both_sides():
    layer = KINDS["gat-step"].draw(ring(128))
    hidden = linear(layer.task.x, layer.parameters["lin.weight"]).view(64, 8, 8)
    source, target = ((hidden * layer.parameters[name]).sum(-1) for name in ("att_src", "att_dst"))
    logits = source.unsqueeze(0) + target.unsqueeze(1)
    assert logits.abs().min() > 0.1
    assert 0.3 < (logits > 0).float().mean() < 0.7


def test_gatv2_of_one_neighbour_is_its_mapped_features():
    layer = KINDS["gatv2-step"].draw(ring(128))
    out, *_ = reference_step(gatv2, False, layer)
    named = {name: value.double() for name, value in layer.parameters.items()}
    left = linear(layer.task.x.double(), named["lin_l.weight"], named["lin_l.bias"])
    torch.testing.assert_close(out, left.roll(1, 0) + named["bias"])


def test_sage_of_a_node_without_neighbours_is_its_own_map():
    layer = KINDS["sage-step"].draw(ring(128, isolated=3))
    out, *_ = reference_step(sage, False, layer)
    named = {name: value.double() for name, value in layer.parameters.items()}
    own = linear(layer.task.x.double(), named["lin_r.weight"], named["lin_l.bias"])
    torch.testing.assert_close(out[64:], own[64:])
    assert (out[:64] - own[:64]).abs().min() > 0
