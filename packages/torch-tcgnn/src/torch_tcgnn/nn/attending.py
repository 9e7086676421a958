"""What the attention layers share: the graph they attend over, its edge features, and the weights they hand out."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..functional.arguments import check_floating
from ..graph import Flow
from ..interop.torch_sparse import is_sparse_tensor
from .loops import LoopedGraph, loop_features, looped_graph
from .options import unsupported

MOST_BLOCKS = 16
"""Most heads whose products with attention vectors are taken by one matrix, mostly of zeros."""


def attended(
    adj: Any,
    size: tuple[int, int],
    flow: Flow,
    edge_attr: Tensor | None,
    *,
    add_self_loops: bool,
    fill_value: float | Tensor | str,
    edge_dim: int | None,
    name: str,
) -> tuple[LoopedGraph, Tensor | None]:
    """Graph and edge features ``[E', D]`` (``None`` without) of an attention layer.

    Raises:
        NotImplementedError: edge features hidden in a ``SparseTensor``'s values.
        TypeError: edge features that are no dense floating point tensor.
        ValueError: a wrong number of edge features, or another device than the graph's.
    """
    if edge_dim is not None and edge_attr is None and is_sparse_tensor(adj) and adj.has_value():
        raise unsupported(name, "edge_dim", f"{edge_dim} with a SparseTensor's values as edge_attr")
    looped = looped_graph(adj, size, flow, add=add_self_loops)
    if edge_attr is None or edge_dim is None:
        return looped, None
    check_floating(f"{name}: edge_attr", edge_attr)
    shape = tuple(edge_attr.shape)
    if edge_attr.dim() == 1:
        edge_attr = edge_attr.view(-1, 1)
    width = edge_dim if edge_dim > 0 or edge_attr.dim() == 0 else edge_attr.shape[-1]  # -1: the first input tells
    if edge_attr.shape != (looped.num_edges, width):
        raise ValueError(f"{name}: edge_attr must have shape [{looped.num_edges}, {edge_dim}], got {shape}")
    device = looped.edge_index.device
    if edge_attr.device != device:
        where = f"{edge_attr.device}, but the graph is on {device}"
        raise ValueError(f"{name}: edge_attr is on {where}: move one with .to()")
    return looped, loop_features(looped, edge_attr, fill_value, flow) if add_self_loops else edge_attr


def check_weights_wanted(adj: Any, name: str) -> None:
    """Raise where attention weights cannot be returned in the form of PyG's layer.

    Raises:
        NotImplementedError: for a sparse matrix.
    """
    if is_sparse_tensor(adj) or (isinstance(adj, Tensor) and adj.layout != torch.strided):
        raise unsupported(name, "return_attention_weights", "True for a sparse matrix")


def weights_out(looped: LoopedGraph, alpha: Tensor, flow: Flow) -> tuple[Tensor, Tensor]:
    """``(edge_index, alpha)`` as PyG returns them. Dropped loops make their number depend on the data."""
    edge_index = looped.edge_index
    if looped.extra_target:
        kept = edge_index[1] < looped.num_targets
        edge_index, alpha = edge_index[:, kept], alpha[kept]
    return (edge_index if flow == "source_to_target" else edge_index.flip(0)), alpha


def node_logits(h: Tensor, *vectors: Tensor) -> tuple[Tensor, ...]:
    """``[N, H]`` for each ``[1, H, C]`` of ``vectors``: its products with ``[N, H, C]``, head by head.

    For few heads one matrix product does all: with the vectors as rows, each in the columns of its head. The zeros in
    the other columns make NaN of what is not finite there, so on a CPU such products are taken again one by one; a GPU
    would have to wait to know. Types that differ and autocast keep the products in the wider type.
    """
    heads = h.shape[1]
    autocast = not h.is_meta and torch.is_autocast_enabled(h.device.type)
    same = all(vector.dtype == h.dtype for vector in vectors) and not autocast
    if heads > MOST_BLOCKS or not same:
        return _one_by_one(h, vectors)
    own = torch.eye(heads, dtype=h.dtype, device=h.device).unsqueeze(-1)
    blocks = (torch.cat(vectors).unsqueeze(1) * own).flatten(0, 1).flatten(1)
    logits = linear(h.flatten(1), blocks)
    found = logits.split(heads, dim=1)
    if h.device.type != "cpu":
        return found
    if torch.compiler.is_compiling():  # cannot branch on values
        return tuple(torch.where(t.isfinite(), t, alone) for t, alone in zip(found, _one_by_one(h, vectors)))
    return found if math.isfinite(logits.detach().sum().item()) else _one_by_one(h, vectors)


def _one_by_one(h: Tensor, vectors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple((h * vector).sum(-1) for vector in vectors)


def as_messages(out: Tensor, *vectors: Tensor) -> Tensor:
    """Sums ``Σ α · value`` in the type of PyG's: as wide as the attention vectors that made the logits.

    Autocast lets a 16-bit ``value`` meet float32 vectors, and on a GPU adds up every logit in float32.
    """
    dtype = out.dtype
    for vector in vectors:
        dtype = torch.promote_types(dtype, vector.dtype)
    if out.is_cuda and torch.is_autocast_enabled("cuda"):
        dtype = torch.promote_types(dtype, torch.float32)
    return out.to(dtype)


def join_heads(out: Tensor, concat: bool) -> Tensor:
    """``[M, H, C]`` to ``[M, H·C]``, or to the mean over heads ``[M, C]``."""
    return out.flatten(1) if concat else out.mean(dim=1)
