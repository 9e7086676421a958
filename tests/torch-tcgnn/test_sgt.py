"""Sparse graph translation against the paper's published counts, and against plain loops."""

import pytest
import torch
from torch_tcgnn import data, sgt

# The paper's reduction tables count the adjacency lists as they are: with self loops; duplicates fall into one tile.
PUBLISHED = [
    ("cora", "listed", 16, 8, 7_477, 1_268),
    ("cora", "listed", 16, 16, 6_509, 681),
    ("citeseer", "listed", 16, 8, 7_624, 1_197),
    ("citeseer", "listed", 16, 16, 6_918, 659),
    ("citeseer", "undirected", 16, 8, 7_551, 1_176),
    ("pubmed", "listed", 16, 8, 84_094, 11_474),
]
# name, nnz, 16x8 blocks, density in percent, nnz/v16, nnz/v8, 8x8 blocks
WINDOWS = [
    ("cora", 10_556, 1_268, 6.5, 1.10, 1.08, 1_365),
    ("pubmed", 88_648, 11_474, 6.0, 1.01, 1.01, 12_080),
    ("polblogs", 33_430, 2_604, 10.0, 1.63, 1.32, 3_241),
    ("amazon_photo", 238_162, 27_537, 6.8, 1.09, 1.05, 28_911),
    ("amazon_computers", 491_722, 57_513, 6.7, 1.08, 1.04, 59_896),
    ("blogcatalog", 343_486, 34_242, 7.8, 1.26, 1.13, 38_389),
    ("flickr", 479_476, 34_935, 10.7, 1.73, 1.41, 43_061),
    ("PROTEINS", 162_088, 12_880, 9.8, 1.73, 1.50, 15_846),
    ("musae_github", 578_006, 69_325, 6.5, 1.06, 1.03, 72_009),
]


def random_csr(num_rows: int, num_cols: int, num_edges: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of random length, columns unsorted and with duplicates."""
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randint(max(num_rows, 1), (num_edges,), generator=rng)
    rowptr = torch.nn.functional.pad(torch.bincount(rows, minlength=num_rows).cumsum(0), (1, 0))[: num_rows + 1]
    return rowptr, torch.randint(max(num_cols, 1), (num_edges,), generator=rng)


def windows_by_loop(rowptr: torch.Tensor, col: torch.Tensor, window: int) -> list[list[int]]:
    """Ascending distinct columns of each window."""
    num_rows = len(rowptr) - 1
    return [
        sorted(set(col[rowptr[start] : rowptr[min(start + window, num_rows)]].tolist()))
        for start in range(0, num_rows, window)
    ]


def greedy_by_loop(columns: list[int], width: int) -> int:
    tiles, covered_to = 0, -1
    for column in columns:
        if column >= covered_to:
            tiles, covered_to = tiles + 1, column + width
    return tiles


SHAPES = [(1, 1, 1), (15, 40, 60), (16, 16, 100), (17, 200, 90), (50, 3, 300), (130, 130, 700), (64, 64, 0)]


@pytest.mark.parametrize("window, block", [(16, 8), (8, 8), (5, 3)])
@pytest.mark.parametrize("shape", SHAPES)
def test_translation_equals_a_loop_over_windows(shape, window, block):
    num_rows, num_cols, num_edges = shape
    rowptr, col = random_csr(num_rows, num_cols, num_edges, seed=num_edges)
    meta = sgt.translate(rowptr, col, window, block, num_cols=num_cols)
    distinct = windows_by_loop(rowptr, col, window)
    rows = [row for row in range(num_rows) for _ in range(int(rowptr[row]), int(rowptr[row + 1]))]
    assert meta.edge_to_row.tolist() == rows
    assert meta.win_partition.tolist() == [-(-len(columns) // block) for columns in distinct]
    restored = [distinct[row // window][k] for row, k in zip(rows, meta.edge_to_column.tolist())]
    assert restored == col.tolist()
    assert all(t.dtype == torch.int32 for t in meta)


@pytest.mark.parametrize("height, width", [(16, 8), (16, 16), (8, 8), (7, 1)])
@pytest.mark.parametrize("shape", SHAPES)
def test_tile_counts_equal_a_loop_over_windows(shape, height, width):
    num_rows, num_cols, num_edges = shape
    rowptr, col = random_csr(num_rows, num_cols, num_edges, seed=num_edges + 1)
    count = sgt.count_tiles(rowptr, col, height, width, num_cols=num_cols)
    distinct = windows_by_loop(rowptr, col, height)
    condensed = sum(-(-len(columns) // width) for columns in distinct)
    row = torch.arange(num_rows).repeat_interleave(rowptr.diff())
    nnz = len(set(zip(row.tolist(), col.tolist())))
    assert count.greedy == sum(greedy_by_loop(columns, width) for columns in distinct)
    assert count.condensed == condensed
    assert count.density == (nnz / (condensed * height * width) if condensed else 0.0)


@pytest.mark.parametrize("num_cols", [1, 7, 8, 9, 100_000])
def test_one_window_with_every_column_needs_every_tile(num_cols):
    rowptr, col = torch.tensor([0, num_cols]), torch.arange(num_cols).flip(0)
    count = sgt.count_tiles(rowptr, col, num_cols=num_cols)
    assert (count.greedy, count.condensed) == (-(-num_cols // 8), -(-num_cols // 8))


def test_tiles_never_reach_into_the_next_window():
    rowptr = torch.tensor([0, 1] + [1] * 15 + [2])
    count = sgt.count_tiles(rowptr, torch.tensor([16, 0]))  # the last column of window 0, the first of window 1
    assert count.greedy == 2


def test_duplicate_edges_change_no_count():
    rowptr, col = random_csr(40, 40, 150, seed=3)
    twice = col.repeat_interleave(2)
    assert sgt.count_tiles(rowptr, col) == sgt.count_tiles(2 * rowptr, twice)
    assert sgt.window_stats(rowptr, col, 8) == sgt.window_stats(2 * rowptr, twice, 8)


def test_int32_and_int64_indices_translate_alike():
    rowptr, col = random_csr(70, 70, 400, seed=4)
    wide, narrow = sgt.translate(rowptr, col), sgt.translate(rowptr.int(), col.int())
    assert all(torch.equal(a, b) for a, b in zip(wide, narrow))


def test_graph_without_nodes_has_no_windows():
    rowptr, col = torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    assert [t.numel() for t in sgt.translate(rowptr, col)] == [0, 0, 0]
    assert sgt.count_tiles(rowptr, col) == (0, 0, 0.0)
    assert sgt.window_stats(rowptr, col, 8) == (0, 0, 0, 0.0)


ROWPTR, COL = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
BAD_INPUT = [
    ((ROWPTR.float(), COL), TypeError, "rowptr must be int32 or int64, got torch.float32"),
    ((ROWPTR, COL.double()), TypeError, "col must be int32 or int64, got torch.float64"),
    ((ROWPTR, COL[None]), ValueError, r"col must have one dimension, got shape \(1, 2\)"),
    ((ROWPTR[:0], COL), ValueError, r"rowptr must have num_rows \+ 1 entries, got 0"),
    ((ROWPTR + 1, COL), ValueError, "rowptr must start at 0, got 1"),
    ((torch.tensor([0, 2, 1, 2]), COL), ValueError, "rowptr must not decrease, got 2 followed by 1 at row 1"),
    ((torch.tensor([0, 1]), COL), ValueError, "rowptr must end at the length of col, 2, got 1"),
    ((ROWPTR, torch.tensor([0, 2])), ValueError, r"col must lie in \[0, 2\), got 2 at edge 1"),
    ((ROWPTR, torch.tensor([-1, 2])), ValueError, r"col must lie in \[0, 2\), got -1 at edge 0"),
    ((ROWPTR, COL, 0), ValueError, "must be at least 1, got 0"),
    ((ROWPTR, COL, 16, -8), ValueError, "must be at least 1, got -8"),
]


@pytest.mark.parametrize("arguments, error, message", BAD_INPUT)
@pytest.mark.parametrize("function", [sgt.translate, sgt.count_tiles])
def test_bad_input_is_named(function, arguments, error, message):
    with pytest.raises(error, match=message):
        function(*arguments)


def test_window_stats_checks_its_input():
    with pytest.raises(ValueError, match="height must be at least 1, got 0"):
        sgt.window_stats(ROWPTR, COL, 0)
    with pytest.raises(ValueError, match="rowptr must start at 0, got 1"):
        sgt.window_stats(ROWPTR + 1, COL, 8)


@pytest.mark.data
@pytest.mark.parametrize("name, edges, height, width, greedy, condensed", PUBLISHED)
def test_published_tile_counts(data_root, name, edges, height, width, greedy, condensed):
    if not (data_root / name).is_dir():
        pytest.skip(f"no {name} in {data_root.name}")
    graph = data.planetoid(name, data_root, edges=edges)
    count = sgt.count_tiles(*graph.csr(), height, width)
    assert (count.greedy, count.condensed) == (greedy, condensed)


@pytest.mark.data
@pytest.mark.parametrize("name, nnz, blocks16, percent, reuse16, reuse8, blocks8", WINDOWS)
def test_windows_of_real_graphs(data_root, name, nnz, blocks16, percent, reuse16, reuse8, blocks8):
    folder = {"PROTEINS": "tu_PROTEINS", "musae_github": "snap_small"}.get(name, name)
    if not (data_root / folder).is_dir():
        pytest.skip(f"no {folder} in {data_root.name}")
    rowptr, col = data.load(name, data_root).csr()
    tall, flat = sgt.window_stats(rowptr, col, 16), sgt.window_stats(rowptr, col, 8)
    assert (tall.nnz, flat.nnz) == (nnz, nnz)
    assert (tall.blocks, flat.blocks) == (blocks16, blocks8)
    assert round(100 * tall.density, 1) == percent
    assert (round(nnz / tall.vectors, 2), round(nnz / flat.vectors, 2)) == (reuse16, reuse8)


@pytest.mark.gpu
def test_gpu_translates_like_the_cpu():
    rowptr, col = random_csr(1_003, 1_003, 9_000, seed=5)
    there = (rowptr.cuda(), col.cuda())
    assert all(torch.equal(a, b.cpu()) for a, b in zip(sgt.translate(rowptr, col), sgt.translate(*there)))
    assert sgt.count_tiles(rowptr, col) == sgt.count_tiles(*there)
    assert sgt.window_stats(rowptr, col, 8) == sgt.window_stats(*there, 8)
