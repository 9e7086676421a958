"""What every loader and generator returns: one graph, or one batch of graphs, as plain tensors."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from ..graph_arguments import check_count, check_tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphData:
    """A graph of ``N`` nodes and ``E`` directed entries; ``edge_index[0]`` flows into ``edge_index[1]``.

    Attributes:
        edge_index: ``[2, E]`` int64: source and target of each entry.
        num_nodes: ``N``.
        name: the data set, or ``"…-like"`` for a generated stand-in.
        x: ``[N, F]`` float32 features, dense or sparse CSR, or ``None``.
        y: int64 classes, ``[N]`` of the nodes, or ``[num_graphs]`` where ``batch`` is given; or ``None``.
        train_mask: ``[N]`` bool, or ``None``; so are ``val_mask`` and ``test_mask``.
        edge_weight: ``[E]`` float32, or ``None``.
        edge_attr: ``[E, D]`` float32, or ``None``.
        batch: ``[N]`` int64: graph of each node, or ``None`` for a single graph.

    Raises:
        TypeError: a field that is no tensor, ``num_nodes`` that is no integer.
        ValueError: on tensors that do not fit each other, and on edges that name nodes outside ``[0, N)``.

    Example:
        >>> data = GraphData(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3, name="path")
        >>> data
        GraphData(path: 3 nodes, 2 edges)
        >>> [t.tolist() for t in data.csr()]
        [[0, 0, 1, 2], [0, 1]]
    """

    edge_index: Tensor
    num_nodes: int
    name: str
    x: Tensor | None = None
    y: Tensor | None = None
    train_mask: Tensor | None = None
    val_mask: Tensor | None = None
    test_mask: Tensor | None = None
    edge_weight: Tensor | None = None
    edge_attr: Tensor | None = None
    batch: Tensor | None = None

    def __post_init__(self) -> None:
        check_tensor("edge_index", self.edge_index)
        check_count("num_nodes", self.num_nodes, least=0)
        if self.edge_index.dim() != 2 or self.edge_index.shape[0] != 2 or self.edge_index.dtype != torch.int64:
            got = f"{tuple(self.edge_index.shape)} {self.edge_index.dtype}"
            raise ValueError(f"edge_index must be [2, E] int64, got {got}")
        if self.num_edges:
            low, high = (int(v) for v in self.edge_index.aminmax())
            if low < 0 or high >= self.num_nodes:
                raise ValueError(f"edge_index must lie in [0, {self.num_nodes}), got {low if low < 0 else high}")
        for field in ("x", "train_mask", "val_mask", "test_mask", "batch"):
            self._check_length(field, self.num_nodes)
        for field in ("edge_weight", "edge_attr"):
            self._check_length(field, self.num_edges)
        if self.batch is None:
            self._check_length("y", self.num_nodes)

    def _check_length(self, field: str, length: int) -> None:
        value = getattr(self, field)
        if value is None:
            return
        if not isinstance(value, Tensor):
            raise TypeError(f"{field} must be a Tensor or None, got {type(value).__name__}")
        if value.dim() == 0 or value.shape[0] != length:
            raise ValueError(f"{field} must have {length} rows, got shape {tuple(value.shape)}")

    def __repr__(self) -> str:
        graphs = "" if self.batch is None else f"{self.num_graphs} graphs, "
        return f"GraphData({self.name}: {graphs}{self.num_nodes} nodes, {self.num_edges} edges)"

    @property
    def num_edges(self) -> int:
        """``E``: directed entries, duplicates and self loops counted."""
        return self.edge_index.shape[1]

    @property
    def num_features(self) -> int:
        """Columns of ``x``; 0 without features."""
        return 0 if self.x is None else self.x.shape[1]

    @property
    def num_classes(self) -> int:
        """Largest class of ``y`` plus one; 0 without classes."""
        return 0 if self.y is None or self.y.numel() == 0 else int(self.y.max()) + 1

    @property
    def num_graphs(self) -> int:
        """Graphs of the batch; 1 where there is no batch vector."""
        if self.batch is None:
            return 1
        return int(self.batch.max()) + 1 if self.batch.numel() else 0

    def to(self, device: torch.device | str) -> GraphData:
        """The same graph with every tensor on ``device``."""
        tensors = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: v.to(device) for k, v in tensors.items() if isinstance(v, Tensor)})

    def csr(self) -> tuple[Tensor, Tensor]:
        """``(rowptr [N + 1] int64, col [E] int32)``: row ``i`` lists the sources of node ``i``'s entries, ascending."""
        source, target = self.edge_index
        key = target * max(self.num_nodes, 1) + source
        key = key.sort()[0]
        starts = torch.arange(self.num_nodes + 1, device=key.device) * max(self.num_nodes, 1)
        return torch.searchsorted(key, starts), (key % max(self.num_nodes, 1)).to(torch.int32)
