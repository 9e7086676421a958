"""Softmax over the edges that enter each row, on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from ...adjacency import Adjacency
from .spmm import REDUCED, gather_sum


def edge_softmax(adjacency: Adjacency, logits: Tensor) -> Tensor:
    """``[E]`` or ``[E, H]`` logits in input edge order to contiguous probabilities that sum to 1 over each row.

    Where all logits of a row are −inf, all are 0.
    """
    if adjacency.num_edges == 0 or logits.numel() == 0:
        return logits.new_empty(logits.shape)
    compute = torch.float32 if logits.dtype in REDUCED else logits.dtype
    entries = adjacency.to_entries(logits.detach().to(compute).contiguous()).view(adjacency.num_edges, -1)
    rows = adjacency.rows()
    top = entries.new_full((adjacency.num_rows, entries.shape[1]), float("-inf"))
    top = top.scatter_reduce(0, rows.unsqueeze(1).expand_as(entries), entries, "amax")
    top = top.masked_fill_(top == float("-inf"), 0)
    weight = (entries - top.index_select(0, rows)).exp()
    identity = torch.arange(adjacency.num_edges, dtype=adjacency.rowptr.dtype)
    total = gather_sum(adjacency.rowptr, identity, weight, None)
    total = total.masked_fill_(total == 0, 1)
    share = weight / total.index_select(0, rows)
    return adjacency.to_edges(share.view(logits.shape).to(logits.dtype))
