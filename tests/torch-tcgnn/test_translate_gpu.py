"""Blocks built by the kernels of ``translate.cu`` are those built by sorting, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch_tcgnn as tcg
from torch import Tensor
from torch_tcgnn import bitblock, data
from torch_tcgnn.adjacency import Adjacency, compress
from torch_tcgnn.kernels.cuda import nvrtc, translate

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _needs_nvrtc() -> None:
    if missing := nvrtc.unavailable():
        pytest.skip(missing)


def distinct(row: Tensor, col: Tensor, num_rows: int, num_cols: int) -> tuple[Adjacency, int]:
    """Rows without duplicates, and the number of columns."""
    pairs = torch.stack([row, col]).unique(dim=1).cuda()
    return compress(*pairs, num_rows, num_cols), num_cols


def drawn(num_rows: int, num_cols: int, num_entries: int) -> tuple[Adjacency, int]:
    rng = torch.Generator().manual_seed(num_entries)
    row, col = (torch.randint(n, (num_entries,), generator=rng) for n in (num_rows, num_cols))
    return distinct(row, col, num_rows, num_cols)


def empty_rows() -> tuple[Adjacency, int]:
    """Of windows that lie between others, too."""
    rng = torch.Generator().manual_seed(3)
    row = torch.randint(60, (500,), generator=rng) * 41
    return distinct(row, torch.randint(900, (500,), generator=rng), 3_001, 900)


def hubs() -> tuple[Adjacency, int]:
    """Two rows of a window and one of another have nearly all columns, one column has all rows."""
    everyone = torch.arange(20_011)
    row = torch.cat([everyone * 0 + 9, everyone[::2] * 0 + 13, everyone[:-1] * 0 + 20_010, everyone])
    col = torch.cat([everyone, everyone[::2], everyone[:-1], everyone * 0 + 4])
    return distinct(row, col, 20_011, 20_011)


def molecules() -> tuple[Adjacency, int]:
    batch = data.molecule_batch(300, 39, 3.7, seed=0)
    source, target = batch.edge_index
    return distinct(target, source, batch.num_nodes, batch.num_nodes)


PATTERNS: dict[str, Callable[[], tuple[Adjacency, int]]] = {
    "one node": lambda: drawn(1, 1, 1),
    "one row": lambda: drawn(1, 3_000, 700),
    "one column": lambda: drawn(3_000, 1, 700),
    "less than a window": lambda: drawn(7, 9, 20),
    "full blocks": lambda: distinct(*torch.cartesian_prod(torch.arange(64), torch.arange(40)).unbind(1), 64, 40),
    "bipartite": lambda: drawn(1_003, 777, 9_000),
    "sparse": lambda: drawn(40_001, 300_000, 100_000),
    "dense": lambda: drawn(513, 600, 90_000),
    "empty rows": empty_rows,
    "hubs": hubs,
    "molecules": molecules,
}
SELECTS: dict[str, bitblock.Select | None] = {
    "all": None,
    "each": lambda entries, blocks: torch.ones_like(blocks, dtype=torch.bool),
    "none": lambda entries, blocks: torch.zeros_like(blocks, dtype=torch.bool),
    "dense ones": lambda entries, blocks: entries >= 12 * blocks,
    "every third": lambda entries, blocks: torch.arange(entries.shape[0], device=entries.device) % 3 == 1,
}


def assert_same(found: bitblock.BitBlocks, expected: bitblock.BitBlocks) -> None:
    for a, b in zip(found.tensors(), expected.tensors(), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("select", SELECTS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_blocks_are_those_of_sorting(pattern, select, ordered, index):
    adjacency, num_cols = PATTERNS[pattern]()
    order = torch.randperm(adjacency.num_rows, generator=torch.Generator().manual_seed(1)).cuda() if ordered else None
    options = {"row_order": order, "select": SELECTS[select]}
    rows = adjacency.rowptr.to(index), adjacency.col, num_cols
    found = []

    def translated(*arguments):
        found.append(translate.translate(*arguments))
        return found[0]

    blocks = bitblock.build(*rows, **options, translate=translated)
    assert found[0] is not None
    assert_same(blocks, bitblock.build(*rows, **options))


@pytest.mark.parametrize("num_entries, copies", [(0, 0), (500, 1)])
def test_what_the_kernels_leave_is_sorted(num_entries, copies):
    """Rows without entries, and duplicates."""
    adjacency, num_cols = drawn(99, 80, num_entries)
    twice = adjacency.rows()[:copies], adjacency.col[:copies].long()
    row, col = torch.cat([adjacency.rows(), twice[0]]), torch.cat([adjacency.col.long(), twice[1]])
    adjacency = compress(row, col, 99, 80)
    assert translate.translate(adjacency.rowptr, adjacency.col, 8, None) is None
    found = bitblock.build(adjacency.rowptr, adjacency.col, num_cols, translate=translate.translate)
    assert_same(found, bitblock.build(adjacency.rowptr, adjacency.col, num_cols))


def test_rows_that_do_not_ascend_are_left_to_sorting():
    """A stored graph may have some: sorting does not care, and the kernels notice."""
    rowptr = torch.tensor([0, 3, 4], dtype=torch.int32, device="cuda")
    col = torch.tensor([5, 1, 3, 1], dtype=torch.int32, device="cuda")
    assert translate.translate(rowptr, col, 8, None) is None


@pytest.mark.parametrize("order", ["none", "degree"])
def test_graphs_are_translated_by_the_kernels(order, monkeypatch):
    launched = []
    launch = translate._launch
    monkeypatch.setattr(translate, "_launch", lambda *a: (launched.append(a[2]), launch(*a)))
    edge_index = data.molecule_batch(40, 39, 3.7, seed=1).edge_index
    g = tcg.TCGraph.from_edge_index(edge_index.cuda(), reorder=order)
    blocks = g.blocks
    assert launched == [f"bitblock_{name}" for name in ("mark", "windows", "columns", "slots")]
    row_order = blocks.row_order if blocks.row_order.numel() else None
    assert_same(blocks, bitblock.build(g.adjacency.rowptr, g.adjacency.col, g.num_cols, row_order=row_order))


def test_the_second_gpu_translates_where_the_first_is_current():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    adjacency, num_cols = drawn(1_003, 777, 9_000)
    there = [t.to("cuda:1") for t in (adjacency.rowptr, adjacency.col)]
    found = bitblock.build(*there, num_cols, translate=translate.translate)
    assert all(t.device == there[0].device for t in found.tensors())
    expected = bitblock.build(adjacency.rowptr, adjacency.col, num_cols)
    for a, b in zip(found.tensors(), expected.tensors(), strict=True):
        assert torch.equal(a.cpu(), b.cpu())
