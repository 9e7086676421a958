"""Ranges hold every value that PyTorch computes, and are as narrow as they can be where they should be."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from torch_flexattn.analysis.interval import LIMITS, Range, Truth, leaves, run, unknown, wrapped
from torch_flexattn.operations import OPERATIONS
from torch_flexattn.program import Node

EXACT = ("add", "sub", "mul", "neg", "min", "max", "abs", "sign", "not", "lt", "le", "gt", "ge", "eq", "ne")
BY_CONSTANT = {
    "floordiv": [1, 2, 7, -1, -3], "mod": [1, 2, 7, 30, -1, -3, -30], "shl": [0, 3], "shr": [0, 1, 4],
    "and": [0, 1, 7, 12, 31], "mul": [0, 3, -5],
}  # fmt: skip


def torch_result(op, *operands):
    return eval(
        OPERATIONS[op].torch.format(*(f"x[{n}]" for n in range(len(operands)))), {"torch": torch, "x": operands}
    )


def ranges(count, seed):
    r = random.Random(seed)
    for _ in range(count):
        low = r.randint(-12, 12)
        yield low, low + r.choice([0, 0, 1, 2, 5, 14])


def holds(op, ends, as_tensors, exact):
    """Run one operation on ranges with these ends, and compare with all their values."""
    convert = torch.tensor if as_tensors else int
    args = [Range(convert(low), convert(high)) for low, high in ends]
    values = torch.tensor(list(itertools.product(*(range(low, high + 1) for low, high in ends)))).unbind(1)
    result = torch_result(op, *values)
    compares = result.dtype == torch.bool
    found = run(Node(op, "bool" if compares else "int64", tuple(range(len(ends)))), args)
    if compares:
        assert isinstance(found, Truth)
        can = bool(found.can_be_true), bool(found.can_be_false)
        truth = bool(result.any()), bool((~result).any())
        assert can[0] >= truth[0], (op, ends)
        assert can[1] >= truth[1], (op, ends)
        assert can == truth or not exact, (op, ends)
    else:
        low, high = int(found.low), int(found.high)
        assert low <= int(result.min()), (op, ends)
        assert high >= int(result.max()), (op, ends)
        assert (low, high) == (int(result.min()), int(result.max())) or not exact, (op, ends, low, high)


@pytest.mark.parametrize("as_tensors", [True, False])
@pytest.mark.parametrize("op", EXACT)
def test_narrowest_range(op, as_tensors):
    for first, second in zip(ranges(60, 1), ranges(60, 2)):
        holds(op, [first, second][: OPERATIONS[op].arity], as_tensors, exact=True)


@pytest.mark.parametrize("as_tensors", [True, False])
@pytest.mark.parametrize("op,constant", [(op, c) for op, constants in BY_CONSTANT.items() for c in constants])
def test_by_a_constant(op, constant, as_tensors):
    node = Node(op, "int64", (0, 1))
    for low, high in ranges(60, 3):
        convert = torch.tensor if as_tensors else int
        result = torch_result(op, torch.arange(low, high + 1), torch.tensor(constant))
        found = run(node, [Range(convert(low), convert(high)), Range(constant, constant)])
        least, greatest = int(result.min()), int(result.max())
        assert int(found.low) <= least, (low, high)
        assert int(found.high) >= greatest, (low, high)
        periodic = op == "mod" and low // constant != high // constant
        in_one_period = op not in ("mod", "and") or (op == "mod" and not periodic)
        assert not in_one_period or (int(found.low), int(found.high)) == (least, greatest), (low, high)
        if periodic:
            assert (int(found.low), int(found.high)) == (min(0, constant + 1), max(0, constant - 1))


def test_ones_at_the_end_are_a_remainder():
    found = run(Node("and", "int64", (0, 1)), [Range(7, 7), Range(torch.tensor([-6, 8]), torch.tensor([-3, 17]))])
    assert (found.low.tolist(), found.high.tolist()) == ([2, 0], [5, 7])


@pytest.mark.parametrize("op", ["and", "or", "xor", "eq", "ne"])
def test_bools(op):
    choices = [(True, False), (False, True), (True, True)]
    for a, b in itertools.product(choices, choices):
        values = [[v for v, can in zip((True, False), x) if can] for x in (a, b)]
        results = [bool(torch_result(op, torch.tensor(x), torch.tensor(y))) for x, y in itertools.product(*values)]
        for convert in (bool, torch.tensor):
            found = run(Node(op, "bool", (0, 1)), [Truth(convert(a[0]), convert(a[1])), Truth(b[0], b[1])])
            assert (bool(found.can_be_true), bool(found.can_be_false)) == (True in results, False in results), (
                op,
                a,
                b,
            )


@pytest.mark.parametrize("can", [(True, False), (False, True), (True, True)])
def test_choice(can):
    condition = Truth(torch.tensor(can[0]), torch.tensor(can[1]))
    node = Node("where", "int64", (0, 1, 2))
    for as_bools in (False, True):
        chooser = Truth(*can) if as_bools else condition
        found = run(node, [chooser, Range(torch.tensor(3), torch.tensor(5)), Range(-1, 4)])
        taken = [bounds for bounds, possible in zip(((3, 5), (-1, 4)), can) if possible]
        assert (int(found.low), int(found.high)) == (min(t[0] for t in taken), max(t[1] for t in taken))
        bools = run(
            Node("where", "bool", (0, 1, 2)),
            [chooser, Truth(True, False), Truth(torch.tensor(False), torch.tensor(True))],
        )
        assert (bool(bools.can_be_true), bool(bools.can_be_false)) == can


def test_casts():
    truth = Truth(torch.tensor([True, False, True]), torch.tensor([False, True, True]))
    number = run(Node("cast", "int32", (0,)), [truth])
    assert (number.low.tolist(), number.high.tolist()) == ([1, 0, 0], [1, 0, 1])
    back = run(Node("cast", "bool", (0,)), [number])
    assert (back.can_be_true.tolist(), back.can_be_false.tolist()) == ([True, False, True], [False, True, True])
    third = run(Node("cast", "float32", (0,)), [Range(2**24 + 1, torch.tensor(2**24 + 3))])
    assert (third.low, third.high.item()) == (2**24, 2**24 + 4)
    assert run(Node("cast", "int32", (0,)), [Range(0.5, 2.5)]) == unknown("int32")


@pytest.mark.parametrize("op", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_unknown_floats_compare_as_unknown(op):
    for other in (Range(torch.tensor([1.0]), torch.tensor([2.0])), Range(1.0, 2.0), Range(math.nan, math.nan)):
        for args in ([Range(math.nan, math.nan), other], [other, Range(math.nan, math.nan)]):
            found = run(Node(op, "bool", (0, 1)), args)
            assert bool(found.can_be_true)
            assert bool(found.can_be_false)


def test_division_by_something_else_is_unknown():
    for divisor in (Range(0, 0), Range(1, 2), Range(torch.tensor(2), torch.tensor(3))):
        assert run(Node("floordiv", "int32", (0, 1)), [Range(4, 9), divisor]) == unknown("int32")
        assert run(Node("mod", "int32", (0, 1)), [Range(4, 9), divisor]) == unknown("int32")


def test_division_by_a_number_a_box():
    divisor = torch.tensor([3, 4, 0, -2])
    a, b = Range(torch.tensor([7, 7, 7, 7]), torch.tensor([8, 9, 9, 9])), Range(divisor, divisor)
    quotient, rest = (run(Node(op, "int64", (0, 1)), [a, b]) for op in ("floordiv", "mod"))
    lowest, highest = LIMITS["int64"]
    assert (quotient.low.tolist(), quotient.high.tolist()) == ([2, 1, lowest, lowest], [2, 2, highest, highest])
    assert (rest.low.tolist(), rest.high.tolist()) == ([1, 0, lowest, lowest], [2, 3, highest, highest])


def test_square():
    value = Range(torch.tensor([-3, 2]), torch.tensor([2, 5]))
    found = run(Node("mul", "int64", (0, 0)), [value, value])
    assert (found.low.tolist(), found.high.tolist()) == ([0, 4], [9, 25])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_that_leave_their_type(dtype):
    lowest, highest = LIMITS[dtype]
    node = Node("add", dtype, (0, 1))
    one = Range(1, 1)
    assert leaves(dtype, run(node, [Range(0, highest), one]))
    assert not leaves(dtype, run(node, [Range(0, highest - 1), one]))
    args = [Range(torch.tensor([0, highest - 5]), torch.tensor([10, highest])), one]
    found = wrapped(node, args, run(node, args))
    assert found.low.tolist() == [1, lowest]
    assert found.high.tolist() == [11, highest]
