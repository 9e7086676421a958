"""`TCGraph`: a graph translated once, used by every operator and layer.

Flow is source → target as in PyG: ``edge_index[0]`` holds sources ``j``, ``edge_index[1]`` targets ``i``; row ``i`` of
the adjacency holds the edges that enter node ``i``. Translation keeps the order of the input edges, duplicates and self
loops.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import GetAttrKey, register_pytree_node

from .adjacency import Adjacency, compress, transpose
from .bitblock import BitBlocks
from .cost import paths_on
from .graph_arguments import (
    as_device,
    check_choice,
    check_csr,
    check_edge_index,
    check_edge_weight,
    check_finite,
    check_ids,
    check_rowptr,
    check_sizes,
    check_state,
    check_stored,
    largest_id_plus_one,
)
from .inference import outliving_inference
from .normalisation import symmetric, with_loops
from .reorder import REORDERS, check_order
from .settle import check_not_captured, settle
from .stats import GraphStats
from .views import Views

Path = Literal["auto", "tc", "cuda"]
Flow = Literal["source_to_target", "target_to_source"]
PATHS: tuple[Path, ...] = ("auto", "tc", "cuda")
FLOWS: tuple[Flow, ...] = ("source_to_target", "target_to_source")


@dataclass(frozen=True, eq=False)
class TCGraph:
    """A translated graph: adjacency, sizes, optional edge weights; transpose and views are built on first need.

    Build one with :meth:`from_edge_index`, :meth:`from_csr` or :func:`torch_tcgnn.as_graph`.

    Attributes:
        adjacency: rows are targets, columns are sources.
        num_cols: number of sources (``K`` of the operators).
        weight: ``[E]`` or ``[E, H]`` edge weights in input order, or ``None``; operators called without one use it.
        path: ``"auto"``, ``"tc"`` (tensor cores) or ``"cuda"`` (CUDA cores) for kernels on a GPU.
        reorder: which rows share a tensor-core window; never changes results' places.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 1]]), num_nodes=3)
        >>> g
        TCGraph(3 targets, 3 sources, 3 edges, cpu)
        >>> tcg.spmm(g, torch.tensor([[1.0], [2.0], [4.0]]))
        tensor([[0.],
                [5.],
                [2.]])
    """

    adjacency: Adjacency
    num_cols: int
    weight: Tensor | None = None
    path: Path = "auto"
    reorder: str = "none"
    _derived: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Tensor,
        num_nodes: int | tuple[int, int] | None = None,
        edge_weight: Tensor | None = None,
        *,
        flow: Flow = "source_to_target",
        reorder: str = "none",
        path: Path = "auto",
        validate: bool = True,
    ) -> TCGraph:
        """Translate an edge list.

        Args:
            edge_index: ``[2, E]`` integer: sources, then targets.
            num_nodes: node count, or ``(num_sources, num_targets)`` of a bipartite graph; default: largest id + 1.
            edge_weight: ``[E]`` or ``[E, H]`` floating point.
            flow: ``"target_to_source"`` swaps the roles of the two rows, as PyG's ``flow`` does.
            reorder: ``"none"``, ``"degree"``, ``"rcm"``, ``"lsh"`` or ``"community"``; the order is used where it saves
                at least 3 % of the time that the cost model predicts (see :attr:`GraphStats.reordered`).
            path: which kernels to use on a GPU.
            validate: check ids (one synchronisation with the device).

        Raises:
            ValueError: shape or dtype of ``edge_index``, an id out of range (the first such edge is named), a weight of
                the wrong length, an unknown ``flow``, ``reorder`` or ``path``, an order that needs a square graph.
            TypeError: ``edge_weight`` is not floating point, ``num_nodes`` is no count.
        """
        check_choice("flow", flow, FLOWS)
        check_choice("path", path, PATHS)
        check_choice("reorder", reorder, REORDERS)
        check_edge_index(edge_index)
        plain = getattr(edge_index, "as_tensor", None)  # of PyG's EdgeIndex: only the ids matter here
        if plain is not None:
            stored = edge_index.sparse_size()  # type: ignore[attr-defined]
            if num_nodes is None and None not in stored:
                num_nodes = stored
            edge_index = plain()
        if num_nodes is None:
            num_nodes, validate = largest_id_plus_one(edge_index), False
        sizes = num_nodes if isinstance(num_nodes, tuple) else (num_nodes, num_nodes)
        num_cols, num_rows = check_sizes("num_nodes", sizes)
        if validate:
            check_ids(edge_index, (num_cols, num_rows))
        source, target = (0, 1) if flow == "source_to_target" else (1, 0)
        if flow == "target_to_source":
            num_cols, num_rows = num_rows, num_cols
        check_order(reorder, num_rows, num_cols)
        check_edge_weight("edge_weight", edge_weight, edge_index.shape[1], edge_index.device)
        adjacency = compress(edge_index[target], edge_index[source], num_rows, num_cols)
        return cls(adjacency, num_cols, edge_weight, path, reorder)

    @classmethod
    def from_csr(
        cls,
        rowptr: Tensor,
        col: Tensor,
        value: Tensor | None = None,
        size: tuple[int, int] | None = None,
        *,
        reorder: str = "none",
        path: Path = "auto",
        validate: bool = True,
    ) -> TCGraph:
        """Translate compressed rows (rows are targets); the columns of a row may be unsorted.

        Args:
            rowptr: ``[num_rows + 1]`` integer, from 0 up to the number of edges.
            col: ``[E]`` integer.
            value: ``[E]`` or ``[E, H]`` edge weights.
            size: ``(num_rows, num_cols)``; default: square.
            reorder: see :meth:`from_edge_index`.
            path: see :meth:`from_edge_index`.
            validate: check the values of ``rowptr`` and the ids (one synchronisation with the device).

        Raises:
            ValueError: ``rowptr`` does not start at 0, decreases, or does not end at ``E``; an id is out of range.
            TypeError: ``rowptr`` or ``col`` is not integer.
        """
        check_choice("path", path, PATHS)
        check_choice("reorder", reorder, REORDERS)
        check_csr(rowptr, col, size)
        if validate:
            check_rowptr(rowptr, col)
        num_rows = rowptr.shape[0] - 1
        num_cols, named_rows = check_sizes("size", (num_rows, num_rows) if size is None else tuple(size[::-1]))
        if named_rows != num_rows:
            raise ValueError(f"size must have {num_rows} rows, as rowptr has, got {size}")
        row = torch.repeat_interleave(rowptr.long().diff(), output_size=col.shape[0])
        if validate:
            check_ids(torch.stack([col.long(), row]), (num_cols, None), name="col")
        check_order(reorder, num_rows, num_cols)
        check_edge_weight("value", value, col.shape[0], col.device)
        return cls(compress(row, col, num_rows, num_cols), num_cols, value, path, reorder)

    @property
    def num_rows(self) -> int:
        """Number of targets (``M`` of the operators)."""
        return self.adjacency.num_rows

    @property
    def num_edges(self) -> int:
        """Number of input edges, duplicates counted."""
        return self.adjacency.num_edges

    @property
    def device(self) -> torch.device:
        """Where the structure lies, and with it the operands of every call."""
        return self.adjacency.col.device

    @property
    def is_symmetric(self) -> bool:
        """Whether every edge has its reverse: the transpose then shares this graph's structure."""
        return self.t().adjacency.col is self.adjacency.col

    @property
    def has_duplicates(self) -> bool:
        """Whether some edge is listed more than once."""
        return self.num_slots < self.num_edges

    @property
    def num_slots(self) -> int:
        """Number of distinct edges, counted on first use."""
        if "num_slots" not in self._derived:
            self._derived["num_slots"] = self.num_edges - int(self.adjacency.repeats().sum())
        return self._derived["num_slots"]

    @property
    def views(self) -> Views:
        """What kernels on a GPU read of the pattern; shared by the graphs that have it."""
        if "views" not in self._derived:
            pattern = replace(self.adjacency, edge=self.adjacency.edge.new_empty(0))
            self._derived.setdefault("views", Views(pattern, self.num_cols, self.reorder))
        return self._derived["views"]

    def _shared(self) -> dict[Any, Any]:
        """What a graph of the same pattern starts with; nothing under ``torch.compile``, which sees bare tensors."""
        return {} if torch.compiler.is_compiling() else {"views": self.views}

    @property
    def blocks(self) -> BitBlocks:
        """Tensor-core blocks of all windows of 8 rows, built on first use."""
        return self.views.blocks

    @property
    def stats(self) -> GraphStats:
        """Sizes and densities, measured on first use."""
        return self.views.stats

    def prepared(self, dtype: torch.dtype | None = None) -> Adjacency:
        """The adjacency with what the kernels of :attr:`path` need on this device, built once.

        Args:
            dtype: of the features that tensor cores multiply; ``None`` for operators that run on rows.
        """
        key = _view_of(dtype)
        if key not in self._derived:
            paths = paths_on(self.path, self.device)
            if key == "rows" and paths:
                paths = ("cuda",)
            self._derived.setdefault(key, self.views.on(self.adjacency, paths, dtype or torch.float32))
        return self._derived[key]

    def operands(self, dtype: torch.dtype | None = None) -> list[Tensor]:
        """:meth:`prepared` as the tensor list that ops take.

        Under ``torch.compile`` a graph that was not used before is passed as bare rows: the portable kernels run.
        """
        if torch.compiler.is_compiling() and _view_of(dtype) not in self._derived:
            return self.adjacency.tensors()
        return self.prepared(dtype).tensors()

    def t(self) -> TCGraph:
        """The reversed graph, with the same edge numbers; built once, and ``g.t().t() is g``."""
        if "t" not in self._derived:
            if torch.compiler.is_compiling():
                adjacency = transpose(self.adjacency, self.num_cols)
                return TCGraph(adjacency, self.num_rows, self.weight, self.path, self.reorder)
            check_not_captured(self.device)
            with torch.inference_mode(False):  # training may use what inference built
                adjacency = transpose(self.adjacency, self.num_cols)
            settle(self.device)
            flipped = TCGraph(adjacency, self.num_rows, self.weight, self.path, self.reorder)
            if flipped.adjacency.col is self.adjacency.col:
                flipped._derived["views"] = self.views
            flipped._derived["t"] = self
            self._derived.setdefault("t", flipped)
        return self._derived["t"]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> TCGraph:
        """A copy on ``device``; derived structure is rebuilt there on need. Returns itself when already there."""
        device = as_device(device)
        if device == self.device or (device.index is None and device.type == self.device.type):
            return self
        a = self.adjacency
        rowptr, col, edge = (t.to(device, non_blocking=non_blocking) for t in (a.rowptr, a.col, a.edge))
        moved = Adjacency(rowptr, col, edge)
        weight = None if self.weight is None else self.weight.to(device, non_blocking=non_blocking)
        return TCGraph(moved, self.num_cols, weight, self.path, self.reorder)

    def with_weight(self, weight: Tensor | None) -> TCGraph:
        """The same structure (and its derived parts) under other edge weights.

        Args:
            weight: ``[E]`` or ``[E, H]`` floating point in input edge order, or ``None``.
        """
        check_edge_weight("weight", weight, self.num_edges, self.device)
        return TCGraph(self.adjacency, self.num_cols, weight, self.path, self.reorder, self._shared())

    @outliving_inference
    def in_storage_order(self) -> TCGraph:
        """The same graph with its edges numbered as they are stored: by target, then by source.

        Weights that stay the same over many calls are then read in sequence, not by edge number. :attr:`weight` is
        permuted with the edges; :meth:`to_edge_index` gives the new order.
        """
        adjacency = replace(self.adjacency, edge=self.adjacency.edge.new_empty(0))
        weight = None if self.weight is None else self.adjacency.to_entries(self.weight)
        if weight is not None and weight.is_inference():
            weight = weight.clone()
        return TCGraph(adjacency, self.num_cols, weight, self.path, self.reorder, self._shared())

    def csr(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """``(rowptr, col, weight)`` with the weight in the order of ``col``."""
        weight = None if self.weight is None else self.adjacency.to_entries(self.weight)
        return self.adjacency.rowptr, self.adjacency.col, weight

    def to_edge_index(self) -> Tensor:
        """``[2, E]`` int64, (source, target) whatever ``flow`` was: the input edges in their order, with duplicates."""
        entries = torch.stack([self.adjacency.col.long(), self.adjacency.rows()], dim=1)
        return self.adjacency.to_edges(entries).t().contiguous()

    @outliving_inference
    def with_self_loops(self, fill: float = 1.0, *, remaining: bool = True) -> TCGraph:
        """Add one loop a node after the other edges, as PyG's ``add_remaining_self_loops``.

        Args:
            fill: weight of an added loop.
            remaining: keep the weight of a loop that exists (the last, where there are several); existing loops move
                to the end. ``False`` drops existing loops first, so that every loop has weight ``fill``.

        Raises:
            ValueError: the graph is bipartite.
        """
        check_finite("fill", fill)
        if self.num_rows != self.num_cols:
            raise ValueError(f"self loops need a square graph, got {self.num_cols} sources and {self.num_rows} targets")
        edges, weight = with_loops(self.to_edge_index(), self.weight, self.num_rows, fill, remaining=remaining)
        options = {"reorder": self.reorder, "path": self.path, "validate": False}
        return TCGraph.from_edge_index(edges, self.num_rows, weight, **options)

    @outliving_inference
    def gcn_norm(self, *, improved: bool = False, add_self_loops: bool = True) -> TCGraph:
        """Symmetric normalisation ``D^-1/2 (A + I) D^-1/2`` with degrees over targets (Kipf & Welling, 2017).

        Args:
            improved: loops of weight 2 (``A + 2I``), whether or not the other edges carry weights.
            add_self_loops: ``False`` normalises the edges as they are.

        A node of degree zero gets weight 0. The result's :attr:`weight` is differentiable in this graph's weight.
        """
        graph = self.with_self_loops(2.0 if improved else 1.0) if add_self_loops else self
        weight = torch.ones(graph.num_edges, device=graph.device) if graph.weight is None else graph.weight
        return graph.with_weight(symmetric(graph.adjacency, weight))

    def to_dict(self) -> dict[str, Any]:
        """Plain tensors and values, fit for ``torch.save`` and ``weights_only=True``; see :meth:`from_dict`."""
        a = self.adjacency
        return {
            "rowptr": a.rowptr, "col": a.col, "edge": a.edge, "weight": self.weight,
            "num_cols": self.num_cols, "path": self.path, "reorder": self.reorder,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> TCGraph:
        """Rebuild what :meth:`to_dict` wrote; raises TypeError or ValueError on anything else."""
        check_state(state, ("rowptr", "col", "edge", "weight", "num_cols", "path", "reorder"))
        check_choice("path", state["path"], PATHS)
        check_choice("reorder", state["reorder"], REORDERS)
        check_stored(state)
        adjacency = Adjacency(state["rowptr"], state["col"], state["edge"])
        return cls(adjacency, state["num_cols"], state["weight"], state["path"], state["reorder"])

    def __getstate__(self) -> dict[str, Any]:
        return self.to_dict()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(TCGraph.from_dict(state).__dict__)

    def __repr__(self) -> str:
        weight = "" if self.weight is None else ", weighted"
        return (
            f"TCGraph({self.num_rows} targets, {self.num_cols} sources, {self.num_edges} edges{weight}, {self.device})"
        )


def _view_of(dtype: torch.dtype | None) -> str:
    """Under which name an adjacency is kept: tensor cores gain by the bytes of their elements, and take no float64."""
    return "rows" if dtype is None or dtype == torch.float64 else f"blocks for {dtype.itemsize} bytes"


def _flatten(g: TCGraph) -> tuple[list[Tensor | None], list[int | str]]:
    a = g.adjacency
    return [a.rowptr, a.col, a.edge, g.weight], [g.num_cols, g.path, g.reorder]


def _unflatten(parts: Iterable[Any], context: list[Any]) -> TCGraph:
    *adjacency, weight = parts
    num_cols, path, reorder = context
    return TCGraph(Adjacency(*adjacency), num_cols, weight, path, reorder)


def _flatten_with_keys(g: TCGraph) -> tuple[list[tuple[Any, Any]], list[int | str]]:
    parts, context = _flatten(g)
    return list(zip(map(GetAttrKey, ("rowptr", "col", "edge", "weight")), parts)), context


register_pytree_node(
    TCGraph, _flatten, _unflatten, flatten_with_keys_fn=_flatten_with_keys, serialized_type_name="torch_tcgnn.TCGraph"
)
torch.serialization.add_safe_globals([TCGraph])
