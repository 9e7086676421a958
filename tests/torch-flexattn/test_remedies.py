"""What is said of operations that no program has."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch_flexattn import mask_mod, score_mod
from torch_flexattn.compositions import RULES
from torch_flexattn.remedies import NEAREST, OF_SEVERAL, ORDER

TABLE = torch.rand(4, 8)
REFUSED = {
    "log_sigmoid_forward": (F.logsigmoid, r"write -torch\.nn\.functional\.softplus\(-x\)"),
    "hypot": (lambda s: torch.hypot(s, s), r"write \(a \* a \+ b \* b\)\.sqrt\(\)"),
    "erfinv": (torch.erfinv, "compute it outside for every index that there is and capture the table"),
    "sum": (lambda s: s + TABLE.sum(), "computed once outside, and the result captured"),
    "permute": (lambda s: s + TABLE.permute(1, 0)[0, 0], "index a captured tensor as it is"),
    "sort": (lambda s: s + torch.sort(TABLE)[0][0, 0], "computed once outside, and the result captured"),
    "rand_like": (lambda s: s + torch.rand_like(s), "draw random numbers outside"),
    "add_": (lambda s: s.add_(1), "it writes in place"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named_with_a_remedy(name: str) -> None:
    function, said = REFUSED[name]
    with pytest.raises(NotImplementedError, match=rf"test_remedies.py:\d+ calls {name}, .*{said}"):
        score_mod(lambda s, b, h, i, j: function(s))


MEANT = {
    "logit": lambda x, a, b: torch.logit(x),
    "hypot": lambda x, a, b: torch.hypot(a, b),
    "xlogy": lambda x, a, b: torch.xlogy(a, b),
    "sinc": lambda x, a, b: torch.sinc(x / math.pi),
    "heaviside": lambda x, a, b: torch.heaviside(x, torch.tensor(0.0)),
    "erfc": lambda x, a, b: torch.erfc(x),
    "asinh": lambda x, a, b: torch.asinh(x),
    "acosh": lambda x, a, b: torch.acosh(x + 1),
    "atanh": lambda x, a, b: torch.atanh(x),
    "softshrink": lambda x, a, b: F.softshrink(x, 0.1),
    "hardshrink": lambda x, a, b: F.hardshrink(x, 0.1),
    "copysign": lambda x, a, b: torch.copysign(a, b),
    "log_sigmoid_forward": lambda x, a, b: F.logsigmoid(x),
}


@pytest.mark.parametrize("name", MEANT)
def test_what_is_offered_can_be_recorded_and_means_the_same(name: str) -> None:
    written = eval(f"lambda x, a, b: {NEAREST[name]}", {"torch": torch, "lambd": 0.1})
    x, a, b = torch.tensor(0.3), torch.tensor(0.3), torch.tensor(-0.4 if name == "copysign" else 0.4)
    score = x + 1 if name == "acosh" else x
    zero = torch.tensor(0)
    found = score_mod(lambda s, _, h, i, j: written(s, s, s * (b / a)))(score, zero, zero, zero, zero)
    torch.testing.assert_close(found, MEANT[name](x, a, b))


def test_no_remedy_is_for_what_works() -> None:
    known = {str(rule).rpartition(".")[2] for rule in RULES}
    assert not known & {*NEAREST, *OF_SEVERAL, *ORDER}


def test_comparisons_in_a_row_are_named() -> None:
    with pytest.raises(NotImplementedError, match="a < b < c"):
        mask_mod(lambda b, h, i, j: 0 <= i - j < 3)
