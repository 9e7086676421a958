"""What multiplies scores throughout a call is found, gathered, and known to be positive or not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch_flexattn.kernels.triton.factors import Split, bound, is_positive, split
from torch_flexattn.kernels.triton.printer import Word, print_program
from torch_flexattn.mods import score_mod
from torch_flexattn.program import Program, parse

NAMES = {"b": "b", "h": "h", "q": "q", "kv": "kv", "score": "qk"}
SLOPES = torch.ones(4)


def program(text: str, result: int) -> Program:
    """One number and one slope of a head, then ``text``."""
    head = "captures float32[1]\nscalars float32\n%0 = score float32\n%1 = scalar float32 0\n%2 = h int32\n"
    return parse(f"{head}%3 = gather float32 0 %2\n%4 = kv int32\n%5 = cast float32 %4\n{text}\nreturn %{result}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mul float32 %0 %1", Split(0, 1, False)),
        ("mul float32 %1 %0", Split(0, 1, False)),
        ("div float32 %0 %3", Split(0, 3, True)),
        ("div float32 %1 %0", None),  # over the score
        ("add float32 %0 %1", None),
        ("mul float32 %0 %5", None),  # by what changes with the key
        ("mul float32 %5 %1", None),  # of what does not depend on the score
    ],
)
def test_products_with_what_a_call_fixes(text: str, expected: Split | None) -> None:
    assert split(program(f"%6 = {text}", 6), 6) == expected


def test_no_quotient_by_nothing() -> None:
    assert split(program("%6 = const float32 0.0\n%7 = div float32 %0 %6", 7), 7) is None


@pytest.mark.parametrize(
    ("mod", "scale", "expected"),
    [
        (None, 0.5, True),
        (None, -0.5, False),
        (None, 0.0, False),
        (lambda s, b, h, i, j: s, -1.0, False),
        (lambda s, b, h, i, j: -2.0 * torch.tanh(s), 1.0, False),
        (lambda s, b, h, i, j: torch.tanh(s) / 3.0, -1.0, True),  # the scale is inside
        (lambda s, b, h, i, j: -2.0 * (s / -3.0), 1.0, True),
        (lambda s, b, h, i, j: -2.0 * (s / 3.0), -1.0, True),
        (lambda s, b, h, i, j: s * SLOPES[h], 1.0, False),  # not known before a launch
        (lambda s, b, h, i, j: s + j, -1.0, True),  # nothing is left but a positive constant
        (lambda s, b, h, i, j: s * 0.0, 1.0, False),
    ],
)
def test_signs(mod: Any, scale: float, expected: bool) -> None:
    made = None if mod is None else score_mod(mod)
    assert is_positive(made and made.program, () if made is None else made.scalars, scale) is expected


@pytest.mark.parametrize(
    ("mod", "expected"),
    [
        (None, math.inf),
        (lambda s, b, h, i, j: s, math.inf),
        (lambda s, b, h, i, j: -30.0 * torch.tanh(s / 30.0), 30.0),
        (lambda s, b, h, i, j: 30.0 * torch.sigmoid(s) / 2.0, 15.0),
        (lambda s, b, h, i, j: torch.tanh(s), 1.0),
        (lambda s, b, h, i, j: torch.tanh(s) * SLOPES[h], math.inf),
        (lambda s, b, h, i, j: 30.0 * torch.tanh(s) + j, math.inf),
    ],
)
def test_bounds(mod: Any, expected: float) -> None:
    made = None if mod is None else score_mod(mod)
    assert bound(made and made.program, () if made is None else made.scalars) == expected


def test_a_soft_cap_multiplies_twice() -> None:
    """Once before the tangent, and once that is left to the caller."""
    cap = 20.0
    made = score_mod(lambda s, b, h, i, j: cap * torch.tanh(s / cap))
    printed = print_program(made.program, "x", NAMES, scale="scale", words={"tanh": Word("quick({0})", 2.0)})
    once = [line.split("  #")[0] for line in printed.lines["once"]]
    inner = [line.split("  #")[0] for line in printed.lines["inner"]]
    assert once == ["x2 = scale / s0", "x3_by = x2 * 2.0", "x4 = 1.0 * s0"]
    assert inner == ["x3 = quick(qk * x3_by)"]
    left = printed.products[made.program.output]
    assert (left.base, left.factor) == ("x3", "x4")


def test_what_is_compared_is_divided_exactly() -> None:
    third = 3.0
    made = score_mod(lambda s, b, h, i, j: s + torch.floor(j / third))
    lines = print_program(made.program, "x", NAMES, scale="scale").lines
    assert any("tl.div_rn(" in line for line in lines["moving"])
