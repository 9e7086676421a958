"""Handwritten digits as a graph: the data set that comes with an installed dependency, for machines without network.

The 1,797 digits of 8 × 8 pixels of scikit-learn (UCI, Alpaydin and Kaynak 1998), joined to their nearest neighbours.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..graph_arguments import is_count
from .graph_data import GraphData
from .undirected import undirected


def digits(*, k: int = 8, seed: int = 0) -> GraphData:
    """Build the neighbour graph of scikit-learn's digits.

    Args:
        k: neighbours of each node (Euclidean, ties to the smaller id) before the graph is made symmetric.
        seed: of the split.

    Returns:
        :class:`GraphData` with ``x`` ``[1797, 64]`` in [0, 1], ``y`` ten classes, and a split like Planetoid's:
        20 training nodes a class, 500 validation, 1,000 test nodes.

    Raises:
        ImportError: scikit-learn is missing.
        TypeError: ``k`` that is no integer.
        ValueError: ``k`` outside ``[1, 1796]``.

    Example:
        >>> graph = digits()
        >>> graph, graph.x.shape, int(graph.train_mask.sum())
        (GraphData(digits: 1797 nodes, 19858 edges), torch.Size([1797, 64]), 200)
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("digits come with scikit-learn: pip install 'torch-tcgnn[data]'") from error
    pixels, labels = load_digits(return_X_y=True)
    num_nodes = pixels.shape[0]
    if not is_count(k):
        raise TypeError(f"k must be an integer, got {k!r}")
    if not 1 <= k < num_nodes:
        raise ValueError(f"k must lie in [1, {num_nodes - 1}], got {k}")
    y = torch.from_numpy(labels.astype(np.int64))
    train, val, test = _split(y, seed)
    return GraphData(
        edge_index=undirected(_neighbours(torch.from_numpy(pixels), k), num_nodes),
        num_nodes=num_nodes,
        name="digits",
        x=torch.from_numpy(pixels).to(torch.float32) / 16,
        y=y,
        train_mask=train,
        val_mask=val,
        test_mask=test,
    )


def _neighbours(points: Tensor, k: int) -> Tensor:
    """``[2, N·k]`` edges from each point's ``k`` nearest others to it; on small integers distances are exact."""
    num_nodes = points.shape[0]
    norm = points.square().sum(1)
    distance = (norm[:, None] + norm[None, :] - 2 * points @ points.t()).round().long()
    distance.fill_diagonal_(int(distance.max()) + 1)
    ranked = distance * num_nodes + torch.arange(num_nodes)
    nearest = ranked.topk(k, dim=1, largest=False)[0] % num_nodes
    return torch.stack([nearest.flatten(), torch.arange(num_nodes).repeat_interleave(k)])


def _split(y: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    order = torch.randperm(y.shape[0], generator=torch.Generator().manual_seed(seed))
    train = torch.cat([order[y[order] == label][:20] for label in range(10)])
    masks = torch.zeros(3, y.shape[0], dtype=torch.bool)
    masks[0, train] = True
    rest = order[~masks[0, order]]
    masks[1, rest[:500]] = True
    masks[2, rest[500:1500]] = True
    return masks[0], masks[1], masks[2]
