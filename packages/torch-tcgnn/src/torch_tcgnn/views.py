"""What kernels on a GPU read of a sparsity pattern, each part built on first use.

Graphs of one pattern share one :class:`Views`: the same edges under other weights or numbers, a symmetric graph's
transpose. Rows need a work list, tensor cores need blocks; where the path is open, only the windows that gain by tensor
cores have blocks, and the rows of the others a work list of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from . import bitblock
from .adjacency import Adjacency
from .bitblock import BitBlocks
from .cost import TYPICAL_WIDTH, prefer_blocks_by_window, rates_on
from .kernels.cuda.translate import translator_on
from .reorder import useful_order
from .row_plan import RowPlan, longest_piece, plan_rows
from .settle import check_not_captured, settle
from .stats import GraphStats, graph_stats

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Views:
    """The views of one pattern.

    Attributes:
        adjacency: rows and columns of the pattern; its edge numbers do not matter.
        num_cols: number of columns.
        reorder: which rows share a window.
    """

    adjacency: Adjacency
    num_cols: int
    reorder: str
    _parts: dict[str, Any] = field(init=False, default_factory=dict)

    @property
    def blocks(self) -> BitBlocks:
        """Blocks of all windows, of 8 rows."""
        return self._part("blocks", self._build)

    @property
    def plan(self) -> RowPlan:
        """Work list of all rows."""
        return self._part("plan", self._plan)

    @property
    def stats(self) -> GraphStats:
        """Sizes and densities of :attr:`blocks`."""
        return self._part("stats", lambda: graph_stats(self.adjacency, self.num_cols, self.blocks))

    def on(self, adjacency: Adjacency, paths: tuple[str, ...], dtype: torch.dtype) -> Adjacency:
        """``adjacency``, of this pattern, with the views that ``paths`` need for features of ``dtype``."""
        if paths == ("tc",):
            return replace(adjacency, blocks=self.blocks)
        if "tc" not in paths:
            return replace(adjacency, plan=self.plan if paths else None)
        blocks, rest = self._part(f"split for {dtype.itemsize} bytes", lambda: self._split(dtype))
        return replace(adjacency, plan=self.plan, blocks=blocks, rest=rest)

    def _split(self, dtype: torch.dtype) -> tuple[BitBlocks | None, RowPlan | None]:
        """Blocks of the windows that gain by them, and the work list of the other rows; ``None`` for what is empty."""
        rates = rates_on(self.adjacency.col.device, dtype)
        row_bytes = TYPICAL_WIDTH * dtype.itemsize
        blocks = self._build(lambda entries, blocks: prefer_blocks_by_window(entries, blocks, row_bytes, rates))
        if blocks.num_blocks == 0:
            return None, None
        if blocks.has_all_windows:
            return blocks, None
        rows = (~blocks.windows).repeat_interleave(blocks.height)[: self.adjacency.num_rows].nonzero().view(-1)
        return blocks, self._plan(rows if self._order is None else self._order.index_select(0, rows))

    @property
    def _order(self) -> Tensor | None:
        return self._part("order", lambda: useful_order(self.adjacency, self.num_cols, self.reorder))

    def _build(self, select: bitblock.Select | None = None) -> BitBlocks:
        rowptr, col = self.adjacency.rowptr, self.adjacency.col
        options = {"row_order": self._order, "select": select, "translate": translator_on(col.device)}
        return bitblock.build(rowptr, col, self.num_cols, **options)

    def _plan(self, rows: Tensor | None = None) -> RowPlan:
        return plan_rows(self.adjacency.rowptr, longest=longest_piece(self.adjacency.num_edges), rows=rows)

    def _part(self, name: str, build: Callable[[], T]) -> T:
        """The part of that name; of threads that build it at the same time, all get the first one's."""
        if name not in self._parts:
            check_not_captured(self.adjacency.col.device)
            with torch.inference_mode(False):  # training may use what inference built
                part = build()
            settle(self.adjacency.col.device)
            return self._parts.setdefault(name, part)
        return self._parts[name]
