"""The work list of the row kernels: every entry once, every row once, pieces of long rows in order."""

import pytest
import torch
from torch_tcgnn.bitblock import exclusive_scan
from torch_tcgnn.row_plan import TRIP, WIDE, RowPlan, plan_rows

LENGTHS = {
    "mixed": [0, 1, 5, 64, 65, 511, 512, 513, 0, 2_000, 3],
    "short rows only": [3, 0, 1, 4],
    "one hub": [0] * 20 + [10_000] + [0] * 20,
    "empty rows only": [0] * 9,
    "no rows": [],
}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_every_entry_and_every_row_is_somebodys_work(lengths, dtype):
    rowptr = exclusive_scan(torch.tensor(lengths, dtype=torch.int64)).to(dtype)
    plan = plan_rows(rowptr)
    assert all(t.dtype == dtype and t.is_contiguous() and t.data_ptr() % 16 == 0 for t in plan.tensors())
    work = torch.cat([plan.pieces, plan.wide, plan.short]).tolist()
    covered = sorted(entry for _, begin, end in work for entry in range(begin, end))
    assert covered == list(range(sum(lengths)))
    assert {row for row, *_ in work} == set(range(len(lengths)))
    for row, begin, end in work:
        assert rowptr[row] <= begin <= end <= rowptr[row + 1]
    assert len(plan.wide) + len(plan.short) + len(plan.cut_rows) == len(lengths)


def test_classes_are_those_of_the_length():
    rowptr = exclusive_scan(torch.tensor(LENGTHS["mixed"]))
    plan = plan_rows(rowptr, longest=512)
    assert sorted(plan.cut_rows[:, 0].tolist()) == [7, 9]
    assert sorted(plan.wide[:, 0].tolist()) == [4, 5, 6]
    assert sorted(plan.short[:, 0].tolist()) == [0, 1, 2, 3, 8, 10]
    assert WIDE == 64


def test_longest_work_comes_first():
    rowptr = exclusive_scan(torch.randint(300, (500,), generator=torch.Generator().manual_seed(0)))
    plan = plan_rows(rowptr)
    wide, short = (items[:, 2] - items[:, 1] for items in (plan.wide, plan.short))
    assert bool((wide.diff() <= 0).all())
    assert bool((((short + TRIP - 1) // TRIP).diff() <= 0).all())


@pytest.mark.parametrize("longest", [1, 7, 512])
def test_pieces_of_a_cut_row_lie_in_its_order(longest):
    rowptr = exclusive_scan(torch.tensor([700, 0, 1_500, 512, 513]))
    plan = plan_rows(rowptr, longest=longest)
    for row, first, last in plan.cut_rows.tolist():
        pieces = plan.pieces[first:last].tolist()
        ends = [rowptr[row], *(end for _, _, end in pieces)]
        assert [begin for _, begin, _ in pieces] == ends[:-1]
        assert ends[-1] == rowptr[row + 1]
        assert all(owner == row and 0 < end - begin <= longest for owner, begin, end in pieces)
    assert sum(last - first for _, first, last in plan.cut_rows.tolist()) == len(plan.pieces)


def test_length_is_the_number_of_tensors():
    assert len(plan_rows(torch.tensor([0, 1])).tensors()) == RowPlan.LENGTH


def test_a_plan_for_some_rows_is_the_plan_without_the_others():
    lengths = LENGTHS["mixed"]
    rowptr = exclusive_scan(torch.tensor(lengths))
    rows = torch.tensor([9, 2, 5, 0, 7])
    plan, whole = plan_rows(rowptr, longest=512, rows=rows), plan_rows(rowptr, longest=512)
    assert plan.num_rows == len(rows)
    assert whole.num_rows == len(lengths)
    for part in ("pieces", "wide", "short"):
        items = getattr(whole, part)
        assert sorted(getattr(plan, part).tolist()) == sorted(items[torch.isin(items[:, 0], rows)].tolist())
