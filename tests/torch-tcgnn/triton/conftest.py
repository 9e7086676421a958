"""Small graphs for the Triton kernels: on the CPU through Triton's interpreter, on a GPU machine on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch_tcgnn import bitblock
from torch_tcgnn.adjacency import Adjacency, compress

pytest.importorskip("triton")
collect_ignore_glob = ["compile_*.py"]  # scripts of processes of their own, which import one another
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Graph:
    """An edge list in input order, and its compressed rows."""

    row: Tensor
    col: Tensor
    num_rows: int
    num_cols: int
    adjacency: Adjacency

    @property
    def num_edges(self) -> int:
        return self.row.shape[0]

    def with_blocks(self, max_blocks: int = 32, row_order: Tensor | None = None) -> Adjacency:
        a = self.adjacency
        blocks = bitblock.build(a.rowptr, a.col, self.num_cols, max_blocks=max_blocks, row_order=row_order)
        return replace(a, blocks=blocks)


def graph_of(row: Tensor, col: Tensor, num_rows: int, num_cols: int) -> Graph:
    row, col = row.to(DEVICE), col.to(DEVICE)
    return Graph(row, col, num_rows, num_cols, compress(row, col, num_rows, num_cols))


def _mixed() -> Graph:
    """Bipartite, unsorted, duplicates, rows of length 0 to about 10; sizes that are no multiple of 8."""
    torch.manual_seed(0)
    row = torch.randint(0, 15, (70,)) + torch.randint(0, 2, (70,)) * 6
    row, col = torch.cat([row, row[:9]]), torch.randint(0, 19, (70,))
    return graph_of(row, torch.cat([col, col[:9]]), 23, 19)


def _hub() -> Graph:
    """One row above the split (two pieces), one wide row, short rows and empty rows."""
    torch.manual_seed(1)
    row = torch.cat([torch.full((1200,), 3), torch.full((90,), 6), torch.randint(0, 2, (10,))])
    shuffle = torch.randperm(row.shape[0])
    return graph_of(row[shuffle], torch.randint(0, 37, (row.shape[0],)), 9, 37)


def _sorted() -> Graph:
    """Edges listed in row order, so that edge numbers are the identity."""
    return graph_of(torch.tensor([0, 0, 2, 2, 2, 4]), torch.tensor([1, 3, 0, 1, 4, 2]), 5, 5)


BUILDERS: dict[str, Callable[[], Graph]] = {"mixed": _mixed, "hub": _hub, "sorted": _sorted}


@pytest.fixture(scope="session")
def graphs() -> dict[str, Graph]:
    return {name: build() for name, build in BUILDERS.items()}


@pytest.fixture
def random() -> Callable[..., Tensor]:
    """Normal values on the kernels' device, the same in every run."""
    generator = torch.Generator().manual_seed(7)

    def sample(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)

    return sample
