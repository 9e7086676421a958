"""Ranges of floats hold every value that PyTorch rounds to, or tell nothing."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch_flexattn.analysis.float_interval import rounded, run_float
from torch_flexattn.operations import OPERATIONS

OPS = ("add", "sub", "mul", "div", "neg", "abs", "min", "max", "sqrt", "floor", "ceil", "trunc", "round")


def torch_result(op, *operands):
    return eval(
        OPERATIONS[op].torch.format(*(f"x[{n}]" for n in range(len(operands)))), {"torch": torch, "x": operands}
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("op", OPS)
def test_holds_every_result(op, dtype):
    generator = torch.Generator().manual_seed(1)
    known = 0
    for trial in range(60):
        arity = OPERATIONS[op].arity
        centre = torch.randn(arity, 1, generator=generator) * (0.0 if trial % 3 == 0 else 30.0)
        spread = torch.randn(arity, 9, generator=generator) * 10 ** (trial % 5 - 2)
        values = (centre + spread).to(getattr(torch, dtype))
        ends = [(v.min(), v.max()) for v in values]
        plain = [(low.item(), high.item()) for low, high in ends]
        results = torch_result(op, *(torch.stack(of) for of in zip(*itertools.product(*values))))
        for given in (ends, plain, [ends[0], *plain[1:]]):
            low, high = (float(x) for x in run_float(op, dtype, given))
            if math.isnan(low):
                assert math.isnan(high)
                continue
            known += 1
            assert low <= results.min(), (op, plain)
            assert high >= results.max(), (op, plain)
            attained = op not in ("mul", "div", "abs", "sqrt")
            assert not attained or (low, high) == (results.min(), results.max()), (op, plain)
    assert known >= (40 if op == "sqrt" else 60)


INF, LARGE = math.inf, 3e38


@pytest.mark.parametrize(
    "a,b",
    [
        ((1.0, INF), (0.0, 1.0)),
        ((-INF, INF), (1.0, 1.0)),
        ((math.nan, 1.0), (1.0, 1.0)),
        ((LARGE, LARGE), (LARGE, LARGE)),
    ],
)
@pytest.mark.parametrize("op", ["add", "mul"])
@pytest.mark.parametrize("as_tensors", [True, False])
def test_infinities_tell_nothing(op, a, b, as_tensors):
    convert = torch.tensor if as_tensors else float
    low, high = run_float(op, "float32", [tuple(map(convert, a)), tuple(map(convert, b))])
    assert math.isnan(low)
    assert math.isnan(high)


def test_division_across_zero_tells_nothing():
    low, high = run_float("div", "float32", [(1.0, 2.0), (torch.tensor([-1.0, 1.0]), torch.tensor([1.0, 4.0]))])
    assert low.isnan().tolist() == high.isnan().tolist() == [True, False]
    assert (low[1], high[1]) == (0.25, 2.0)


def test_square_is_not_negative():
    a = (torch.tensor(-3.0), torch.tensor(2.0))
    assert [float(x) for x in run_float("mul", "float32", [a, a])] == [0.0, 9.0]
    assert [float(x) for x in run_float("mul", "float32", [a, tuple(a)])] == [0.0, 9.0]
    assert [float(x) for x in run_float("mul", "float32", [a, (a[0], a[1])])] == [-6.0, 9.0]


@pytest.mark.parametrize("op", ["exp", "tanh", "sigmoid", "pow"])
def test_approximated_functions_tell_nothing(op):
    args = [(0.0, 1.0)] * OPERATIONS[op].arity
    assert math.isnan(run_float(op, "float32", args)[0])


def test_python_numbers_are_rounded_as_tensors_are():
    third = rounded(1 / 3, "float32")
    assert third == torch.tensor(1 / 3).item() != 1 / 3
    assert run_float("mul", "float32", [(third, third), (3.0, 3.0)]) == (1.0, 1.0)
