"""The choice of path: by sizes alone, tensor cores where blocks are full, rows where they are not."""

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn.cost import paths_on, prefer_blocks

WIDTHS = [64, 512, 2_048]


@pytest.mark.parametrize("row_bytes", WIDTHS)
def test_full_blocks_go_to_the_tensor_cores(row_bytes):
    rows = 100_000
    blocks = rows // 8 * 16
    assert prefer_blocks(rows, blocks * 64, blocks, row_bytes)


@pytest.mark.parametrize("row_bytes", WIDTHS[1:])
def test_blocks_of_one_entry_a_column_go_to_the_rows(row_bytes):
    rows, entries = 100_000, 2_000_000
    assert not prefer_blocks(rows, entries, entries // 8, row_bytes)


@pytest.mark.parametrize("row_bytes", WIDTHS)
def test_fewer_blocks_for_the_same_entries_never_turn_the_choice_back(row_bytes):
    rows, entries = 50_000, 3_000_000
    choices = [prefer_blocks(rows, entries, entries // fill, row_bytes) for fill in (8, 12, 16, 24, 32, 48, 64)]
    assert choices == sorted(choices)


def test_a_cpu_has_neither_path():
    assert paths_on("auto", torch.device("cpu")) == ()
    assert paths_on("cuda", torch.device("cpu")) == ()


def test_tensor_cores_on_a_cpu_are_refused_with_the_way_out():
    g = tcg.TCGraph.from_edge_index(torch.tensor([[0], [1]]), 2, path="tc")
    with pytest.raises(RuntimeError, match=r"path='tc' needs a GPU .*got cpu.*path='auto'"):
        tcg.spmm(g, torch.ones(2, 1))


@pytest.mark.gpu
def test_operands_hold_what_the_path_needs():
    edge_index = torch.tensor([[0], [1]], device="cuda")
    lengths = {path: len(tcg.TCGraph.from_edge_index(edge_index, 2, path=path).operands()) for path in ("tc", "cuda")}
    both = len(tcg.TCGraph.from_edge_index(edge_index, 2).operands())
    assert both == lengths["tc"] + lengths["cuda"] - 3


def test_weights_make_the_tensor_core_path_dearer():
    sizes = 7_575, 479_476, 43_061, 256
    assert prefer_blocks(*sizes)
    assert not prefer_blocks(*sizes, weighted=True)
