"""What a graph looks like to the kernels: the figures that decide which path is fast."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .adjacency import Adjacency
from .bitblock import WIDTH, BitBlocks
from .cost import TYPICAL_WIDTH, prefer_blocks_by_window, rates_on
from .window_counts import entries_per_window, vectors_per_window


@dataclass(frozen=True)
class GraphStats:
    """Counts of one adjacency and of its tensor-core blocks.

    Attributes:
        nnz: distinct entries.
        blocks: tensor-core blocks of 8 columns.
        v8: distinct (window of 8 rows, column) pairs: rows of features that a tensor-core kernel gathers.
        v16: the same for windows of 16 rows.
        density: ``nnz / (blocks · 64)``.
        reuse: ``nnz / v8``: entries served by one gathered row; from about 1.4 on tensor cores pay (at 128 float32
            features).
        tc_fraction: share of the entries, duplicates counted, that lie in windows which the cost model sends to tensor
            cores at 128 float32 features; where the graph lies on a CPU, by the shipped rates.
        max_window: blocks of the longest window.
        imbalance: mean deviation of blocks per window from their mean (IBD of Acc-SpMM, PPoPP 2025).
        num_bytes: bytes of the blocks of all windows.
        reordered: whether windows take their rows in the order that was asked for; the plain order stays where that
            one saves less than 3 % of the predicted time.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> edge_index = torch.tensor([[0, 1, 0], [0, 0, 1]])  # entries (0, 0), (0, 1), (1, 0)
        >>> stats = tcg.TCGraph.from_edge_index(edge_index, num_nodes=2).stats
        >>> stats.nnz, stats.v8, stats.blocks, stats.reuse, stats.density, stats.reordered
        (3, 2, 1, 1.5, 0.046875, False)
    """

    nnz: int
    blocks: int
    v8: int
    v16: int
    density: float
    reuse: float
    tc_fraction: float
    max_window: int
    imbalance: float
    num_bytes: int
    reordered: bool


def graph_stats(adjacency: Adjacency, num_cols: int, blocks: BitBlocks) -> GraphStats:
    """Measure ``adjacency`` and ``blocks``, those of all its windows of 8 rows; synchronises with the device."""
    row_order = blocks.row_order if blocks.row_order.numel() else None
    per_window = blocks.win_ptr.diff()
    entries = entries_per_window(adjacency, row_order=row_order)
    rates = rates_on(adjacency.col.device, torch.float32)
    on_tensor_cores = prefer_blocks_by_window(entries, per_window, TYPICAL_WIDTH * torch.float32.itemsize, rates)
    v8, v16 = (
        int(vectors_per_window(adjacency, num_cols, height=height, row_order=row_order).sum()) for height in (8, 16)
    )
    nnz = adjacency.num_edges - int(adjacency.repeats().sum())
    num_blocks, windows = blocks.num_blocks, per_window.numel()
    return GraphStats(
        nnz=nnz,
        blocks=num_blocks,
        v8=v8,
        v16=v16,
        density=nnz / (num_blocks * 8 * WIDTH) if num_blocks else 0.0,
        reuse=nnz / v8 if v8 else 0.0,
        tc_fraction=int(entries[on_tensor_cores].sum()) / max(adjacency.num_edges, 1),
        max_window=int(per_window.max()) if windows else 0,
        imbalance=float((per_window - per_window.double().mean()).abs().mean()) if windows else 0.0,
        num_bytes=blocks.num_bytes,
        reordered=row_order is not None,
    )
