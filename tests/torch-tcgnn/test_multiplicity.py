"""Edges listed more often than a 16-bit type can count: 2048 times in float16, 256 in bfloat16."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn import bitblock
from torch_tcgnn.adjacency import compress
from torch_tcgnn.kernels import choose

PAIRS = {(0, 2): 5001, (0, 5): 256, (1, 2): 2049, (9, 2): 257, (9, 0): 1, (17, 5): 300, (18, 1): 1}
ROWS, COLS = 21, 6


def edge_list() -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns, shuffled."""
    pairs, counts = torch.tensor(list(PAIRS)), torch.tensor(list(PAIRS.values()))
    row, col = pairs.repeat_interleave(counts, dim=0).t()
    order = torch.randperm(row.shape[0], generator=torch.Generator().manual_seed(0))
    return row[order], col[order]


def translated(height: int = 8, permuted: bool = False):
    row, col = edge_list()
    adjacency = compress(row, col, ROWS, COLS)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1)) if permuted else None
    return adjacency, bitblock.build(adjacency.rowptr, adjacency.col, COLS, height=height, row_order=order)


@pytest.mark.parametrize("height", [8, 16])
@pytest.mark.parametrize("permuted", [False, True])
def test_no_slot_counts_beyond_what_every_type_holds(height, permuted):
    _, blocks = translated(height, permuted)
    counts = blocks.slot_values(None)
    assert counts.max() == bitblock.COPIES
    for dtype in (torch.float16, torch.bfloat16):
        assert torch.equal(counts.to(dtype).float(), counts)


@pytest.mark.parametrize("height", [8, 16])
@pytest.mark.parametrize("permuted", [False, True])
def test_the_slots_of_a_pair_add_up_to_its_edges(height, permuted):
    adjacency, blocks = translated(height, permuted)
    row, col = edge_list()
    slot = blocks.edge_to_slot(adjacency.edge)
    pairs = {}
    for s, pair in zip(slot.tolist(), zip(row.tolist(), col.tolist()), strict=True):
        assert pairs.setdefault(s, pair) == pair  # no slot holds two pairs
    assert len(pairs) == blocks.num_slots
    total = dict.fromkeys(PAIRS, 0)
    for s, count in enumerate(blocks.slot_values(None).int().tolist()):
        total[pairs[s]] += count
    assert total == PAIRS


def test_a_column_comes_again_for_every_further_256_copies():
    _, blocks = translated()
    ends = blocks.win_ptr.tolist()
    of_window = [blocks.block_col[begin:end].flatten() for begin, end in pairwise(ends)]
    columns = [c[c >= 0].tolist() for c in of_window]
    assert columns == [[2] * 20 + [5], [0, 2, 2], [1, 5, 5]]


def test_weights_of_16_bits_are_added_in_float32():
    row, col = torch.zeros(2, 250, dtype=torch.int64)
    adjacency = compress(row, col, 1, 1)
    blocks = bitblock.build(adjacency.rowptr, adjacency.col, 1)
    weight = torch.full((250,), 1.0 + 2**-7, dtype=torch.bfloat16)
    assert blocks.slot_values(weight).tolist() == [250 * (1.0 + 2**-7)]


def test_a_graph_counts_distinct_edges_not_slots():
    row, col = edge_list()
    g = tcg.TCGraph.from_edge_index(torch.stack([col, row]), (COLS, ROWS))
    assert g.num_slots == len(PAIRS)
    assert g.has_duplicates
    assert torch.equal(g.to_edge_index(), torch.stack([col, row]))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("language", ["cuda", "triton"])
@pytest.mark.parametrize("path", ["tc", "cuda", "auto"])
@pytest.mark.filterwarnings("ignore:torch_tcgnn. kernels in CUDA C.. cannot be compiled")
def test_every_path_counts_exactly(dtype, language, path, monkeypatch):
    if language == "triton":
        monkeypatch.setattr(choose.nvrtc, "unavailable", lambda: "NVRTC is hidden by this test")
    elif missing := choose.nvrtc.unavailable():
        pytest.skip(missing)
    row, col = edge_list()
    g = tcg.TCGraph.from_edge_index(torch.stack([col, row]).cuda(), (COLS, ROWS), path=path)
    x = torch.arange(COLS, dtype=dtype, device="cuda").view(-1, 1).expand(-1, 16).contiguous().requires_grad_()
    for precision in ("ieee", "tf32"):
        out = tcg.spmm(g, x, precision=precision, out_dtype=torch.float32)
        expected = torch.zeros(ROWS)
        for (i, j), count in PAIRS.items():
            expected[i] += count * j
        assert torch.equal(out.cpu(), expected.view(-1, 1).expand(-1, 16))
        (grad,) = torch.autograd.grad(out.sum(), x)
        into = torch.bincount(col, minlength=COLS).to(dtype).view(-1, 1).expand(-1, 16)
        assert torch.equal(grad.cpu(), into)
