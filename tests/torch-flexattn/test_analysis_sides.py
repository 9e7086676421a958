"""Which parts of a mask are evaluated once a query or key, and which on boxes."""

from __future__ import annotations

import pytest
import torch
from torch_flexattn.analysis.sides import divide
from torch_flexattn.mods import mask_mod

TABLE = torch.zeros(100, dtype=torch.int32)
WINDOWS = torch.ones(4, dtype=torch.int32)


def division(mask, shape=(2, 4, 100, 100)):
    """Operations that are evaluated at every index, by side, and those that are run on boxes."""
    mod = mask_mod(mask)
    sides = divide(mod.program, mod.scalars, shape)
    outer = {side: sorted(mod.program.nodes[n].op for n in numbers) for side, numbers in sides.outer.items()}
    return outer, [mod.program.nodes[n].op for n in sides.inner]


def test_rising_chains_need_no_vector():
    shift = 7
    outer, inner = division(lambda b, h, q, kv: (q * 2 + shift) // 3 >= kv)
    assert outer == {}
    assert inner == ["q", "kv", "mul", "add", "floordiv", "ge"]


def test_reads_of_one_side_are_vectors():
    assert division(lambda b, h, q, kv: TABLE[q] == TABLE[kv]) == ({"q": ["gather"], "kv": ["gather"]}, ["eq"])


def test_whatever_depends_on_one_side_is_one_vector():
    outer, inner = division(lambda b, h, q, kv: (q >= kv) & ((kv % 3 == 1) | (TABLE[kv] * TABLE[kv] > kv)))
    assert outer == {"kv": ["or"]}
    assert inner == ["q", "kv", "ge", "and"]


def test_batch_and_head():
    outer, inner = division(lambda b, h, q, kv: q - kv < WINDOWS[h])
    assert outer == {"plane": ["gather"]}
    assert inner == ["q", "kv", "sub", "lt"]


def test_a_mask_of_one_side():
    assert division(lambda b, h, q, kv: TABLE[kv] > 0) == ({"kv": ["gt"]}, [])
    assert division(lambda b, h, q, kv: kv < 30) == ({}, ["kv", "lt"])


def test_falling_and_rising_together_is_a_vector():
    assert division(lambda b, h, q, kv: (q - q // 2 >= 0) & (kv >= q))[0] == {"q": ["ge"]}


def test_a_divisor_that_moves_is_a_vector():
    assert division(lambda b, h, q, kv: 100 // (q + 1) > kv)[0] == {"q": ["floordiv"]}


def test_integers_that_may_wrap_are_a_vector():
    assert division(lambda b, h, q, kv: q * 2**30 > kv)[0] == {"q": ["mul"]}
    assert division(lambda b, h, q, kv: q * 2**20 > kv)[0] == {}


def test_what_is_the_same_everywhere_is_not_evaluated():
    assert division(lambda b, h, q, kv: (q < 100) & (q >= kv))[1] == ["q", "kv", "ge", "and"]
    assert division(lambda b, h, q, kv: q < 100) == ({}, [])


@pytest.mark.parametrize("size,plain", [(100, True), (99, False)])
def test_plain_reads_are_known_to_be_in_range(size, plain):
    table = torch.zeros(size, dtype=torch.int32)
    mod = mask_mod(lambda b, h, q, kv: table[q] <= kv)
    sides = divide(mod.program, mod.scalars, (1, 1, 100, 100))
    (node,) = sides.outer["q"]
    assert sides.is_plain_read(node, mod.captures) == plain
