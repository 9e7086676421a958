"""A training step of one layer on the CPU: output, and the gradients of the features and of every parameter.

Ours is the drop-in layer, whose graph is translated once. PyG's GCN runs three ways: on ``edge_index`` with the
normalisation computed in every call (its default), the same with ``cached=True``, and on a torch CSR adjacency that was
normalised beforehand; its GAT runs on ``edge_index``, the only way that it has without further libraries.
"""

from functools import partial

import torch

from benchmarks.case import Case, Run, Runner
from benchmarks.torch_tcgnn.layer_steps import Layer, draw_layer, gat, gcn, off_the_kink, reference_step, step
from benchmarks.torch_tcgnn.tasks import QUICK, make_task

GRAPHS = ("amazon_photo", "amazon_computers", "musae_github")
IN_DIM, HEADS = 128, 8

__all__ = ["cases"]


def _make(graph: str, shapes: dict[str, tuple[int, ...]], device: torch.device) -> Layer:
    layer = draw_layer(make_task(graph, IN_DIM, device), shapes, shapes["bias"][0])
    return off_the_kink(layer) if "att_src" in shapes else layer


def _gcn_ours(out_dim: int, layer: Layer) -> Run:
    from torch_tcgnn.nn import GCNConv

    return step(layer, GCNConv(IN_DIM, out_dim), layer.task.edge_index)


def _gcn_pyg(out_dim: int, *, cached: bool = False) -> Runner:
    def runner(layer: Layer) -> Run:
        from torch_geometric.nn import GCNConv

        return step(layer, GCNConv(IN_DIM, out_dim, cached=cached), layer.task.edge_index)

    return runner


def _gcn_pyg_csr(out_dim: int, layer: Layer) -> Run:
    from torch_geometric.nn import GCNConv
    from torch_geometric.nn.conv.gcn_conv import gcn_norm
    from torch_geometric.utils import to_torch_csr_tensor

    edges, weight = gcn_norm(layer.task.edge_index, num_nodes=layer.task.num_nodes)
    size = (layer.task.num_nodes, layer.task.num_nodes)
    return step(layer, GCNConv(IN_DIM, out_dim, normalize=False), to_torch_csr_tensor(edges.flip(0), weight, size=size))


def _gat_ours(dim: int, layer: Layer) -> Run:
    from torch_tcgnn.nn import GATConv

    return step(layer, GATConv(IN_DIM, dim, HEADS), layer.task.edge_index)


def _gat_pyg(dim: int, layer: Layer) -> Run:
    from torch_geometric.nn import GATConv

    return step(layer, GATConv(IN_DIM, dim, HEADS), layer.task.edge_index)


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
        reference=partial(reference_step, gcn, True),
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
        reference=partial(reference_step, gat, True),
        tolerance=5e-4,
        devices=("cpu",),
    )


def cases() -> list[Case]:
    """Hidden layers of the sizes that papers use."""
    graphs = (*QUICK, *GRAPHS)
    return [_gcn(graph, out_dim) for graph in graphs for out_dim in (16, 64)] + [_gat(graph, 8) for graph in graphs]
