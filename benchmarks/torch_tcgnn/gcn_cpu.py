"""A GCN layer on the CPU, forward and backward: gradients of the features, the weight matrix and the bias.

Ours is the drop-in layer with its graph translated once. PyG runs three ways: ``edge_index`` with the normalisation
computed in every call (its default), the same with ``cached=True``, and a torch CSR adjacency normalised beforehand.
"""

from dataclasses import dataclass
from functools import partial

import torch
import torch_tcgnn as tcg
from torch import Tensor

from benchmarks.case import Case, Run, Runner
from benchmarks.torch_tcgnn.tasks import QUICK, Task, make_task

GRAPHS = ("amazon_photo", "amazon_computers", "musae_github")

__all__ = ["cases"]


@dataclass(frozen=True)
class Layer:
    """A task with the parameters of a layer from ``in_dim`` to ``out_dim``."""

    task: Task
    weight: Tensor
    bias: Tensor
    grad: Tensor


def _make(graph: str, in_dim: int, out_dim: int, device: torch.device) -> Layer:
    task = make_task(graph, in_dim, device)
    random = torch.Generator().manual_seed(1)
    weight = (torch.randn(out_dim, in_dim, generator=random) / in_dim**0.5).to(device)
    bias, grad = torch.randn(out_dim, generator=random), torch.randn(task.num_nodes, out_dim, generator=random)
    return Layer(task, weight, bias.to(device), grad.to(device))


def _step(layer: Layer, conv: torch.nn.Module, adjacency: object) -> Run:
    with torch.no_grad():
        conv.lin.weight.copy_(layer.weight)
        conv.bias.copy_(layer.bias)
    x = layer.task.x.clone().requires_grad_()

    def run() -> tuple[Tensor, ...]:
        out = conv(x, adjacency)
        return out, *torch.autograd.grad(out, (x, conv.lin.weight, conv.bias), layer.grad)

    return run


def _ours(layer: Layer) -> Run:
    out_dim, in_dim = layer.weight.shape
    return _step(layer, tcg.nn.GCNConv(in_dim, out_dim), layer.task.edge_index)


def _pyg(cached: bool, csr: bool) -> Runner:
    def runner(layer: Layer) -> Run:
        from torch_geometric.nn import GCNConv
        from torch_geometric.nn.conv.gcn_conv import gcn_norm
        from torch_geometric.utils import to_torch_csr_tensor

        out_dim, in_dim = layer.weight.shape
        if not csr:
            return _step(layer, GCNConv(in_dim, out_dim, cached=cached), layer.task.edge_index)
        edges, weight = gcn_norm(layer.task.edge_index, num_nodes=layer.task.num_nodes)
        size = (layer.task.num_nodes, layer.task.num_nodes)
        adjacency = to_torch_csr_tensor(edges.flip(0), weight, size=size)
        return _step(layer, GCNConv(in_dim, out_dim, normalize=False), adjacency)

    return runner


def _reference(layer: Layer) -> tuple[Tensor, ...]:
    """``Â (X Wᵀ) + b`` in float64 with ``Â = D^-1/2 (A + I) D^-1/2``, by autograd over index_add."""
    nodes = torch.arange(layer.task.num_nodes, device=layer.task.x.device)
    source, target = torch.cat([layer.task.edge_index, nodes.expand(2, -1)], dim=1)
    scale = torch.bincount(target, minlength=layer.task.num_nodes).double().rsqrt()
    value = (scale[source] * scale[target]).unsqueeze(1)
    x, weight, bias = (t.double().requires_grad_() for t in (layer.task.x, layer.weight, layer.bias))
    hidden = x @ weight.t()
    out = torch.zeros_like(hidden).index_add(0, target, hidden[source] * value) + bias
    return out, *torch.autograd.grad(out, (x, weight, bias), layer.grad.double())


def _case(graph: str, in_dim: int, out_dim: int) -> Case:
    return Case(
        name=f"gcn-step/{graph}/{in_dim}-{out_dim}/fp32",
        tags=("gcn-step", "cpu", *(["quick"] if graph in QUICK else ["real"])),
        make=partial(_make, graph, in_dim, out_dim),
        ours=_ours,
        peers={
            "pyg-edge-index": _pyg(cached=False, csr=False),
            "pyg-edge-index-cached": _pyg(cached=True, csr=False),
            "pyg-csr": _pyg(cached=False, csr=True),
        },
        reference=_reference,
        tolerance=1e-4,
        flops=lambda layer: 4 * layer.task.num_edges * out_dim + 6 * layer.task.num_nodes * in_dim * out_dim,
        devices=("cpu",),
    )


def cases() -> list[Case]:
    """Hidden layers of the sizes that GCN papers use."""
    return [_case(graph, 128, out_dim) for graph in (*QUICK, *GRAPHS) for out_dim in (16, 64)]
