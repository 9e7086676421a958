"""How little of a mask is looked at position by position, and that what is looked at is bounded."""

from __future__ import annotations

import pytest
import torch
from torch_flexattn.analysis import exact_tiles, quadtree
from torch_flexattn.analysis.count_table import CountTable
from torch_flexattn.analysis.geometry import Blocks, Geometry
from torch_flexattn.build import create_block_mask
from torch_flexattn.mods import mask_mod

LENGTH = 8192
GENERATOR = torch.Generator().manual_seed(0)
DOCUMENT = torch.randint(0, 40, (LENGTH,), generator=GENERATOR).sort().values
START = torch.searchsorted(DOCUMENT, DOCUMENT)
END = torch.searchsorted(DOCUMENT, DOCUMENT, right=True)
SPECIAL = torch.zeros(LENGTH, dtype=torch.bool).index_fill_(
    0, torch.randint(0, LENGTH, (9,), generator=GENERATOR), True
)
BLOCKS = torch.rand(4, 64, 64, generator=GENERATOR) < 0.2
OFFSETS = torch.zeros(2 * LENGTH, dtype=torch.bool)
OFFSETS[LENGTH - 300 : LENGTH + 900] = True
WINDOWS = torch.tensor([100, 1000, 3000, 8192])
PLACE = torch.stack([torch.arange(LENGTH) // 128, torch.arange(LENGTH) % 128]).float() / 10
PERIODS = torch.tensor([1, 2, 3, 5])
LENGTHS = torch.tensor([8192, 5000, 77])


def natten(b, h, q, kv, width=128):
    rows = (torch.clamp(q // width, 3, 60) - kv // width).abs() <= 3
    return rows & ((torch.clamp(q % width, 3, 124) - kv % width).abs() <= 3)


MASKS = {
    "causal": lambda b, h, q, kv: q >= kv,
    "window": lambda b, h, q, kv: (q >= kv) & (q - kv < 1000),
    "documents": lambda b, h, q, kv: DOCUMENT[q] == DOCUMENT[kv],
    "documents as intervals": lambda b, h, q, kv: (START[q] <= kv) & (kv < END[q]),
    "causal documents": lambda b, h, q, kv: (q >= kv) & (DOCUMENT[q] == DOCUMENT[kv]),
    "prefix": lambda b, h, q, kv: (kv < 300) | (q >= kv),
    "dilated": lambda b, h, q, kv: (q >= kv) & (q - kv < 2000) & ((q - kv) % 4 == 0),
    "streaming": lambda b, h, q, kv: (q >= kv) & ((q - kv < 1000) | (kv < 4)),
    "chunked": lambda b, h, q, kv: (q // 1000 == kv // 1000) & (q >= kv),
    "special tokens": lambda b, h, q, kv: ((q - kv).abs() < 100) | SPECIAL[q] | SPECIAL[kv],
    "natten": natten,
    "blocks": lambda b, h, q, kv: BLOCKS[h, q // 128, kv // 128],
    "small blocks": lambda b, h, q, kv: BLOCKS[h, q // 200, kv // 200] & (q >= kv),
    "offsets": lambda b, h, q, kv: OFFSETS[q - kv + LENGTH],
    "distance": lambda b, h, q, kv: (PLACE[0, q] - PLACE[0, kv]) ** 2 + (PLACE[1, q] - PLACE[1, kv]) ** 2 < 0.9,
    "periods of heads": lambda b, h, q, kv: (q - kv) // (500 * PERIODS[h]) == 1,
    "offsets from the end": lambda b, h, q, kv: OFFSETS[q - kv - LENGTH],
    "heads": lambda b, h, q, kv: (q >= kv) & (q - kv < WINDOWS[h]),
    "lengths": lambda b, h, q, kv: (q >= kv) & (kv < LENGTHS[b]),
}


@pytest.mark.parametrize("name", MASKS)
def test_few_blocks_are_looked_at_as_a_whole(name, monkeypatch):
    looked = []
    monkeypatch.setattr(exact_tiles, "look", _counting(exact_tiles.look, looked))
    mask = create_block_mask(MASKS[name], 3, 4, LENGTH, LENGTH, method="analytic")
    partial, _ = mask.nnz_blocks()
    assert sum(looked) <= 0.02 * partial
    assert partial <= 0.6 * mask.geometry.planes * 64**2


def _counting(function, counts):
    def count(mod, geometry, blocks):
        counts.append(len(blocks))
        return function(mod, geometry, blocks)

    return count


@pytest.mark.parametrize("at_a_time", [100, 5000, 1 << 26])
def test_steps_are_bounded_and_cover_all(at_a_time, monkeypatch):
    monkeypatch.setitem(exact_tiles.AT_A_TIME, "cpu", at_a_time)
    sizes = []
    whole = exact_tiles.evaluate_tiles

    def evaluate(mod, geometry, blocks, at_q, at_kv):
        sizes.append(len(blocks) * at_q.shape[-1] * at_kv.shape[-1])
        return whole(mod, geometry, blocks, at_q, at_kv)

    monkeypatch.setattr(exact_tiles, "evaluate_tiles", evaluate)
    mod = mask_mod(lambda b, h, q, kv: (q - kv) % 50 == 3)
    geometry = Geometry((1, 1, 200, 150), (48, 32), torch.device("cpu"))
    row, column = torch.meshgrid(torch.arange(5), torch.arange(5), indexing="ij")
    blocks = Blocks.at(torch.zeros(25, dtype=torch.int64), row.flatten(), column.flatten())
    some, every = exact_tiles.look(mod, geometry, blocks)
    assert max(sizes) <= max(at_a_time // 9, 32)  # nine bytes a position: two int32 and a bool
    dense = create_block_mask(mod, None, None, 200, 150, BLOCK_SIZE=(48, 32), method="analytic").kinds().flatten()
    assert (some.int() + every.int()).tolist() == dense.tolist()
    assert exact_tiles.count(mod, geometry, blocks) == sum((q - kv) % 50 == 3 for q in range(200) for kv in range(150))


def test_hints_find_what_samples_miss(monkeypatch):
    monkeypatch.setattr(exact_tiles, "WORTH_HINTS", 0)
    looked = []
    monkeypatch.setattr(exact_tiles, "look", _counting(exact_tiles.look, looked))
    special = torch.zeros(1024, dtype=torch.bool).index_fill_(0, torch.tensor([70, 701]), True)
    mask = create_block_mask(lambda b, h, q, kv: special[q] & special[kv], None, None, 1024, 1024, method="analytic")
    assert (mask.kinds() == 1).nonzero()[:, 2:].tolist() == [[0, 0], [0, 5], [5, 0], [5, 5]]
    mask = create_block_mask(lambda b, h, q, kv: ~special[q] & ~special[kv], None, None, 1024, 1024, method="analytic")
    assert mask.nnz_blocks() == (28, 36)
    assert not looked


def test_every_rectangle_of_a_table():
    table = torch.rand(2, 5, 7, generator=GENERATOR) < 0.6
    counts = CountTable(table)
    rows, columns = torch.triu_indices(5, 5), torch.triu_indices(7, 7)
    for plane in range(2):
        some, every = counts.between(tuple(rows[:, :, None]), tuple(columns[:, None]), plane)
        for i, (top, bottom) in enumerate(rows.T.tolist()):
            for j, (left, right) in enumerate(columns.T.tolist()):
                inside = table[plane, top : bottom + 1, left : right + 1]
                assert (bool(some[i, j]), bool(every[i, j])) == (bool(inside.any()), bool(inside.all()))


def test_many_planes_are_searched_in_parts(monkeypatch):
    monkeypatch.setattr(quadtree, "PLANE_VALUES", 2048)
    parts = []
    run = quadtree._Search.run
    monkeypatch.setattr(quadtree._Search, "run", lambda self, *of: parts.append(of[:2]) or run(self, *of))
    masks = [
        create_block_mask(lambda b, h, q, kv: (q - kv).abs() < LENGTHS[b] // 9 + h, 3, 3, 500, 500, method=method)
        for method in ("analytic", "exact")
    ]
    assert parts == [(0, 4), (4, 8), (8, 9)]
    assert torch.equal(masks[0].runs, masks[1].runs)
    assert torch.equal(masks[0].row_ptr, masks[1].row_ptr)


def test_boxes_are_evaluated_in_bounded_numbers(monkeypatch):
    monkeypatch.setitem(quadtree.FIRST, "cpu", 64)
    monkeypatch.setattr(quadtree, "AT_A_TIME", 300)
    shapes = []
    kinds = quadtree._Search._kinds
    monkeypatch.setattr(quadtree._Search, "_kinds", lambda self, *of: shapes.append(of[2]) or kinds(self, *of))
    create_block_mask(MASKS["documents"], None, None, LENGTH, LENGTH, BLOCK_SIZE=32, method="analytic")
    assert len(shapes) > 10
    assert max(n * rows * columns for n, rows, columns in shapes) <= 300
