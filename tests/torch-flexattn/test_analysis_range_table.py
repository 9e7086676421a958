"""Least and greatest entries over ranges of indices."""

from __future__ import annotations

import pytest
import torch
from torch_flexattn.analysis.range_table import RangeTable

GROUP = 16


def every_range(size):
    low, high = torch.triu_indices(size, size)
    return low, high


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 64, 100, 257])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.bool])
def test_holds_every_entry_and_no_more_than_whole_groups(size, dtype):
    values = torch.randint(-50, 50, (size,), generator=torch.Generator().manual_seed(size)).to(dtype)
    low, high = every_range(size)
    least, greatest = RangeTable(values).between(low, high)
    for i, j, found_low, found_high in zip(*(t.tolist() for t in (low, high, least, greatest))):
        inside = values[i : j + 1].double()
        groups = values[i // GROUP * GROUP : (j // GROUP + 1) * GROUP].double()
        assert found_low <= inside.min()
        assert found_high >= inside.max()
        assert (found_low, found_high) == (groups.min(), groups.max())


def test_rows_of_leading_dimensions():
    values = torch.arange(2 * 3 * 40).view(2, 3, 40)
    table = RangeTable(values)
    row = torch.tensor([0, 4, 5])
    least, greatest = table.between(torch.tensor([0, 16, 32]), torch.tensor([39, 31, 39]), row)
    assert least.tolist() == [0, 4 * 40 + 16, 5 * 40 + 32]
    assert greatest.tolist() == [39, 4 * 40 + 31, 5 * 40 + 39]


def test_extremes_of_int32():
    values = torch.tensor([-(2**31), 2**31 - 1], dtype=torch.int32)
    least, greatest = RangeTable(values).between(torch.tensor(0), torch.tensor(1))
    assert (least.item(), greatest.item()) == (-(2**31), 2**31 - 1)


def test_not_a_number_is_not_lost():
    values = torch.ones(40)
    values[20] = torch.nan
    least, greatest = RangeTable(values).between(torch.tensor([0, 16]), torch.tensor([15, 39]))
    assert least.isnan().tolist() == greatest.isnan().tolist() == [False, True]


def test_memory_is_of_the_order_of_the_tensor():
    table = RangeTable(torch.zeros(2**20, dtype=torch.int32))
    held = sum(t.numel() * t.element_size() for t in vars(table).values() if isinstance(t, torch.Tensor))
    assert held <= 4.5 * 2**20 * 4
