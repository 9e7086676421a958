"""A PyG transform that stores the translated graph in the data: for loaders, where a cache of objects cannot help."""

from __future__ import annotations

from typing import Any

import torch

from .graph import PATHS, Path
from .graph_arguments import check_choice
from .interop import as_graph
from .reorder import REORDERS


class ToTCGraph:
    """Add ``tcg``, a :class:`TCGraph`, to a PyG ``Data`` or to every edge type of a ``HeteroData``.

    Layers take ``data.tcg`` in place of ``data.edge_index``. Works as ``transform=`` of a ``NeighborLoader``; with a
    ``DataLoader`` of many graphs call it on the batch, or combine the graphs with :func:`torch_tcgnn.from_batch`.

    Args:
        weight: name of the edge weights, used where the data has them; ``None``: never.
        device: translate there; default: where the edges are.
        remove_edge_index: drop ``edge_index`` and ``adj_t`` afterwards.
        reorder: see :meth:`TCGraph.from_edge_index`.
        path: likewise.

    Raises:
        TypeError: the data is none of PyG's, or ``weight`` no name.
        ValueError: the data has neither ``edge_index`` nor ``adj_t``; an unknown ``reorder`` or ``path``.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> from torch_geometric.data import Data
        >>> data = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> tcg.transforms.ToTCGraph()(data).tcg
        TCGraph(3 targets, 3 sources, 2 edges, cpu)

    Reference:
        PyG's ``ToSparseTensor``, which stores ``adj_t`` likewise.
    """

    def __init__(
        self,
        *,
        weight: str | None = "edge_weight",
        device: torch.device | str | None = None,
        remove_edge_index: bool = False,
        reorder: str = "none",
        path: Path = "auto",
    ) -> None:
        if weight is not None and not isinstance(weight, str):
            raise TypeError(f"weight must be the name of an attribute or None, got {type(weight).__name__}")
        check_choice("reorder", reorder, REORDERS)
        check_choice("path", path, PATHS)
        self.weight, self.device, self.remove_edge_index = weight, device, remove_edge_index
        self.reorder = reorder
        self.path: Path = path

    def __call__(self, data: Any) -> Any:
        """Add the graph to ``data`` and return it."""
        if not hasattr(data, "edge_stores"):
            raise TypeError(f"data must be a PyG Data, HeteroData or batch, got {type(data).__name__}")
        stores = [store for store in data.edge_stores if "edge_index" in store or "adj_t" in store]
        if not stores:
            raise ValueError(f"data must have edge_index or adj_t, got {data}")
        for store in stores:
            adj = store["edge_index"] if "edge_index" in store else store["adj_t"]
            weight = store[self.weight] if self.weight is not None and self.weight in store else None
            if self.device is not None:
                adj = adj.to(self.device)
                weight = None if weight is None else weight.to(self.device)
            weight = None if weight is None else weight.reshape(-1)
            store["tcg"] = as_graph(adj, store.size(), weight, reorder=self.reorder, path=self.path)
            for name in ("edge_index", "adj_t") if self.remove_edge_index else ():
                if name in store:
                    del store[name]
        return data

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
