"""The choice of path: by sizes alone, tensor cores where blocks are full, rows where they are not."""

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn.cost import SM90, Rates, Work, paths_on, prefer_blocks_by_window

WIDTHS = [64, 512, 2_048]


def faster(rows: int, entries: int, blocks: int, row_bytes: int, rates: Rates = SM90, weighted: bool = False) -> str:
    work = {"tc": Work(-(-rows // 8), blocks, entries), "cuda": Work(rows=rows, entries=entries)}
    return min(work, key=lambda path: rates.predict_us(work[path], row_bytes, weighted=weighted))


@pytest.mark.parametrize("row_bytes", WIDTHS)
def test_full_blocks_go_to_the_tensor_cores(row_bytes):
    rows = 100_000
    blocks = rows // 8 * 16
    assert faster(rows, blocks * 64, blocks, row_bytes) == "tc"


@pytest.mark.parametrize("row_bytes", WIDTHS[1:])
def test_blocks_of_one_entry_a_column_go_to_the_rows(row_bytes):
    rows, entries = 100_000, 2_000_000
    assert faster(rows, entries, entries // 8, row_bytes) == "cuda"


@pytest.mark.parametrize("row_bytes", WIDTHS)
def test_fewer_blocks_for_the_same_entries_never_turn_the_choice_back(row_bytes):
    rows, entries = 50_000, 3_000_000
    choices = [faster(rows, entries, entries // fill, row_bytes) for fill in (8, 12, 16, 24, 32, 48, 64)]
    assert choices == sorted(choices)  # "cuda" before "tc"


@pytest.mark.parametrize("row_bytes", WIDTHS)
def test_windows_are_judged_as_graphs_of_them_alone_would_be(row_bytes):
    entries = torch.tensor([2_000, 900, 500, 300, 64, 8])
    blocks = torch.full_like(entries, 40)
    alone = [faster(8_000_000, n * 1_000_000, 40_000_000, row_bytes) == "tc" for n in entries.tolist()]
    together = prefer_blocks_by_window(entries.repeat(2_000), blocks.repeat(2_000), row_bytes)
    assert together.view(2_000, 6).unique(dim=0).tolist() == [alone]
    assert len(set(alone)) == 2


def windows(full: int, sparse: int, times: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows with full blocks and windows with one entry a column."""
    which = torch.cat([torch.ones(full), torch.zeros(sparse)]).bool().repeat(times)
    return torch.where(which, 64 * 4, 64), torch.where(which, 4, 8)


@pytest.mark.parametrize("full, expected", [(0, 0), (3, 0), (10, 10), (50, 50), (75, 75), (97, 100), (100, 100)])
def test_a_path_that_few_windows_prefer_is_dropped(full, expected):
    entries, blocks = windows(full, 100 - full, times=1_000)
    assert int(prefer_blocks_by_window(entries, blocks).sum()) == expected * 1_000


def test_a_small_graph_is_not_split():
    """Half of its windows would gain, but a second launch takes longer than all of them."""
    assert int(prefer_blocks_by_window(*windows(50, 50, times=1_000)).sum()) == 50_000
    assert int(prefer_blocks_by_window(*windows(50, 50, times=1)).sum()) in (0, 100)


def test_windows_without_entries_go_with_the_others():
    entries, blocks = windows(9, 0, times=1_000)
    empty = torch.zeros(1_000, dtype=torch.long)
    assert prefer_blocks_by_window(torch.cat([entries, empty]), torch.cat([blocks, empty])).all()
    assert not prefer_blocks_by_window(empty, empty).any()
    assert prefer_blocks_by_window(empty[:0], empty[:0]).tolist() == []


def test_a_cpu_has_neither_path():
    assert paths_on("auto", torch.device("cpu")) == ()
    assert paths_on("cuda", torch.device("cpu")) == ()


def test_tensor_cores_on_a_cpu_are_refused_with_the_way_out():
    g = tcg.TCGraph.from_edge_index(torch.tensor([[0], [1]]), 2, path="tc")
    with pytest.raises(RuntimeError, match=r"path='tc' needs a GPU .*got cpu.*path='auto'"):
        tcg.spmm(g, torch.ones(2, 1))


@pytest.mark.gpu
def test_operands_hold_what_the_path_needs():
    full = torch.cartesian_prod(torch.arange(64), torch.arange(64)).t().cuda()
    lengths = {p: len(tcg.TCGraph.from_edge_index(full, 64, path=p).operands(torch.float32)) for p in ("tc", "cuda")}
    both = len(tcg.TCGraph.from_edge_index(full, 64).operands(torch.float32))
    assert both == lengths["tc"] + lengths["cuda"] - 3


def test_weights_make_the_tensor_core_path_dearer():
    sizes = 65_536, 2_875_212, 145_292, 256
    assert faster(*sizes) == "tc"
    assert faster(*sizes, weighted=True) == "cuda"
