"""Recorded functions against the functions themselves, run by eager PyTorch on one position after the other."""

# ruff: noqa: B023 - loops here record functions over their variables, and run them at once

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch_flexattn import score_mod
from torch_flexattn.compositions import RULES
from torch_flexattn.evaluate import evaluate
from torch_flexattn.program import parse
from torch_flexattn.trace import trace

TYPES = ("bool", "int32", "int64", "float16", "bfloat16", "float32", "float64")
INTEGERS = (-7, -4, -3, -1, 0, 1, 2, 3, 5, 8)
REALS = (-3.5, -2.0, -1.5, -0.75, -0.0, 0.0, 0.5, 1.0, 2.5, 3.0)
COUNT = len(INTEGERS)
PAIRS = [(q, (q + step) % COUNT) for q in range(COUNT) for step in (0, 1, 4)]
"""Places whose values meet."""


def table(dtype: str) -> torch.Tensor:
    if dtype == "bool":
        return torch.tensor([True, False, True, True, False, False, True, False, True, False])
    return torch.tensor(INTEGERS if dtype.startswith("int") else REALS, dtype=getattr(torch, dtype))


def by_program(function) -> torch.Tensor:
    """A score of ``f(q, kv)`` at :data:`PAIRS`."""
    traced = trace(function, "score")
    assert parse(traced.program.text) == traced.program
    q, kv = torch.tensor(PAIRS, dtype=torch.int32).unbind(1)
    zero = torch.tensor(0, dtype=torch.int32)
    inputs = {"score": torch.tensor(0.0), "b": zero, "h": zero, "q": q, "kv": kv}
    (result,) = evaluate(traced.program, inputs, traced.captures, traced.scalars)
    return result.expand(len(PAIRS))


def by_eager(function) -> torch.Tensor:
    zero, score = torch.tensor(0, dtype=torch.int32), torch.tensor(0.0)
    indices = [torch.tensor(n, dtype=torch.int32) for n in range(COUNT)]
    return torch.stack([torch.as_tensor(function(score, zero, zero, indices[q], indices[kv])) for q, kv in PAIRS])


def compare(function) -> None:
    """``function(q, kv)`` of one value; integers travel as float64, which holds those here exactly."""
    dtypes = []

    def score(s, b, h, q, kv):
        result = function(q, kv)
        dtypes.append(result.dtype)
        return result.double() if result.dtype not in (torch.float16, torch.bfloat16, torch.float32) else result

    expected = by_eager(score)
    eager_type = dtypes[-1]
    found = by_program(score)
    assert dtypes[-1] == eager_type, "recorded with another type"
    assert found.dtype == expected.dtype
    if eager_type.is_floating_point:
        slack = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[eager_type]
        torch.testing.assert_close(found, expected, rtol=slack, atol=slack, equal_nan=True)
    else:
        assert torch.equal(found, expected)


BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "true": lambda a, b: a / b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "where": lambda a, b: torch.where(a > 0, a, b),
    "add alpha": lambda a, b: torch.add(a, b, alpha=2),
    "sub alpha": lambda a, b: torch.sub(a, b, alpha=3),
    "fmin": torch.fmin,
    "fmax": torch.fmax,
}
DIVISIONS = {
    "floor": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "div floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "fmod": torch.fmod,
    "floor_divide": torch.floor_divide,
    "torch.remainder": torch.remainder,
}
BITS = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b.abs(),
    "shr": lambda a, b: a >> b.abs(),
    "bitwise_left_shift": lambda a, b: torch.bitwise_left_shift(a, b.abs()),
    "bitwise_right_shift": lambda a, b: torch.bitwise_right_shift(a, b.abs()),
}


@pytest.mark.parametrize("name", BINARY)
def test_binary_operations_of_every_pair_of_types(name: str) -> None:
    for left, right in itertools.product(TYPES, repeat=2):
        if "bool" in (left, right) and name == "sub" + " alpha" * (name == "sub alpha") and left == right:
            continue  # PyTorch subtracts no bools
        a, b = table(left), table(right)
        if (name == "sub alpha" and "bool" in (left, right)) or (name == "sub" and "bool" in (left, right)):
            continue
        if name == "add alpha" and left == right == "bool":
            continue
        compare(lambda q, kv: BINARY[name](a[q], b[kv]))


@pytest.mark.parametrize("name", DIVISIONS)
def test_divisions_round_as_in_pytorch(name: str) -> None:
    for left, right in itertools.product(("int32", "int64", "float32", "float64"), repeat=2):
        a, b = table(left), table(right)
        b = torch.where(b == 0, b + 4, b)
        compare(lambda q, kv: DIVISIONS[name](a[q], b[kv]))


@pytest.mark.parametrize("divisor", [-5, -2, -1, 1, 3, 2.5, -0.5])
@pytest.mark.parametrize("name", DIVISIONS)
def test_divisions_by_and_of_python_numbers(name: str, divisor: float) -> None:
    for dtype in ("int32", "int64", "float32"):
        a = table(dtype)
        other = torch.where(a == 0, a + 4, a)
        compare(lambda q, kv: DIVISIONS[name](a[q], divisor))
        if name in ("floor", "remainder"):
            compare(lambda q, kv: DIVISIONS[name](divisor, other[kv]))


@pytest.mark.parametrize("name", BITS)
def test_bits(name: str) -> None:
    for left, right in itertools.product(("int32", "int64"), repeat=2):
        a, b = table(left), table(right)
        compare(lambda q, kv: BITS[name](a[q], b[kv]))
    if name in ("and", "or", "xor"):
        a, b = table("bool"), table("int32")
        compare(lambda q, kv: BITS[name](a[q], b[kv]))
        compare(lambda q, kv: BITS[name](a[q], a[kv]))


UNARY = {
    "neg": lambda x: -x,
    "abs": abs,
    "torch.abs": torch.abs,
    "sign": torch.sign,
    "sgn": torch.sgn,
    "square": torch.square,
    "power 2": lambda x: x**2,
    "power 0": lambda x: x**0,
    "power 1": lambda x: x**1,
    "power 13": lambda x: x**13,
    "isinf": torch.isinf,
    "isinf of infinite": lambda x: torch.isinf((x * 1.0) / 0),
    "masked_fill": lambda x: x.masked_fill(x > 0, 2),
    "masked_fill of a tensor": lambda x: torch.masked_fill(x, x > 0, torch.ones((), dtype=x.dtype)),
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "Tensor.sigmoid": lambda x: x.sigmoid(),
    "relu": F.relu,
    "torch.relu": torch.relu,
    "reciprocal": lambda x: torch.reciprocal(x + 0.25),
    "clamp": lambda x: x.clamp(-1, 2),
    "clamp low": lambda x: x.clamp(min=-1),
    "clamp high": lambda x: torch.clamp(x, max=1.5),
    "clip": lambda x: torch.clip(x, -2, 2),
    "clamp_min": lambda x: torch.clamp_min(x, 0),
    "clamp_max": lambda x: torch.clamp_max(x, 1),
    "1 - x": lambda x: 1 - x,
    "2 / x": lambda x: 2 / (x + 0.25),
    "rsub": lambda x: torch.rsub(x, 3),
    "isnan": torch.isnan,
    "ones_like": lambda x: x + torch.ones_like(x),
    "full_like": lambda x: x + torch.full_like(x, 2),
    "zeros_like": torch.zeros_like,
    "new_ones": lambda x: x + x.new_ones(()),
    "new_zeros": lambda x: x + x.new_zeros(()),
    "detach": lambda x: x.detach(),
    "clone": lambda x: x.clone(),
    "float": lambda x: x.float() + 0.5,
    "to int": lambda x: x.to(torch.int32),
    "long": lambda x: x.long(),
    "bool": lambda x: x.bool(),
    "half": lambda x: x.half() * 3,
    "not": torch.logical_not,
}
COMPOSED = {
    "elu": F.elu,
    "elu alpha": lambda x: F.elu(x, 0.5),
    "celu": lambda x: F.celu(x, 2.0),
    "selu": F.selu,
    "hardtanh": F.hardtanh,
    "hardtanh bounds": lambda x: F.hardtanh(x, -0.5, 2.0),
    "relu6": F.relu6,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "mish": F.mish,
    "threshold": lambda x: F.threshold(x, 1.0, -2.0),
    "tan": torch.tan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "log10": lambda x: torch.log10(x.abs() + 1),
    "frac": torch.frac,
    "logaddexp": lambda x: torch.logaddexp(x, 1 - x),
    "lerp": lambda x: torch.lerp(x, x * x, 0.25),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5),
    "addcdiv": lambda x: torch.addcdiv(x, x, x.abs() + 1),
    "nan_to_num": lambda x: torch.nan_to_num(1 / x, 2.0),
    "nan_to_num bounds": lambda x: torch.nan_to_num(1 / x, posinf=3.0, neginf=-4.0),
    "isinf": lambda x: torch.isinf(1 / x),
    "sinc-like": lambda x: torch.where(x == 0, 1.0, torch.sin(x) / x),
}
FLOATING = {
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "softplus": F.softplus,
    "softplus beta": lambda x: F.softplus(x, beta=2.0, threshold=3.0),
    "leaky": lambda x: F.leaky_relu(x, 0.1),
    **COMPOSED,
    "log": lambda x: torch.log(x.abs() + 1),
    "log2": lambda x: torch.log2(x.abs() + 1),
    "log1p": lambda x: torch.log1p(x.abs()),
    "log of 0": lambda x: torch.log(x),
    "sqrt": lambda x: x.abs().sqrt(),
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 1),
    "power": lambda x: x**3,
    "negative power": lambda x: (x + 0.25) ** -2,
    "root": lambda x: x.abs() ** 0.5,
    "base": lambda x: 2**x,
    "torch.pow": lambda x: torch.pow(x.abs(), x),
    "float_power": lambda x: torch.pow(x, 2.0),
}


@pytest.mark.parametrize("name", UNARY)
def test_operations_of_one_operand(name: str) -> None:
    for dtype in TYPES:
        if (
            dtype == "bool"
            and name
            in (
                "neg",
                "1 - x",
                "rsub",
                "abs",
                "torch.abs",
                "sgn",
                "sign",
                "square",
                "power 2",
                "power 0",
                "power 1",
                "power 13",
            )
        ) or (dtype == "bool" and ("cl" in name or "relu" in name)):
            continue  # PyTorch has none of these for bool, or only as a deprecated form
        x = table(dtype)
        compare(lambda q, kv: UNARY[name](x[q]))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_powers_of_two(dtype: str) -> None:
    exponents = torch.tensor([-40, -1, 0, 1, 5, 30, 31, 32, 62, 63, 64, 99], dtype=getattr(torch, dtype))
    mod = score_mod(lambda s, b, h, q, kv: (2 ** exponents[q]).double())
    zero, i = torch.tensor(0), torch.arange(12)
    assert torch.equal(mod(torch.zeros(12), zero, zero, i, zero), (2**exponents).double())


@pytest.mark.parametrize("name", FLOATING)
def test_operations_of_floats(name: str) -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        x = table(dtype)
        compare(lambda q, kv: FLOATING[name](x[q]))


def test_not_of_bits_and_bools() -> None:
    for dtype in ("bool", "int32", "int64"):
        x = table(dtype)
        compare(lambda q, kv: ~x[q])


@pytest.mark.parametrize(
    "number", [0, 1, -3, 7, 2**31 - 1, -(2**31), 0.0, -0.0, 2.5, -1e30, 0.1, math.inf, -math.inf, True, False]
)
def test_python_numbers_meet_every_type(number: float) -> None:
    for dtype in TYPES:
        x = table(dtype)
        if dtype == "bool" and isinstance(number, bool):
            compare(lambda q, kv: x[q] | number)
            continue
        if abs(number) > 1000 and dtype in ("float16", "bfloat16", "int32"):
            continue
        compare(lambda q, kv: x[q] * number)
        compare(lambda q, kv: x[q] + number)
        compare(lambda q, kv: x[q] < number)
        compare(lambda q, kv: number <= x[q])
        compare(lambda q, kv: torch.where(x[q] > x[kv], x[q], number))


def test_bounds_that_are_tensors() -> None:
    for dtype in ("int32", "float32"):
        x, low = table(dtype), table(dtype).flip(0)
        compare(lambda q, kv: torch.clamp(x[q], low[kv], low[kv] + 2))
        compare(lambda q, kv: torch.clamp(x[q], max=low[kv]))


def test_comparisons_with_numbers_too_large_for_the_index() -> None:
    """Eager PyTorch takes the lower 32 bits of such a number."""
    for number in (2**40, -(2**40)):
        assert by_program(lambda s, b, h, q, kv: (q < number).float()).tolist() == [float(number > 0)] * len(PAIRS)
    assert by_program(lambda s, b, h, q, kv: (q < 2**40).float()).all()
    compare(lambda q, kv: q.long() + 2**40 > kv)


def test_int32_arithmetic_wraps_and_int64_does_not() -> None:
    large = torch.full((COUNT,), 2**30, dtype=torch.int32)
    compare(lambda q, kv: large[q] * 4)
    compare(lambda q, kv: large[q].long() * 4)


def test_indices_that_are_negative_or_computed() -> None:
    x, y = table("int64"), torch.arange(COUNT * COUNT).view(COUNT, COUNT)
    compare(lambda q, kv: x[-1 - q])
    compare(lambda q, kv: y[q][kv])
    compare(lambda q, kv: y[q, kv - 3])
    compare(lambda q, kv: y[q, 2] + y[3, kv] + y[1][kv])
    compare(lambda q, kv: x[y[q, kv] % COUNT])
    compare(lambda q, kv: torch.select(y, 0, 2)[kv])


def test_tensors_of_one_number_are_read_without_index() -> None:
    number, count = torch.tensor(2.5), torch.tensor(3)
    compare(lambda q, kv: q * number + count)


def test_ints_and_bools_of_numbers() -> None:
    flag, window, ratio = True, 3, 0.5
    compare(lambda q, kv: torch.where((q - kv < window) & flag, q * ratio, kv))


def test_every_rule_is_reached_by_a_test() -> None:
    """Each operation that can be recorded runs against eager PyTorch, in its plain form."""
    x, y = table("float32"), table("int32")
    forms = {
        "reciprocal": lambda q: torch.reciprocal(x[q]),
        "__and__": lambda q: y[q].__and__(3),
        "__or__": lambda q: y[q].__or__(3),
        "__xor__": lambda q: y[q].__xor__(3),
        "__lshift__": lambda q: y[q].__lshift__(2),
        "__rshift__": lambda q: y[q].__rshift__(1),
        "true_divide": lambda q: torch.true_divide(y[q], 3),
        "bitwise_and": lambda q: torch.bitwise_and(y[q], 3),
        "bitwise_or": lambda q: torch.bitwise_or(y[q], 3),
        "bitwise_xor": lambda q: torch.bitwise_xor(y[q], 3),
        "bitwise_not": lambda q: torch.bitwise_not(y[q]),
        "full": lambda q: torch.full((), 3) + y[q],
        "ones": lambda q: torch.ones(()) + x[q],
        "zeros": lambda q: torch.zeros((), dtype=torch.int32) + y[q],
        "scalar_tensor": lambda q: torch.scalar_tensor(2.5) + x[q],
        "to": lambda q: y[q].to(torch.float32),
        "_to_copy": lambda q: y[q].to(torch.float64),
        "leaky_relu": lambda q: F.leaky_relu(x[q]),
    }
    for function in forms.values():
        compare(lambda q, kv: function(q))
    named = {
        *forms,
        *BINARY,
        *DIVISIONS,
        *BITS,
        *UNARY,
        *FLOATING,
        "div",
        "mul",
        "rsub",
        "pow",
        "logical_not",
        "bitwise_left_shift",
        "bitwise_right_shift",
        "clamp_min",
        "clamp_max",
        "remainder",
        "fmod",
        "floor_divide",
    }
    assert {str(rule).rpartition(".")[2] for rule in RULES} <= named


def test_constant_results() -> None:
    assert trace(lambda b, h, q, kv: True, "mask").program.text.endswith("const bool True\nreturn %0")
    assert trace(lambda s, b, h, q, kv: 2.5, "score").program.text.endswith("const float32 2.5\nreturn %0")


def test_softplus_of_a_large_score_has_a_finite_gradient() -> None:
    from torch_flexattn.differentiate import differentiate

    derivative = differentiate(trace(lambda s, b, h, q, kv: F.softplus(s), "score").program, ())
    value, gradient = evaluate(derivative.program, {"score": torch.tensor([200.0, 0.0]), "grad": torch.tensor(1.0)})
    assert value.tolist() == pytest.approx([200.0, math.log(2)])
    assert gradient.tolist() == pytest.approx([1.0, 0.5])


def test_arithmetic_of_numbers_is_pythons() -> None:
    side, half = 2**20, 0.5
    compare(lambda q, kv: q.long() + side * side)
    compare(lambda q, kv: q * (7 * half))
    flag, halves, small = table("bool"), table("float16"), 3
    compare(lambda q, kv: flag[q] * (small * 2))
    compare(lambda q, kv: halves[q] * (half * 0.25))


def test_a_literal_that_the_type_cannot_hold_is_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"test_trace.py:\d+ uses 1099511627776, which int32 cannot hold"):
        trace(lambda s, b, h, q, kv: (q + 2**40).float(), "score")


def test_partial_arguments_are_numbers_of_the_program() -> None:
    def near(b, h, q, kv, *, window):
        return q - kv < window

    a, b = (trace(functools.partial(near, window=w), "mask") for w in (3, 4))
    assert a.program is b.program
    assert (a.scalars, b.scalars) == ((3,), (4,))
