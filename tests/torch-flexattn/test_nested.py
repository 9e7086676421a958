"""Jagged nested tensors in and out, against each sequence by itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_flexattn import (
    AuxRequest,
    InputError,
    KindError,
    UnsupportedError,
    create_block_mask,
    flex_attention,
    flex_attention_varlen,
    masks,
)

QUERIES, KEYS = [3, 0, 17, 5], [6, 4, 2, 11]


def jagged(lengths: list[int], heads: int, width: int, heads_first: bool, seed: int) -> tuple[Tensor, Tensor]:
    """A nested tensor and the leaf it is made of."""
    draw = torch.Generator().manual_seed(seed)
    leaf = torch.randn(sum(lengths), heads, width, dtype=torch.float64, generator=draw).requires_grad_()
    made = torch.nested.nested_tensor_from_jagged(leaf, torch.tensor([0, *lengths]).cumsum(0))
    return (made.transpose(1, 2) if heads_first else made), leaf


def three(queries: list[int], keys: list[int], heads_first: bool):
    q = jagged(queries, 4, 8, heads_first, 0)
    k = jagged(keys, 2, 8, heads_first, 1)
    leaf = torch.randn(sum(keys), 2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    leaf.requires_grad_()
    v = torch.nested.nested_tensor_from_jagged(leaf, k[0].offsets())
    return (q[0], k[0], v.transpose(1, 2) if heads_first else v), (q[1], k[1], leaf)


def one_by_one(leaves, queries, keys, score, mask):
    outs, sums = [], []
    for n, parts in enumerate(zip(leaves[0].split(queries), leaves[1].split(keys), leaves[2].split(keys))):
        q, k, v = (p.transpose(0, 1).unsqueeze(0) for p in parts)
        out, lse = flex_attention(
            q, k, v,
            lambda s, b, h, i, j, n=n: score(s, b + n, h, i, j),
            lambda b, h, i, j, n=n: mask(b + n, h, i, j),
            enable_gqa=True, return_lse=True, backend="reference",
        )  # fmt: skip
        outs.append(out.squeeze(0).transpose(0, 1))
        sums.append(lse.squeeze(0).transpose(0, 1))
    return torch.cat(outs), torch.cat(sums)


def score(s, b, h, i, j):
    return s - 0.3 * (i - j).abs() * (h + 1) + 0.1 * b


def mask(b, h, i, j):
    return (i + 4 >= j) & (i - j < 6 + b)


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("function", [flex_attention, flex_attention_varlen])
@pytest.mark.parametrize("keys", [QUERIES, KEYS])
def test_sequences_stay_apart(function, heads_first: bool, keys: list[int]) -> None:
    (q, k, v), leaves = three(QUERIES, keys, heads_first)
    out, lse = function(q, k, v, score_mod=score, mask_mod=mask, enable_gqa=True, return_lse=True)
    assert out.is_nested
    assert out.shape[:2] == q.shape[:2]  # the very lengths of the queries: they add
    assert (out.size(0), out.size(3)) == (4, 6)
    straight = out.transpose(1, 2) if heads_first else out
    sums = lse.transpose(1, 2) if heads_first else lse
    wanted, wanted_lse = one_by_one(leaves, QUERIES, keys, score, mask)
    torch.testing.assert_close(straight.values(), wanted)
    torch.testing.assert_close(sums.values(), wanted_lse)
    weight = torch.randn(wanted.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    found = torch.autograd.grad((straight.values() * weight).sum(), leaves)
    right = torch.autograd.grad((wanted * weight).sum(), leaves)
    for a, b in zip(found, right):
        torch.testing.assert_close(a, b)


def test_other_sequences_change_nothing() -> None:
    """A sequence gives the same whatever the others hold, NaN too."""
    (q, k, v), _ = three(QUERIES, KEYS, True)
    out = flex_attention(q, k, v, enable_gqa=True).transpose(1, 2).values()
    tokens = [t.detach().transpose(1, 2).values().clone() for t in (q, k, v)]
    tokens[1][:6], tokens[2][:6] = float("nan"), float("nan")  # the keys and values of sequence 0
    spoiled = [
        torch.nested.nested_tensor_from_jagged(x, t.offsets()).transpose(1, 2) for x, t in zip(tokens, (q, k, k))
    ]
    again = flex_attention(*spoiled, enable_gqa=True).transpose(1, 2).values()
    assert torch.equal(again[3:], out[3:])
    assert again[:3].isnan().all()


def test_both_masks_apply_and_results_add_to_the_queries() -> None:
    q, leaf = jagged(QUERIES, 2, 8, True, 0)
    both = flex_attention(q, q, q, block_mask=masks.causal(), mask_mod=masks.sliding_window(3))
    one = flex_attention(q, q, q, mask_mod=masks.causal() & masks.sliding_window(3))
    assert torch.equal(both.transpose(1, 2).values(), one.transpose(1, 2).values())
    (q + both).transpose(1, 2).values().sum().backward()
    assert leaf.grad is not None
    out, aux = flex_attention(q, q, q, return_aux=AuxRequest(max_scores=True))
    assert aux.lse is None
    assert aux.max_scores.shape[:2] == out.shape[:2]


def test_a_nested_leaf_gets_its_gradient() -> None:
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randn(n, 2, 8, generator=draw) for n in (3, 5)]
    leaf = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
    flex_attention(leaf, leaf, leaf).values().sin().sum().backward()
    dense = [r.transpose(0, 1).unsqueeze(0).requires_grad_() for r in rows]
    for row in dense:
        flex_attention(row, row, row).sin().sum().backward()
    expected = torch.cat([row.grad.squeeze(0).transpose(0, 1) for row in dense])
    torch.testing.assert_close(leaf.grad.values(), expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_does_not_fit_is_refused() -> None:
    q, _ = jagged(QUERIES, 2, 8, True, 0)
    other, _ = jagged(KEYS, 2, 8, True, 0)
    short, _ = jagged(KEYS[:3], 2, 8, True, 0)
    with pytest.raises(KindError, match="all be nested"):
        flex_attention(q, torch.randn(4, 2, 5, 8), q)
    with pytest.raises(InputError, match=r"key and value .*\[6, 4, 2, 11\]"):
        flex_attention(q, q, other)
    with pytest.raises(InputError, match="as many sequences, got 4 and 3"):
        flex_attention(q, short, short)
    strided = torch.nested.nested_tensor([torch.randn(2, 3, 8)])
    with pytest.raises(InputError, match=r"layout=torch\.jagged"):
        flex_attention(strided, strided, strided)
    first, count = torch.tensor([0, 1]), torch.tensor([3, 2])
    held = torch.nested.narrow(torch.randn(2, 6, 2, 8), 1, first, count, layout=torch.jagged)
    with pytest.raises(InputError, match="holes"):
        flex_attention(held, held, held)
    with pytest.raises(UnsupportedError, match="block_mask"):
        flex_attention(q, q, q, block_mask=create_block_mask(masks.causal(), None, None, 17, 17))
    with pytest.raises(UnsupportedError, match="q_offset"):
        flex_attention(q, q, q, q_offset=3)
    with pytest.raises(UnsupportedError, match="k_descale must be left out for nested tensors, got Tensor"):
        flex_attention(q, q, q, k_descale=torch.ones(2))
    with pytest.raises(KindError, match="cu_seqlens_q"):
        flex_attention_varlen(q, q, q, q.offsets(), q.offsets())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("heads_first", [False, True])
def test_on_a_gpu(heads_first: bool) -> None:
    results = []
    for device in ("cpu", "cuda"):
        draw, made = torch.Generator().manual_seed(0), []
        for lengths, heads in ((QUERIES, 4), (KEYS, 2)):
            leaf = torch.randn(sum(lengths), heads, 16, generator=draw).to(device).requires_grad_()
            offsets = torch.tensor([0, *lengths]).cumsum(0).to(device)
            nested = torch.nested.nested_tensor_from_jagged(leaf, offsets)
            made.append((leaf, nested.transpose(1, 2) if heads_first else nested))
        (q, nested_q), (k, nested_k) = made
        out = flex_attention(nested_q, nested_k, nested_k, mask_mod=masks.causal(), enable_gqa=True)
        tokens = (out.transpose(1, 2) if heads_first else out).values()
        results.append([t.cpu() for t in (tokens, *torch.autograd.grad(tokens.sin().sum(), [q, k]))])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5)
