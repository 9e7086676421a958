"""Captured tensors read at an index that mixes query and key: what boxes are told holds every entry read."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch_flexattn.analysis import reads
from torch_flexattn.analysis.alike import least, most
from torch_flexattn.analysis.boxes import Boxes
from torch_flexattn.analysis.geometry import Geometry
from torch_flexattn.analysis.pyramid import axes
from torch_flexattn.analysis.sides import divide
from torch_flexattn.mods import mask_mod

BLOCK = (16, 16)


def told(mod, shape):
    """Whether blocks can be visible and can be hidden, as ranges tell, ``[planes, rows, columns]``."""
    geometry = Geometry(shape, BLOCK, torch.device("cpu"))
    planes = torch.arange(geometry.planes)
    sides = divide(mod.program, mod.scalars, shape)
    truth = Boxes(mod, sides, geometry, axes(geometry, ()), planes).run(0, None)
    size = (geometry.planes, geometry.rows, geometry.columns)
    return tuple(torch.as_tensor(t).expand(size) for t in (truth.can_be_true, truth.can_be_false))


def true(mod, shape):
    """The same from every position."""
    sizes = enumerate(shape)
    indices = [torch.arange(n, dtype=torch.int32).view([-1 if k == d else 1 for k in range(4)]) for d, n in sizes]
    tiles = mod(*indices).flatten(0, 1).unflatten(1, (-1, BLOCK[0])).unflatten(3, (-1, BLOCK[1]))
    tiles = tiles.transpose(2, 3).flatten(3)
    return tiles.any(3), ~tiles.all(3)


def holds(mask, shape) -> float:
    """The share of blocks of which ranges tell all there is to tell."""
    mod = mask_mod(mask)
    known, facts = told(mod, shape), true(mod, shape)
    for can, does in zip(known, facts):
        assert bool((can >= does).all()), mod.program.text
    return float(((known[0] == facts[0]) & (known[1] == facts[1])).double().mean())


@pytest.mark.parametrize("kind", ["bool", "int32", "int64", "float32"])
@pytest.mark.parametrize("seed", range(25))
def test_one_index(seed, kind):
    r, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    table = (torch.randn(r.choice([3, 40, 97, 200]), generator=generator).cumsum(0) * 3).to(getattr(torch, kind))
    a, b, c = r.choice([1, 2, -1]), r.choice([1, -1, -3]), r.choice([0, 50, -50, 200, -200])
    if kind == "bool":
        holds(lambda b_, h, q, kv: table[a * q + b * kv + c], (1, 1, 96, 64))
    else:
        holds(lambda b_, h, q, kv: table[a * q + b * kv + c] > 4, (1, 1, 96, 64))


@pytest.mark.parametrize("sign", [1, -1])
def test_what_is_in_range_is_told_exactly_up_to_groups(sign):
    table = torch.zeros(256, dtype=torch.bool)
    table[100:180] = True
    share = holds(lambda b, h, q, kv: table[q - kv + (128 if sign == 1 else -128)], (1, 1, 128, 128))
    assert share > 0.8


@pytest.mark.parametrize("largest", [0, 1 << 22])
@pytest.mark.parametrize("seed", range(10))
def test_table_of_blocks_of_heads(seed, largest, monkeypatch):
    monkeypatch.setattr(reads, "LARGEST", largest)
    r = random.Random(seed)
    table = torch.rand(2, 6, 4, generator=torch.Generator().manual_seed(seed)) < 0.5
    size = r.choice([16, 20, 32])
    share = holds(lambda b, h, q, kv: table[h, q // size, kv // size], (1, 2, 96, 64))
    assert share == 1 or (largest == 0 and size == 20)


def test_table_of_numbers_at_two_ranges():
    table = torch.arange(24).view(6, 4)
    assert holds(lambda b, h, q, kv: table[q // 16, kv // 16] > 9, (1, 1, 96, 64)) == 1
    holds(lambda b, h, q, kv: table[q // 20, kv // 20] > 9, (1, 1, 96, 64))
    holds(lambda b, h, q, kv: table[q // 12, kv // 40 - 2] > 9, (1, 1, 96, 64))


def test_row_of_a_table_for_each_batch():
    table = torch.randint(0, 9, (3, 200), generator=torch.Generator().manual_seed(0)).sort(1).values
    assert holds(lambda b, h, q, kv: table[b, q + kv] >= 5, (3, 1, 96, 64)) > 0.7
    holds(lambda b, h, q, kv: table[b - 1, q - kv] >= 5, (3, 1, 96, 64))


def test_empty_table():
    table = torch.zeros(0, dtype=torch.bool)
    assert holds(lambda b, h, q, kv: table[q - kv], (1, 1, 32, 32)) == 0  # all out of range: 0, but nothing is told


def test_not_a_number_stays():
    for function in (least, most):
        assert math.isnan(function(math.nan, 1.0))
        assert math.isnan(function(1.0, math.nan))
        assert math.isnan(function(torch.tensor(1.0), math.nan).item())
