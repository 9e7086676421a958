"""Calls under ``torch.func``: gradients are those of autograd; what has no rule says so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, func
from torch_flexattn import (
    UnsupportedError,
    create_block_mask,
    flex_attention,
    flex_attention_varlen,
    masks,
    score_mod,
    selected_attention,
)
from torch_flexattn.nn import GroupedQueryAttention

DRAW = torch.Generator().manual_seed(0)
Q, K, V = (torch.randn(2, 4, 12, 8, generator=DRAW) for _ in range(3))
TABLE, FACTOR, SINKS = (torch.randn(s, generator=DRAW) for s in ((4, 12), (), (4,)))
EVERY = (0, 1, 2, 3, 4, 5)


def loss(q: Tensor, k: Tensor, v: Tensor, table: Tensor, factor: Tensor, sinks: Tensor) -> Tensor:
    out, lse = flex_attention(
        q, k, v, lambda s, b, h, i, j: s * factor + table[h, j], masks.causal(), sinks=sinks, return_lse=True
    )
    return out.square().sum() + lse.sin().sum()


def by_autograd(function, *arguments: Tensor) -> tuple[Tensor, ...]:
    leaves = [a.clone().requires_grad_() for a in arguments]
    return torch.autograd.grad(function(*leaves), leaves)


INPUTS = (Q, K, V, TABLE, FACTOR, SINKS)


def test_gradients_are_those_of_autograd() -> None:
    expected = by_autograd(loss, *INPUTS)
    for found in (func.grad(loss, argnums=EVERY)(*INPUTS), func.vjp(loss, *INPUTS)[1](torch.ones(()))):
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("argument", EVERY)
def test_a_gradient_of_one_argument(argument: int) -> None:
    found = func.grad(loss, argnums=argument)(*INPUTS)
    torch.testing.assert_close(found, by_autograd(loss, *INPUTS)[argument])


def test_what_is_recorded_there_counts_elsewhere() -> None:
    bias = torch.randn(4, 12, generator=DRAW)
    mod = score_mod(lambda s, b, h, i, j: s + bias[h, j])
    inside = func.grad(lambda q: flex_attention(q, K, V, mod).square().sum())
    assert torch.equal(inside(Q), by_autograd(lambda q: flex_attention(q, K, V, mod).square().sum(), Q)[0])


def test_masks_lengths_and_blocks_made_of_what_is_differentiated() -> None:
    def attend(q: Tensor) -> Tensor:
        kept = q[:, 0, :, 0]
        lens = (kept[:, 0].abs() * 5).int() + 1
        blocks = create_block_mask(lambda b, h, i, j: kept[b, j] < 1, 2, None, 12, 12)
        out = flex_attention(q, K, V, mask_mod=lambda b, h, i, j: kept[b, i] > kept[b, j], kv_lens=lens)
        return (out + flex_attention(q, K, V, block_mask=blocks)).square().sum()

    torch.testing.assert_close(func.grad(attend)(Q), by_autograd(attend, Q)[0])


def test_layers_and_packed_sequences() -> None:
    torch.manual_seed(0)
    layer, x = GroupedQueryAttention(16, 4, 2), torch.randn(2, 6, 16)
    names, values = zip(*((n, p.detach()) for n, p in layer.named_parameters()))

    def attend(*parameters: Tensor) -> Tensor:
        return func.functional_call(layer, dict(zip(names, parameters)), (x,)).square().sum()

    found = func.grad(attend, argnums=tuple(range(len(values))))(*values)
    for a, b in zip(found, by_autograd(attend, *values), strict=True):
        torch.testing.assert_close(a, b)
    bounds = torch.tensor([0, 3, 12])

    def packed(q: Tensor) -> Tensor:
        return flex_attention_varlen(q, q, q, bounds, bounds, mask_mod=masks.causal()).sin().sum()

    torch.testing.assert_close(func.grad(packed)(Q[0].transpose(0, 1)), by_autograd(packed, Q[0].transpose(0, 1))[0])


def test_what_the_backward_pass_reads_must_not_change() -> None:
    shown = torch.ones(12)
    _, backward = func.vjp(lambda q: flex_attention(q, K, V, mask_mod=lambda b, h, i, j: shown[j] > 0).sum(), Q)
    shown.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        backward(torch.ones(()))


def of_queries(q: Tensor) -> Tensor:
    return flex_attention(q, K, V, mask_mod=masks.causal()).square().sum()


def of_forward_mode() -> Tensor:
    with torch.autograd.forward_ad.dual_level():
        return of_queries(torch.autograd.forward_ad.make_dual(Q, Q))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: func.grad(lambda q: func.grad(of_queries)(q).sum())(Q), "no second derivative here"),
        (lambda: func.jvp(of_queries, (Q,), (Q,)), "no derivative in forward mode"),
        (of_forward_mode, "no derivative in forward mode"),
        (lambda: func.jacrev(of_queries)(Q), "torch.vmap has no rule for attention"),
        (lambda: func.vmap(lambda q: flex_attention(q[None], K[:1], V[:1]))(Q), "torch.vmap has no rule for attention"),
        (
            lambda: func.vmap(lambda t: flex_attention(Q, K, V, lambda s, b, h, i, j: s + t[j]))(TABLE),
            "torch.vmap has no rule for attention",
        ),
        (
            lambda: func.vmap(lambda t: flex_attention(Q, K, V, mask_mod=lambda b, h, i, j: t[j] > 0))(TABLE),
            "torch.vmap has no rule for attention",
        ),
        (
            lambda: func.grad(lambda q: selected_attention(q, K, V, torch.zeros(2, 4, 12, 1).long()).sum())(Q),
            "selected_attention has no rules for torch.func",
        ),
    ],
)
def test_what_has_no_rule_says_so(call, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        call()


def test_what_vmap_does_not_run_over_is_attended_to() -> None:
    out = func.vmap(lambda x: flex_attention(Q, K, V) + x)(torch.zeros(3))
    assert torch.equal(out, flex_attention(Q, K, V).expand(3, -1, -1, -1, -1))
