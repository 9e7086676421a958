"""What a score modification takes out of the gradient, and views that are not the numbers they were made of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_flexattn import UnsupportedModError, flex_attention, mask_mod, score_mod

TABLE = torch.randn(2, 12, generator=torch.Generator().manual_seed(0)).requires_grad_()


def of_table(score, b, h, q_idx, kv_idx):
    return score * TABLE.detach()[h, q_idx] + TABLE[h, kv_idx]


def of_data(score, b, h, q_idx, kv_idx):
    return score * TABLE.data[h, q_idx] + TABLE[h, kv_idx]


def of_entry(score, b, h, q_idx, kv_idx):
    return score * TABLE[h, q_idx].detach() + TABLE[h, kv_idx]


def straight_through(score, b, h, q_idx, kv_idx):
    return TABLE[h, q_idx] * (score + (torch.round(score) - score).detach())


def in_a_block(score, b, h, q_idx, kv_idx):
    with torch.no_grad():
        factor = TABLE[h, q_idx] * score
    return score * TABLE[h, kv_idx] + factor


@torch.no_grad()
def rounded(x: Tensor) -> Tensor:
    return torch.round(x)


def by_a_function(score, b, h, q_idx, kv_idx):
    return score * TABLE[h, kv_idx] + rounded(score)


MODS = [of_table, of_data, of_entry, straight_through, in_a_block, by_a_function]


def gradients(attend, mod) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    inputs = [torch.randn(1, 2, 12, 4, dtype=torch.float64, generator=draw).requires_grad_() for _ in range(3)]
    return list(torch.autograd.grad(attend(*inputs, mod).sin().sum(), [*inputs, TABLE]))


def dense(q: Tensor, k: Tensor, v: Tensor, mod) -> Tensor:
    h, i = torch.arange(2), torch.arange(12)
    score = q @ k.transpose(2, 3) / 2
    zero = torch.zeros((), dtype=torch.int64)
    return mod(score, zero, h[:, None, None], i[:, None], i).softmax(3) @ v


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("mod", MODS)
def test_no_gradient_goes_through_what_is_detached(mod, backend: str) -> None:
    expected = gradients(dense, mod)
    with torch.no_grad():  # what is recorded here counts for calls with gradients
        flex_attention(*(torch.zeros(1, 2, 12, 4) for _ in range(3)), mod)
    found = gradients(lambda q, k, v, mod: flex_attention(q, k, v, mod, backend=backend), mod)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mod", [of_table, in_a_block])
def test_nor_in_a_compiled_graph(mod) -> None:
    attend = torch.compile(lambda q, k, v, mod: flex_attention(q, k, v, mod), backend="aot_eager", fullgraph=True)
    for a, b in zip(gradients(attend, mod), gradients(dense, mod), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_mask_and_a_number_have_nothing_to_detach() -> None:
    floor = 0.5
    mask = mask_mod(lambda b, h, q_idx, kv_idx: TABLE.detach()[h, kv_idx].detach() > floor)
    score = score_mod(lambda s, b, h, q_idx, kv_idx: s * torch.tensor(2.0).detach() * q_idx.detach())
    assert not {n.op for n in (*mask.program.nodes, *score.program.nodes)} & {"detach"}


@pytest.mark.parametrize(
    ("mod", "words"),
    [
        (lambda s, b, h, i, j: s + TABLE.view(12, 2)[i, h], r"views a captured tensor of shape \(2, 12\) as \(12, 2\)"),
        (lambda s, b, h, i, j: s + TABLE.reshape(12, 2)[i, h], ".*: do so once outside, and capture the result"),
        (lambda s, b, h, i, j: s + TABLE.view(torch.int32)[h, i], "reads the bits of torch.float32 as torch.int32"),
        (lambda s, b, h, i, j: s + s.view(torch.int32), "reads the bits of torch.float32 as torch.int32"),
        (lambda s, b, h, i, j: s.requires_grad_(False), "calls requires_grad_: do so outside"),
    ],
)
def test_other_views_are_refused(mod, words: str) -> None:
    with pytest.raises(UnsupportedModError, match=rf"the mod at test_detached.py:\d+ {words}"):
        score_mod(mod)
