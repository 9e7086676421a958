"""Derivative programs against autograd on the functions themselves, in float64."""

# ruff: noqa: B023 - loops here record functions over their variables, and run them at once

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_flexattn import flex_attention
from torch_flexattn.differentiate import differentiate
from torch_flexattn.evaluate import evaluate
from torch_flexattn.program import parse
from torch_flexattn.trace import trace
from torch_flexattn.widen import widened

SCORES = torch.tensor([-2.3, -1.2, -0.7, -0.3, 0.2, 0.45, 0.9, 1.6, 2.7, 3.4], dtype=torch.float64)
COUNT = len(SCORES)
INDEX = torch.arange(COUNT, dtype=torch.int32)
ZERO = torch.tensor(0, dtype=torch.int32)
WEIGHT = torch.linspace(-1.0, 2.0, COUNT, dtype=torch.float64)


def by_program(function, captures: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Values, gradient of the score and of the captured tensors; the gradient that comes in is ``WEIGHT``."""
    traced = trace(function, "score")
    assert [id(c) for c in traced.captures] == [id(c) for c in captures if any(c is t for t in traced.captures)]
    derivative = differentiate(traced.program, [c.requires_grad for c in traced.captures])
    program = widened(derivative.program)
    assert parse(program.text) == program
    inputs = {"score": SCORES, "b": ZERO, "h": ZERO, "q": INDEX, "kv": INDEX.flip(0), "grad": WEIGHT}
    results = evaluate(program, inputs, [c.detach() for c in traced.captures], traced.scalars)
    gradients = {id(c): torch.zeros_like(c) for c in captures}
    for scatter in derivative.scatters:
        capture = traced.captures[scatter.capture]
        places = [torch.broadcast_to(results[i], (COUNT,)).long() for i in scatter.indices]
        value = torch.broadcast_to(results[scatter.value], (COUNT,)).to(capture.dtype)
        target = gradients[id(capture)]
        target.index_put_(tuple(places), value, accumulate=True) if places else target.add_(value.sum())
    return results[0].expand(COUNT), results[1].expand(COUNT), [gradients[id(c)] for c in captures]


def by_autograd(function, captures: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    score = SCORES.clone().requires_grad_()
    flipped = INDEX.flip(0)
    values = torch.stack([function(score[n], ZERO, ZERO, INDEX[n], flipped[n]).double() for n in range(COUNT)])
    if not values.requires_grad:
        return values, torch.zeros_like(SCORES), [torch.zeros_like(c) for c in captures]
    needed = [score, *(c for c in captures if c.requires_grad)]
    found = iter(torch.autograd.grad(values, needed, WEIGHT, allow_unused=True))
    of_score = next(found)
    of_captures = [next(found) if c.requires_grad else None for c in captures]
    zeros = lambda g, of: torch.zeros_like(of) if g is None else g  # noqa: E731
    return values.detach(), zeros(of_score, SCORES), [zeros(g, c) for g, c in zip(of_captures, captures)]


def compare(function, *captures: Tensor, rtol: float = 1e-12) -> None:
    found, expected = by_program(function, list(captures)), by_autograd(function, list(captures))
    for a, b in zip((*found[:2], *found[2]), (*expected[:2], *expected[2]), strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=rtol, atol=rtol)


OPERATIONS = {
    "add": lambda s: s + 0.3,
    "sub": lambda s: 0.3 - s,
    "mul": lambda s: s * 0.7,
    "square": lambda s: s * s,
    "div": lambda s: s / 0.7,
    "over": lambda s: 0.7 / s,
    "neg": lambda s: -s,
    "abs": abs,
    "sign": lambda s: torch.sign(s) * s,
    "detach": lambda s: s * s.detach(),
    "straight through": lambda s: s + (torch.round(s) - s).detach(),
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": lambda s: torch.log(s + 3),
    "log2": lambda s: torch.log2(s + 3),
    "log1p": lambda s: torch.log1p(s + 3),
    "sqrt": lambda s: torch.sqrt(s + 3),
    "rsqrt": lambda s: torch.rsqrt(s + 3),
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "floor": lambda s: torch.floor(s) * s,
    "ceil": lambda s: torch.ceil(s) * s,
    "round": lambda s: torch.round(s) + s,
    "trunc": lambda s: torch.trunc(s) * s,
    "cube": lambda s: s**3,
    "power": lambda s: (s + 3) ** 1.7,
    "base": lambda s: 1.7**s,
    "power of itself": lambda s: (s + 3) ** s,
    "negative power": lambda s: (s + 3) ** -2,
    "min": lambda s: torch.minimum(s, 0.5 * s + 0.3),
    "max": lambda s: torch.maximum(s, 0.5 * s + 0.3),
    "mod": lambda s: s % 0.7,
    "mod of two": lambda s: (s * s) % (s + 3),
    "fmod": lambda s: torch.fmod(s, 0.7),
    "fmod of two": lambda s: torch.fmod(s * s, s + 3),
    "floordiv": lambda s: torch.div(s, 0.7, rounding_mode="floor") * s,
    "where": lambda s: torch.where(s > 0.5, s * 2, s * s),
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu tanh": lambda s: F.gelu(s, approximate="tanh"),
    "silu": F.silu,
    "softplus": F.softplus,
    "softplus beta": lambda s: F.softplus(s, beta=2.0, threshold=3.0),
    "leaky": lambda s: F.leaky_relu(s, 0.2),
    "clamp": lambda s: s.clamp(-1, 2),
    "elu": lambda s: F.elu(s, 0.7),
    "celu": lambda s: F.celu(s, 2.0),
    "selu": F.selu,
    "hardtanh": lambda s: F.hardtanh(s, -0.5, 2.0),
    "relu6": lambda s: F.relu6(3 * s),
    "hardswish": lambda s: F.hardswish(2 * s),
    "mish": F.mish,
    "threshold": lambda s: F.threshold(s, 0.3, -2.0),
    "tan": torch.tan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "log10": lambda s: torch.log10(s + 3),
    "frac": torch.frac,
    "logaddexp": lambda s: torch.logaddexp(s, s * s),
    "lerp": lambda s: torch.lerp(s, s * s, 0.25) + torch.lerp(s, 2 * s, s),
    "addcmul": lambda s: torch.addcmul(s, s, s, value=0.5),
    "addcdiv": lambda s: torch.addcdiv(s, s, s * s + 1),
    "nan_to_num": lambda s: torch.nan_to_num(s * s, 2.0),
    "reciprocal": torch.reciprocal,
    "fmin": lambda s: torch.fmin(s, 0.2 * s),
    "fmax": lambda s: torch.fmax(s, 0.2 * s),
    "softcap": lambda s: 20 * torch.tanh(s / 20),
    "deep": lambda s: torch.exp(-torch.tanh(s * s) / (1 + s * s)) * torch.sigmoid(s) + s,
    "cast": lambda s: s.double() * 0.1,
    "the same twice": lambda s: s * s + s * s * s,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_of_the_score(name: str) -> None:
    compare(lambda s, b, h, q, kv: OPERATIONS[name](s))


def test_gradient_of_hardsigmoid() -> None:
    """PyTorch's has a sixth in float32 in it."""
    compare(lambda s, b, h, q, kv: F.hardsigmoid(2 * s), rtol=1e-7)


BOUNDS = torch.tensor([-3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0, 6.0, 200.0], dtype=torch.float64)
AT_BOUNDS = {
    "elu": F.elu,
    "hardtanh": F.hardtanh,
    "relu6": F.relu6,
    "mish": F.mish,
    "threshold": lambda s: F.threshold(s, 0.5, -2.0),
    "logaddexp": lambda s: torch.logaddexp(s, s * s),
    "logaddexp of equals": lambda s: torch.logaddexp(s, s),
}


@pytest.mark.parametrize("name", AT_BOUNDS)
def test_gradients_at_bounds_and_of_large_scores(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SCORES", BOUNDS)
    compare(lambda s, b, h, q, kv: AT_BOUNDS[name](s))


TABLE = torch.linspace(-1.3, 1.9, COUNT, dtype=torch.float64).requires_grad_()
MATRIX = torch.randn(COUNT, COUNT, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
NUMBER = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
FIXED = torch.linspace(0.5, 1.5, COUNT, dtype=torch.float64)


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_of_captured_tensors(name: str) -> None:
    compare(lambda s, b, h, q, kv: s * OPERATIONS[name](TABLE[q] * 0.9 + 0.05), TABLE)


def test_captures_read_several_times_or_by_several_indices() -> None:
    compare(lambda s, b, h, q, kv: s * TABLE[q] + TABLE[kv] * TABLE[q] + TABLE[(q + kv) % 3], TABLE)
    compare(lambda s, b, h, q, kv: s + MATRIX[q, kv] * MATRIX[q][kv] + MATRIX[0, kv], MATRIX)
    compare(lambda s, b, h, q, kv: s * MATRIX[h, q - kv] + TABLE[-1 - q], MATRIX, TABLE)


def test_captured_numbers_and_those_without_gradient() -> None:
    compare(lambda s, b, h, q, kv: s * NUMBER + NUMBER, NUMBER)
    compare(lambda s, b, h, q, kv: s * FIXED[q] * TABLE[kv] * NUMBER, FIXED, TABLE, NUMBER)


def test_scores_that_are_not_read_have_gradient_zero() -> None:
    compare(lambda s, b, h, q, kv: TABLE[q] * 2, TABLE)
    compare(lambda s, b, h, q, kv: q * 2.0)


def test_captures_that_do_not_reach_the_result_have_none() -> None:
    traced = trace(lambda s, b, h, q, kv: s + torch.floor(TABLE[q]) + torch.sign(TABLE[kv]), "score")
    derivative = differentiate(traced.program, [True])
    assert derivative.scatters == () or all(
        derivative.program.nodes[derivative.program.outputs[s.value]].value == 0.0 for s in derivative.scatters
    )
    unused = trace(lambda s, b, h, q, kv: (TABLE[q], s)[1], "score")
    assert unused.captures == ()


def test_ties_share_or_pass_the_gradient_as_in_pytorch() -> None:
    tied = torch.tensor([0.0, 1.0, 2.0] * 3 + [0.0], dtype=torch.float64).requires_grad_()
    other = torch.tensor([0.0, 2.0, 1.0] * 3 + [0.0], dtype=torch.float64).requires_grad_()
    for function in (torch.minimum, torch.maximum, torch.clamp):
        compare(lambda s, b, h, q, kv: s * function(tied[q], other[q]), tied, other)
    for function in (
        F.relu,
        lambda x: x.clamp(0, 2),
        lambda x: x.clamp_min(1),
        lambda x: x.clamp_max(1),
        abs,
        F.leaky_relu,
    ):
        compare(lambda s, b, h, q, kv: s * function(tied[q]), tied)


def test_powers_at_zero() -> None:
    base = torch.tensor([0.0, 0.0, 0.0, 1.0, 2.0] * 2, dtype=torch.float64).requires_grad_()
    exponent = torch.tensor([0.0, 1.0, 2.5, 0.0, 1.5] * 2, dtype=torch.float64).requires_grad_()
    compare(lambda s, b, h, q, kv: s * base[q] ** exponent[q], base, exponent)
    compare(lambda s, b, h, q, kv: s * base[q] ** 3, base)


def test_branches_not_taken_give_nothing() -> None:
    compare(lambda s, b, h, q, kv: torch.where(q > kv, s * TABLE[q], TABLE[kv]), TABLE)


def test_float64_inputs_keep_their_digits() -> None:
    """Programs say float32 of scores; of float64 ones every number and result is float64."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 5, 4, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3))
    slope = 0.1
    out = flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.tanh(s * slope) / 0.3 + 0.7 * (i - j))
    distance = (torch.arange(5)[:, None] - torch.arange(5)).double()
    scores = torch.tanh(q @ k.mT / math.sqrt(4) * slope) / 0.3 + 0.7 * distance
    expected = scores.softmax(-1) @ v
    torch.testing.assert_close(out, expected, rtol=1e-13, atol=1e-13)
    weight = torch.randn(out.shape, dtype=torch.float64, generator=generator)
    found, wanted = (torch.autograd.grad((x * weight).sum(), (q, k, v)) for x in (out, expected))
    for a, b in zip(found, wanted):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
    reference = flex_attention(
        q, k, v, score_mod=lambda s, b, h, i, j: torch.tanh(s * slope) / 0.3 + 0.7 * (i - j), backend="reference"
    )
    torch.testing.assert_close(reference, expected, rtol=1e-13, atol=1e-13)


def test_gradcheck_of_every_kind_of_capture() -> None:
    generator = torch.Generator().manual_seed(1)
    sample = lambda *shape: torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()  # noqa: E731
    q, k, v = sample(1, 2, 5, 3), sample(1, 2, 5, 3), sample(1, 2, 5, 2)
    tables = [sample(2), sample(5), sample(5), sample(2, 9), sample(5, 5), sample(3), sample()]

    def run(q, k, v, heads, rows, keys, distances, pairs, buckets, number):
        def mod(s, b, h, i, j):
            s = s * heads[h] + rows[i] + keys[j] * number + distances[h, i - j + 4]
            return s + pairs[i, j] + buckets[(i * j) % 3] * buckets[i % 3]

        return flex_attention(q, k, v, score_mod=mod, block_mask=lambda b, h, i, j: i >= j)

    assert torch.autograd.gradcheck(run, (q, k, v, *tables))
