"""What a graph looks like to the kernels: the figures that decide which path is fast."""

from __future__ import annotations

from dataclasses import dataclass

from .adjacency import Adjacency
from .bitblock import WIDTH, BitBlocks


@dataclass(frozen=True)
class GraphStats:
    """Counts of one adjacency and of its tensor-core blocks.

    Attributes:
        nnz: distinct entries.
        blocks: tensor-core blocks of 8 columns.
        vectors: distinct (window, column) pairs: rows of features that a tensor-core kernel gathers.
        height: rows of a window.
        density: ``nnz / (blocks · height · 8)``.
        reuse: ``nnz / vectors``: entries served by one gathered row; from about 1.4 on tensor cores pay (at 128 float32
            features).
        max_window: blocks of the longest window.
        imbalance: mean deviation of blocks per window from their mean (IBD of Acc-SpMM, PPoPP 2025).
        num_bytes: bytes of the blocks.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> edge_index = torch.tensor([[0, 1, 0], [0, 0, 1]])  # entries (0, 0), (0, 1), (1, 0)
        >>> stats = tcg.TCGraph.from_edge_index(edge_index, num_nodes=2).stats
        >>> stats.nnz, stats.vectors, stats.blocks, stats.reuse, stats.density
        (3, 2, 1, 1.5, 0.046875)
    """

    nnz: int
    blocks: int
    vectors: int
    height: int
    density: float
    reuse: float
    max_window: int
    imbalance: float
    num_bytes: int


def graph_stats(adjacency: Adjacency, blocks: BitBlocks) -> GraphStats:
    """Measure ``blocks``, a translation of ``adjacency``; synchronises with the device."""
    per_window = blocks.win_ptr.diff().double()
    vectors = int((blocks.block_col >= 0).sum())
    nnz, num_blocks, height = blocks.num_slots, blocks.num_blocks, blocks.height
    windows = per_window.numel()
    return GraphStats(
        nnz=nnz,
        blocks=num_blocks,
        vectors=vectors,
        height=height,
        density=nnz / (num_blocks * height * WIDTH) if num_blocks else 0.0,
        reuse=nnz / vectors if vectors else 0.0,
        max_window=int(per_window.max()) if windows else 0,
        imbalance=float((per_window - per_window.mean()).abs().mean()) if windows else 0.0,
        num_bytes=blocks.num_bytes,
    )
