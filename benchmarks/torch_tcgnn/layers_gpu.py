"""A training step of one layer on a GPU: output, and the gradients of the features and of every parameter.

Ours is the drop-in layer, whose graph is translated once. PyG's layers run on ``edge_index``; its GCN also with
``cached=True`` (the normalisation is then out of the race; ours caches it always) and on a torch CSR adjacency that was
normalised beforehand. Without further libraries PyG has no other way for the attention layers.
"""

from functools import partial

import torch
import torch_tcgnn as tcg
from torch_tcgnn import nn as ours_nn

from benchmarks.case import Case, Run
from benchmarks.torch_tcgnn.gpu_tasks import make_task, tags_of
from benchmarks.torch_tcgnn.layer_steps import (
    Kind,
    Layer,
    agnn,
    gat,
    gcn,
    off_the_kink,
    reference_step,
    step,
    transformer,
)
from benchmarks.torch_tcgnn.spmm_gpu import translate

GRAPHS = ("amazon_computers", "PROTEINS", "artist-like")
LARGE = ("arxiv-like",)
QUICK = ("artist-like",)
HEADS, DIM, AGNN_DIM = 8, 16, 32
WIDTH = HEADS * DIM

__all__ = ["KINDS", "cases", "make_layer", "ours", "pyg"]


def make_layer(kind: Kind, graph: str, device: torch.device) -> Layer:
    """The inputs of a case."""
    return kind.draw(make_task(graph, kind.dims[0], device))


def ours(kind: Kind, layer: Layer) -> Run:
    """Our layer, after the first step, which translates the graph."""
    run = step(layer, kind.modules(ours_nn), layer.task.edge_index)
    run()
    return run


def pyg(kind: Kind, layer: Layer) -> Run:
    """PyG's layer with its defaults, on ``edge_index``."""
    from torch_geometric import nn

    return step(layer, kind.modules(nn), layer.task.edge_index)


def _gcn_cached(layer: Layer) -> Run:
    from torch_geometric.nn import GCNConv

    return step(layer, GCNConv(WIDTH, WIDTH, cached=True), layer.task.edge_index)


def _gcn_csr(layer: Layer) -> Run:
    from torch_geometric.nn import GCNConv
    from torch_geometric.nn.conv.gcn_conv import gcn_norm
    from torch_geometric.utils import to_torch_csr_tensor

    edges, weight = gcn_norm(layer.task.edge_index, num_nodes=layer.task.num_nodes)
    adjacency = to_torch_csr_tensor(edges.flip(0), weight, size=(layer.task.num_nodes, layer.task.num_nodes))
    return step(layer, GCNConv(WIDTH, WIDTH, normalize=False), adjacency)


def _gcn_kernel(layer: Layer) -> str:
    return tcg.explain(translate(layer.task).gcn_norm(), layer.grad).kernel


_ATTENTION = (1, HEADS, DIM)
KINDS = {
    "gcn-step": Kind(
        dims=(WIDTH, WIDTH),
        label=f"{WIDTH}-{WIDTH}",
        shapes={"lin.weight": (WIDTH, WIDTH), "bias": (WIDTH,)},
        modules=lambda nn: nn.GCNConv(WIDTH, WIDTH),
        formula=gcn,
        further={"pyg-edge-index-cached": _gcn_cached, "pyg-csr": _gcn_csr},
        kernel=_gcn_kernel,
    ),
    "gat-step": Kind(
        dims=(WIDTH, WIDTH),
        label=f"{WIDTH}-{HEADS}x{DIM}",
        shapes={"lin.weight": (WIDTH, WIDTH), "att_src": _ATTENTION, "att_dst": _ATTENTION, "bias": (WIDTH,)},
        modules=lambda nn: nn.GATConv(WIDTH, DIM, HEADS),
        formula=gat,
        adjust=off_the_kink,
    ),
    "agnn-step": Kind(
        dims=(AGNN_DIM, AGNN_DIM),
        label=f"{AGNN_DIM}",
        shapes={"beta": (1,)},
        modules=lambda nn: nn.AGNNConv(),
        formula=agnn,
    ),
    "transformer-step": Kind(
        dims=(WIDTH, WIDTH),
        label=f"{WIDTH}-{HEADS}x{DIM}",
        shapes={f"lin_{role}.weight": (WIDTH, WIDTH) for role in ("key", "query", "value", "skip")},
        modules=lambda nn: nn.TransformerConv(WIDTH, DIM, HEADS, bias=False),  # a key bias has no gradient to compare
        formula=transformer(HEADS),
        loops=False,
    ),
}


def _case(name: str, graph: str) -> Case:
    kind = KINDS[name]
    return Case(
        name=f"{name}/{graph}/{kind.label}/fp32",
        tags=tags_of(graph, name, "step", *(["quick"] if graph in QUICK else [])),
        make=partial(make_layer, kind, graph),
        ours=partial(ours, kind),
        peers={"pyg-edge-index": partial(pyg, kind), **kind.further},
        reference=partial(reference_step, kind.formula, kind.loops),
        tolerance=5e-4,
        kernel=kind.kernel,
        devices=("cuda",),
    )


def cases() -> list[Case]:
    """Every layer on a few graphs; GCN and GAT on a larger one, too."""
    everywhere = [_case(name, graph) for graph in GRAPHS for name in KINDS]
    return everywhere + [_case(name, graph) for graph in LARGE for name in ("gcn-step", "gat-step")]
