"""A training step of one layer on the CPU: output, and the gradients of the features and of every parameter.

Ours is the drop-in layer, whose graph is translated once. PyG's GCN runs three ways: on ``edge_index`` with the
normalisation computed in every call (its default), the same with ``cached=True``, and on a torch CSR adjacency that was
normalised beforehand; its GAT runs on ``edge_index``, the only way that it has without further libraries.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch_tcgnn import reference

from benchmarks.case import Case, Run, Runner
from benchmarks.torch_tcgnn.tasks import QUICK, Task, make_task

GRAPHS = ("amazon_photo", "amazon_computers", "musae_github")
IN_DIM, HEADS = 128, 8

__all__ = ["cases"]


@dataclass(frozen=True)
class Layer:
    """A task with the parameters of a layer, under PyG's names, and a gradient of the output."""

    task: Task
    parameters: dict[str, Tensor]
    grad: Tensor


def _make(graph: str, shapes: dict[str, tuple[int, ...]], device: torch.device) -> Layer:
    task = make_task(graph, IN_DIM, device)
    random = torch.Generator().manual_seed(1)
    parameters = {name: torch.randn(shape, generator=random) / shape[-1] ** 0.5 for name, shape in shapes.items()}
    grad = torch.randn(task.num_nodes, *shapes["bias"], generator=random)
    return Layer(task, {name: value.to(device) for name, value in parameters.items()}, grad.to(device))


def _step(layer: Layer, conv: torch.nn.Module, adjacency: object) -> Run:
    conv.load_state_dict(layer.parameters)
    parameters = dict(conv.named_parameters())
    x = layer.task.x.clone().requires_grad_()

    def run() -> tuple[Tensor, ...]:
        out = conv(x, adjacency)
        return out, *torch.autograd.grad(out, (x, *(parameters[name] for name in layer.parameters)), layer.grad)

    return run


def _reference(forward: Callable[..., Tensor], layer: Layer) -> tuple[Tensor, ...]:
    """Autograd in float64 through `forward`, on the graph with self loops."""
    nodes = torch.arange(layer.task.num_nodes, device=layer.task.x.device)
    source, target = torch.cat([layer.task.edge_index, nodes.expand(2, -1)], dim=1)
    x = layer.task.x.double().requires_grad_()
    parameters = [value.double().requires_grad_() for value in layer.parameters.values()]
    out = forward(target, source, x, *parameters)
    return out, *torch.autograd.grad(out, (x, *parameters), layer.grad.double())


def _gcn_reference(row: Tensor, col: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    scale = torch.bincount(row, minlength=x.shape[0]).double().rsqrt()
    return reference.spmm(row, col, x @ weight.t(), scale[row] * scale[col], x.shape[0]) + bias


def _gat_reference(
    row: Tensor, col: Tensor, x: Tensor, weight: Tensor, att_src: Tensor, att_dst: Tensor, bias: Tensor
) -> Tensor:
    hidden = (x @ weight.t()).view(x.shape[0], HEADS, -1)
    source, target = (hidden * att_src).sum(-1), (hidden * att_dst).sum(-1)
    logits = reference.additive_logits(row, col, source, target, None, 0.2)
    return reference.attention(row, col, hidden, logits, x.shape[0]).flatten(1) + bias


def _gcn_ours(out_dim: int, layer: Layer) -> Run:
    from torch_tcgnn.nn import GCNConv

    return _step(layer, GCNConv(IN_DIM, out_dim), layer.task.edge_index)


def _gcn_pyg(out_dim: int, *, cached: bool = False) -> Runner:
    def runner(layer: Layer) -> Run:
        from torch_geometric.nn import GCNConv

        return _step(layer, GCNConv(IN_DIM, out_dim, cached=cached), layer.task.edge_index)

    return runner


def _gcn_pyg_csr(out_dim: int, layer: Layer) -> Run:
    from torch_geometric.nn import GCNConv
    from torch_geometric.nn.conv.gcn_conv import gcn_norm
    from torch_geometric.utils import to_torch_csr_tensor

    edges, weight = gcn_norm(layer.task.edge_index, num_nodes=layer.task.num_nodes)
    size = (layer.task.num_nodes, layer.task.num_nodes)
    return _step(
        layer, GCNConv(IN_DIM, out_dim, normalize=False), to_torch_csr_tensor(edges.flip(0), weight, size=size)
    )


def _gat_ours(dim: int, layer: Layer) -> Run:
    from torch_tcgnn.nn import GATConv

    return _step(layer, GATConv(IN_DIM, dim, HEADS), layer.task.edge_index)


def _gat_pyg(dim: int, layer: Layer) -> Run:
    from torch_geometric.nn import GATConv

    return _step(layer, GATConv(IN_DIM, dim, HEADS), layer.task.edge_index)


def _gcn(graph: str, out_dim: int) -> Case:
    return Case(
        name=f"gcn-step/{graph}/{IN_DIM}-{out_dim}/fp32",
        tags=("gcn-step", "step", "cpu", *(["quick"] if graph in QUICK else ["real"])),
        make=partial(_make, graph, {"lin.weight": (out_dim, IN_DIM), "bias": (out_dim,)}),
        ours=partial(_gcn_ours, out_dim),
        peers={
            "pyg-edge-index": _gcn_pyg(out_dim),
            "pyg-edge-index-cached": _gcn_pyg(out_dim, cached=True),
            "pyg-csr": partial(_gcn_pyg_csr, out_dim),
        },
        reference=partial(_reference, _gcn_reference),
        tolerance=1e-4,
        flops=lambda layer: 4 * layer.task.num_edges * out_dim + 6 * layer.task.num_nodes * IN_DIM * out_dim,
        devices=("cpu",),
    )


def _gat(graph: str, dim: int) -> Case:
    attention = (1, HEADS, dim)
    shapes = {"lin.weight": (HEADS * dim, IN_DIM), "att_src": attention, "att_dst": attention, "bias": (HEADS * dim,)}
    return Case(
        name=f"gat-step/{graph}/{IN_DIM}-{HEADS}x{dim}/fp32",
        tags=("gat-step", "step", "cpu", *(["quick"] if graph in QUICK else ["real"])),
        make=partial(_make, graph, shapes),
        ours=partial(_gat_ours, dim),
        peers={"pyg-edge-index": partial(_gat_pyg, dim)},
        reference=partial(_reference, _gat_reference),
        tolerance=1e-4,
        devices=("cpu",),
    )


def cases() -> list[Case]:
    """Hidden layers of the sizes that papers use."""
    graphs = (*QUICK, *GRAPHS)
    return [_gcn(graph, out_dim) for graph in graphs for out_dim in (16, 64)] + [_gat(graph, 8) for graph in graphs]
