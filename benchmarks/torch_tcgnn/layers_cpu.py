"""A training step of one layer on the CPU: output, and the gradients of the features and of every parameter.

Ours is the drop-in layer, whose graph is translated once. PyG's GCN runs three ways: on ``edge_index`` with the
normalisation computed in every call (its default), the same with ``cached=True``, and on a torch CSR adjacency that was
normalised beforehand; the others run on ``edge_index``, the only way that the attention layers have without further
libraries.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch_tcgnn import nn as ours_nn

from benchmarks.case import Case, Run
from benchmarks.torch_tcgnn.layer_steps import (
    Kind,
    Layer,
    agnn,
    gat,
    gatv2,
    gcn,
    hidden_off_the_kink,
    off_the_kink,
    reference_step,
    sage,
    step,
)
from benchmarks.torch_tcgnn.tasks import QUICK, make_task

GRAPHS = ("amazon_photo", "amazon_computers", "flickr", "musae_github")
WIDE = ("amazon_photo",)  # with a GCN of 64 features, too; elsewhere it has the 16 of its paper
IN_DIM, HEADS, DIM, AGNN_DIM = 128, 8, 8, 32
WIDTH = HEADS * DIM
V2_HEADS = 4
V2_WIDTH = V2_HEADS * DIM  # PyG's GATv2 is the slowest contender of all

__all__ = ["cases"]


def _make(kind: Kind, graph: str, device: torch.device) -> Layer:
    return kind.draw(make_task(graph, kind.dims[0], device))


def _ours(kind: Kind, layer: Layer) -> Run:
    return step(layer, kind.modules(ours_nn), layer.task.edge_index)


def _pyg(kind: Kind, layer: Layer) -> Run:
    from torch_geometric import nn

    return step(layer, kind.modules(nn), layer.task.edge_index)


def _gcn_cached(out_dim: int, layer: Layer) -> Run:
    from torch_geometric.nn import GCNConv

    return step(layer, GCNConv(IN_DIM, out_dim, cached=True), layer.task.edge_index)


def _gcn_csr(out_dim: int, layer: Layer) -> Run:
    from torch_geometric.nn import GCNConv
    from torch_geometric.nn.conv.gcn_conv import gcn_norm
    from torch_geometric.utils import to_torch_csr_tensor

    edges, weight = gcn_norm(layer.task.edge_index, num_nodes=layer.task.num_nodes)
    size = (layer.task.num_nodes, layer.task.num_nodes)
    return step(layer, GCNConv(IN_DIM, out_dim, normalize=False), to_torch_csr_tensor(edges.flip(0), weight, size=size))


def _gcn(out_dim: int) -> Kind:
    return Kind(
        dims=(IN_DIM, out_dim),
        label=f"{IN_DIM}-{out_dim}",
        shapes={"lin.weight": (out_dim, IN_DIM), "bias": (out_dim,)},
        modules=lambda nn: nn.GCNConv(IN_DIM, out_dim),
        formula=gcn,
        further={"pyg-edge-index-cached": partial(_gcn_cached, out_dim), "pyg-csr": partial(_gcn_csr, out_dim)},
    )


_ATTENTION = (1, HEADS, DIM)
KINDS = {
    "gat-step": Kind(
        dims=(IN_DIM, WIDTH),
        label=f"{IN_DIM}-{HEADS}x{DIM}",
        shapes={"lin.weight": (WIDTH, IN_DIM), "att_src": _ATTENTION, "att_dst": _ATTENTION, "bias": (WIDTH,)},
        modules=lambda nn: nn.GATConv(IN_DIM, DIM, HEADS),
        formula=gat,
        adjust=off_the_kink,
    ),
    "gatv2-step": Kind(
        dims=(IN_DIM, V2_WIDTH),
        label=f"{IN_DIM}-{V2_HEADS}x{DIM}",
        shapes={
            "att": (1, V2_HEADS, DIM),
            "bias": (V2_WIDTH,),
            "lin_l.weight": (V2_WIDTH, IN_DIM),
            "lin_l.bias": (V2_WIDTH,),
            "lin_r.weight": (V2_WIDTH, IN_DIM),
            "lin_r.bias": (V2_WIDTH,),
        },
        modules=lambda nn: nn.GATv2Conv(IN_DIM, DIM, V2_HEADS),
        formula=gatv2,
        adjust=hidden_off_the_kink,
    ),
    "agnn-step": Kind(
        dims=(AGNN_DIM, AGNN_DIM),
        label=f"{AGNN_DIM}",
        shapes={"beta": (1,)},
        modules=lambda nn: nn.AGNNConv(),
        formula=agnn,
    ),
    "sage-step": Kind(
        dims=(IN_DIM, WIDTH),
        label=f"{IN_DIM}-{WIDTH}",
        shapes={"lin_l.weight": (WIDTH, IN_DIM), "lin_l.bias": (WIDTH,), "lin_r.weight": (WIDTH, IN_DIM)},
        modules=lambda nn: nn.SAGEConv(IN_DIM, WIDTH),
        formula=sage,
        loops=False,
    ),
}


def _gcn_flops(layer: Layer) -> float:
    out_dim, in_dim = layer.parameters["lin.weight"].shape
    return 4 * layer.task.num_edges * out_dim + 6 * layer.task.num_nodes * in_dim * out_dim


def _case(name: str, kind: Kind, graph: str, tolerance: float, flops: float | Callable[[Layer], float] = 0.0) -> Case:
    return Case(
        name=f"{name}/{graph}/{kind.label}/fp32",
        tags=(name, "step", "cpu", *(["quick"] if graph in QUICK else ["real"])),
        make=partial(_make, kind, graph),
        ours=partial(_ours, kind),
        peers={"pyg-edge-index": partial(_pyg, kind), **kind.further},
        reference=partial(reference_step, kind.formula, kind.loops),
        tolerance=tolerance,
        flops=flops,
        devices=("cpu",),
    )


def cases() -> list[Case]:
    """Hidden layers of the sizes that papers use."""
    graphs = (*QUICK, *GRAPHS)
    widths = [*((graph, 16) for graph in graphs), *((graph, WIDTH) for graph in (*QUICK, *WIDE))]
    gcns = [_case("gcn-step", _gcn(out_dim), graph, 1e-4, _gcn_flops) for graph, out_dim in widths]
    return gcns + [_case(name, kind, graph, 5e-4) for name, kind in KINDS.items() for graph in graphs]
