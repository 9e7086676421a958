"""Bit blocks, decoded one bit at a time, give back the graph; the work list covers every block exactly once."""

from dataclasses import fields

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn import bitblock, data
from torch_tcgnn.adjacency import compress

# name: 8x8 blocks, 16x8 blocks
REAL_GRAPHS = {
    "cora": (1_365, 1_268),
    "polblogs": (3_241, 2_604),
    "blogcatalog": (38_389, 34_242),
    "flickr": (43_061, 34_935),
    "PROTEINS": (15_846, 12_880),
    "amazon_computers": (59_896, 57_513),
}
KNOWN = torch.tensor([[0, 0, 0, 1, 1, 17], [3, 3, 40, 7, 40, 0]])  # rows, columns


def random_entries(rows: int, cols: int, entries: int, seed: int = 0):
    rng = torch.Generator().manual_seed(seed)
    row, col = (torch.randint(max(n, 1), (entries,), generator=rng) for n in (rows, cols))
    return row, col, compress(row, col, rows, cols)


def dense_by_bits(blocks: bitblock.BitBlocks, num_rows: int, num_cols: int, slot_values=None) -> torch.Tensor:
    """Read every block bit by bit: the plain meaning of the format."""
    matrix = torch.zeros(num_rows, num_cols, dtype=torch.float64)
    seen = []
    for window in range(blocks.win_ptr.shape[0] - 1):
        for block in range(int(blocks.win_ptr[window]), int(blocks.win_ptr[window + 1])):
            slot = int(blocks.block_slot[block])
            for word, mask in enumerate(blocks.block_mask[block].tolist()):
                for bit in range(64):
                    if not mask >> bit & 1:
                        continue
                    place, condensed = window * blocks.height + (word * 64 + bit) // 8, bit % 8
                    row = int(blocks.row_order[place]) if blocks.row_order.numel() else place
                    column = int(blocks.block_col[block, condensed])
                    assert column >= 0, "a filled place in a padded column"
                    matrix[row, column] += 1.0 if slot_values is None else float(slot_values[slot])
                    seen.append(slot)
                    slot += 1
            assert slot == int(blocks.block_slot[block + 1])
    assert seen == list(range(blocks.num_slots))
    return matrix


def counted(row, col, num_rows, num_cols, weight=None) -> torch.Tensor:
    value = torch.ones(row.shape[0], dtype=torch.float64) if weight is None else weight.double()
    return torch.zeros(num_rows, num_cols, dtype=torch.float64).index_put((row, col), value, accumulate=True)


SHAPES = [
    (1, 1, 1),
    (7, 9, 20),
    (8, 8, 64),
    (17, 300, 90),
    (40, 12, 400),
    (33, 33, 0),
    (0, 0, 0),
    (5, 0, 0),
    (65, 3, 30),
]


def test_known_answer_of_windows_of_eight_rows():
    adjacency = compress(*KNOWN, 48, 48)
    blocks = bitblock.build(adjacency.rowptr, adjacency.col, 48)
    assert blocks.win_ptr.tolist() == [0, 1, 1, 2, 2, 2, 2]
    assert blocks.block_col.tolist() == [[3, 7, 40, -1, -1, -1, -1, -1], [0, -1, -1, -1, -1, -1, -1, -1]]
    assert blocks.block_mask.tolist() == [[0x605], [1 << 8]]
    assert blocks.block_slot.tolist() == [0, 4, 5]
    assert blocks.edge_to_slot(adjacency.edge).tolist() == [0, 0, 1, 2, 3, 4]
    assert blocks.slot_values(None).tolist() == [2, 1, 1, 1, 1]


def test_known_answer_of_windows_of_sixteen_rows():
    adjacency = compress(*KNOWN, 48, 48)
    blocks = bitblock.build(adjacency.rowptr, adjacency.col, 48, height=16)
    assert blocks.win_ptr.diff().tolist() == [1, 1, 0]
    assert blocks.block_mask.tolist() == [[0x605, 0], [1 << 8, 0]]
    assert blocks.num_slots == 5


@pytest.mark.parametrize("height", [8, 16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("permuted", [False, True])
def test_masks_and_slots_rebuild_the_matrix(shape, height, permuted):
    num_rows, num_cols, entries = shape
    row, col, adjacency = random_entries(*shape)
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(1)) if permuted else None
    blocks = bitblock.build(adjacency.rowptr, adjacency.col, num_cols, height=height, row_order=order)
    counts = counted(row, col, num_rows, num_cols)
    assert torch.equal(dense_by_bits(blocks, num_rows, num_cols), counts.clamp(max=1))
    assert torch.equal(dense_by_bits(blocks, num_rows, num_cols, blocks.slot_values(None)), counts) or (
        blocks.slot_values(None) is None and bool((counts <= 1).all())
    )
    weight = torch.arange(1.0, entries + 1)
    values = blocks.slot_values(adjacency.to_entries(weight))
    assert torch.equal(dense_by_bits(blocks, num_rows, num_cols, values), counted(row, col, num_rows, num_cols, weight))


@pytest.mark.parametrize("height", [8, 16])
def test_edges_find_their_slot(height):
    row, col, adjacency = random_entries(40, 25, 300)
    blocks = bitblock.build(adjacency.rowptr, adjacency.col, 25, height=height)
    slot = blocks.edge_to_slot(adjacency.edge)
    pair_of_slot = {}
    for s, pair in zip(slot.tolist(), zip(row.tolist(), col.tolist())):
        assert pair_of_slot.setdefault(s, pair) == pair
    assert len(pair_of_slot) == blocks.num_slots == len(set(zip(row.tolist(), col.tolist())))


def test_duplicates_of_a_slot_stay_in_input_order():
    row, col = torch.zeros(2, 6, dtype=torch.int64)
    adjacency = compress(row, col, 1, 1)
    blocks = bitblock.build(adjacency.rowptr, adjacency.col, 1)
    assert blocks.slot_entry.tolist() == [0, 1, 2, 3, 4, 5]
    assert blocks.slot_ptr.tolist() == [0, 6]
    values = torch.stack([torch.arange(6.0), torch.ones(6)], dim=1)
    assert blocks.slot_values(values).tolist() == [[15.0, 6.0]]


def test_graph_without_duplicates_stores_no_multiplicities():
    _, _, adjacency = random_entries(1, 50, 1)
    blocks = bitblock.build(adjacency.rowptr, adjacency.col, 50)
    assert blocks.slot_ptr.numel() == 0
    assert blocks.slot_values(None) is None


def test_a_full_block_sets_every_bit():
    row, col = torch.cartesian_prod(torch.arange(16), torch.arange(8)).unbind(1)
    adjacency = compress(row, col, 16, 8)
    assert bitblock.build(adjacency.rowptr, adjacency.col, 8).block_mask.tolist() == [[-1], [-1]]
    assert bitblock.build(adjacency.rowptr, adjacency.col, 8, height=16).block_mask.tolist() == [[-1, -1]]


@pytest.mark.parametrize("max_blocks", [1, 2, 5, 32, 40])
def test_work_items_cover_every_block_once_and_every_window(max_blocks):
    length = torch.tensor([0, 1, 7, 2, 0, 40, 5, 3])
    win_ptr = bitblock.exclusive_scan(length)
    items, splits, partial_window = bitblock.work_list(win_ptr, max_blocks, None, longest=40)
    covered = sorted(block for _, begin, end, _ in items.tolist() for block in range(begin, end))
    assert covered == list(range(int(length.sum())))
    assert {window for window, *_ in items.tolist()} == set(range(8))
    sizes = (items[:, 2] - items[:, 1]).tolist()
    assert max(sizes) <= max_blocks
    assert sizes == sorted(sizes, reverse=True)
    for window, begin, end, _ in items.tolist():
        assert win_ptr[window] <= begin <= end <= win_ptr[window + 1]
    by_partial = {partial: (window, begin) for window, begin, _, partial in items.tolist() if partial >= 0}
    assert sorted(by_partial) == list(range(len(partial_window)))
    assert [by_partial[p][0] for p in range(len(partial_window))] == partial_window.tolist()
    assert [window for window, *_ in splits.tolist()] == (length > max_blocks).nonzero().view(-1).tolist()
    for window, first, last in splits.tolist():
        begins = [by_partial[p][1] for p in range(first, last)]
        assert [by_partial[p][0] for p in range(first, last)] == [window] * (last - first)
        assert begins == sorted(begins), "pieces are summed in the order of their blocks"


@pytest.mark.parametrize("max_blocks", [2, 40])
def test_all_windows_chosen_are_the_windows_when_nobody_chooses(max_blocks):
    win_ptr = bitblock.exclusive_scan(torch.tensor([0, 1, 7, 2, 0, 40, 5, 3]))
    chosen = torch.ones(8, dtype=torch.bool)
    lists = [bitblock.work_list(win_ptr, max_blocks, mask, longest=40) for mask in (None, chosen)]
    assert all(torch.equal(a, b) for a, b in zip(*lists))


@pytest.mark.parametrize("max_blocks", [1, 64])
@pytest.mark.parametrize("left_out", [-1, 0, 5])
def test_shapes_tell_whether_every_window_has_items(left_out, max_blocks):
    _, _, adjacency = random_entries(90, 400, 700)
    adjacency = compress(adjacency.rows().clamp(min=8), adjacency.col, 90, 400)  # the first window is empty

    def select(entries, blocks):
        return torch.arange(entries.shape[0]) != left_out

    blocks = bitblock.build(adjacency.rowptr, adjacency.col, 400, max_blocks=max_blocks, select=select)
    assert (len(blocks.splits) > 0) == (max_blocks == 1)
    assert blocks.has_all_windows == (left_out < 0) == bool(blocks.windows.all())


def test_a_faster_way_is_asked_first_and_may_leave_a_pattern_to_sorting():
    _, _, adjacency = random_entries(40, 25, 300)
    rows = adjacency.rowptr, adjacency.col
    by_sorting, asked = bitblock.build(*rows, 25), []
    blocks = bitblock.build(*rows, 25, translate=lambda *arguments: asked.append(arguments))
    assert asked == [(*rows, 8, None)]
    assert all(torch.equal(a, b) for a, b in zip(blocks.tensors(), by_sorting.tensors()))
    parts = {f.name: getattr(by_sorting, f.name, None) for f in fields(bitblock.Translation)}
    found = bitblock.Translation(**parts | {"longest": int(by_sorting.win_ptr.diff().max())})
    assert bitblock.build(*rows, 25, translate=lambda *_: found).block_col is found.block_col


@pytest.mark.parametrize("reordered", [False, True])
@pytest.mark.parametrize("height", [8, 16])
@pytest.mark.parametrize("duplicates", [False, True])
def test_chosen_windows_get_the_blocks_they_have_among_all(duplicates, height, reordered):
    row, col, adjacency = random_entries(90, 40, 700 if duplicates else 150)
    if not duplicates:
        row, col = torch.stack([row, col], dim=1).unique(dim=0).unbind(1)
        adjacency = compress(row, col, 90, 40)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(1)) if reordered else None
    seen = []

    def every_third(entries, blocks):
        seen.append((entries, blocks))
        return torch.arange(entries.shape[0]) % 3 == 1

    whole = bitblock.build(adjacency.rowptr, adjacency.col, 40, height=height, row_order=order)
    some = bitblock.build(adjacency.rowptr, adjacency.col, 40, height=height, row_order=order, select=every_third)
    ((entries, blocks),) = seen
    assert torch.equal(blocks, whole.win_ptr.diff())
    assert entries.sum() == adjacency.num_edges
    places = torch.arange(90) if order is None else order
    chosen = torch.arange(-(-90 // height)) % 3 == 1
    assert torch.equal(some.windows, chosen)
    lengths = adjacency.rowptr.diff()[places]
    assert entries.tolist() == [int(part.sum()) for part in lengths.split(height)]
    rows = places[chosen.repeat_interleave(height)[:90]]
    kept = torch.isin(adjacency.rows(), rows)
    assert torch.equal(some.slot_entry.sort()[0].long(), kept.nonzero().view(-1))
    weight = torch.arange(1.0, adjacency.num_edges + 1, dtype=torch.float64)
    matrix = dense_by_bits(some, 90, 40, some.slot_values(weight))
    expected = dense_by_bits(whole, 90, 40, whole.slot_values(weight))
    others = torch.ones(90, dtype=torch.bool).index_fill(0, rows, False)
    assert torch.equal(matrix, expected.masked_fill(others[:, None], 0.0))
    assert torch.equal(some.block_col, whole.block_col[chosen.repeat_interleave(blocks)])


def test_wide_keys_translate_like_narrow_ones():
    """Windows × columns beyond 2³¹ take 64-bit keys."""
    row, col, adjacency = random_entries(60, 40, 500)
    narrow = bitblock.build(adjacency.rowptr, adjacency.col, 40)
    wide = bitblock.build(adjacency.rowptr.long(), adjacency.col, 2**31 - 1)
    assert all(torch.equal(a.long(), b.long()) for a, b in zip(narrow.tensors(), wide.tensors()))
    assert compress(row, col, 60, 2**31 - 1).col.equal(adjacency.col)


@pytest.mark.parametrize("height", [8, 16])
@pytest.mark.parametrize("chunk", [1, 37, 200])
def test_translating_some_windows_at_a_time_gives_the_same_blocks(monkeypatch, chunk, height):
    row, col, _ = random_entries(300, 60, 2_000)
    row[:400], row[row == 77] = 130, 78  # a window longer than a chunk; empty rows
    adjacency = compress(row, col, 300, 60)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(2))
    for row_order in (None, order):
        options = {"height": height, "row_order": row_order}
        whole = bitblock.build(adjacency.rowptr, adjacency.col, 60, **options)
        with monkeypatch.context() as patch:
            patch.setattr(bitblock, "CHUNK", chunk)
            pieces = bitblock.build(adjacency.rowptr, adjacency.col, 60, **options)
        assert all(torch.equal(a, b) for a, b in zip(whole.tensors(), pieces.tensors()))
        assert [t.dtype for t in whole.tensors()] == [t.dtype for t in pieces.tensors()]


@pytest.mark.parametrize("options, message", [({"height": 12}, "height must be 8 or 16, got 12"),
                                              ({"max_blocks": 0}, "max_blocks must be at least 1, got 0")])  # fmt: skip
def test_bad_options_are_named(options, message):
    _, _, adjacency = random_entries(4, 4, 4)
    with pytest.raises(ValueError, match=message):
        bitblock.build(adjacency.rowptr, adjacency.col, 4, **options)


def test_stats_are_those_of_the_blocks():
    row, col, _ = random_entries(50, 30, 200)
    g = tcg.TCGraph.from_edge_index(torch.stack([col, row]), (30, 50))
    stats = g.stats
    distinct = set(zip(row.tolist(), col.tolist()))
    vectors = {(r // 8, c) for r, c in distinct}
    per_window = [-(-sum(w == window for w, _ in vectors) // 8) for window in range(7)]
    assert (stats.nnz, stats.v8, stats.blocks) == (len(distinct), len(vectors), sum(per_window))
    assert stats.max_window == max(per_window)
    assert stats.reuse == len(distinct) / len(vectors)
    assert stats.density == len(distinct) / (64 * sum(per_window))
    mean = sum(per_window) / 7
    assert stats.imbalance == pytest.approx(sum(abs(n - mean) for n in per_window) / 7)


@pytest.mark.data
@pytest.mark.parametrize("name", REAL_GRAPHS)
def test_block_counts_of_real_graphs(data_root, name):
    if not (data_root / {"PROTEINS": "tu_PROTEINS"}.get(name, name)).is_dir():
        pytest.skip(f"no {name} in {data_root.name}")
    rowptr, col = data.load(name, data_root).csr()
    adjacency = tcg.TCGraph.from_csr(rowptr, col).adjacency
    for height, expected in zip((8, 16), REAL_GRAPHS[name]):
        blocks = bitblock.build(adjacency.rowptr, adjacency.col, adjacency.num_rows, height=height)
        assert blocks.num_blocks == expected


@pytest.mark.gpu
@pytest.mark.parametrize("height", [8, 16])
def test_gpu_translates_like_the_cpu(height):
    row, col, here = random_entries(1_003, 777, 9_000)
    there = compress(row.cuda(), col.cuda(), 1_003, 777)
    assert all(torch.equal(a, b.cpu()) for a, b in zip(here.tensors(), there.tensors()))
    blocks = [bitblock.build(a.rowptr, a.col, 777, height=height) for a in (here, there)]
    assert all(torch.equal(a, b.cpu()) for a, b in zip(*(b.tensors() for b in blocks)))
