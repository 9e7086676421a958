"""Packed sequences against each sequence by itself."""

from __future__ import annotations

import pytest
import torch
from torch_flexattn import (
    AuxRequest,
    InputError,
    KindError,
    OutOfRangeError,
    flex_attention,
    flex_attention_varlen,
    masks,
    scores,
)

LENGTHS = [([3, 0, 17, 1], [3, 5, 17, 1]), ([40, 9], [40, 9]), ([5, 6], [30, 2])]


def packed(lengths_q, lengths_k, heads=4, groups=2, width=8):
    torch.manual_seed(sum(lengths_q))
    starts = [torch.tensor([0, *torch.tensor(n).cumsum(0).tolist()]) for n in (lengths_q, lengths_k)]
    q = torch.randn(sum(lengths_q), heads, width, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(sum(lengths_k), groups, width, dtype=torch.float64, requires_grad=True) for _ in range(2))
    return q, k, v, *starts


def one_by_one(q, k, v, starts_q, starts_k, score=None, mask=None, **options):
    """Each sequence by itself; mods see its number as the batch."""
    outs = []
    for n in range(starts_q.shape[0] - 1):
        parts = []
        for t, starts in ((q, starts_q), (k, starts_k), (v, starts_k)):
            parts.append(t[starts[n] : starts[n + 1]].transpose(0, 1).unsqueeze(0))
        of_n = (lambda s, b, h, i, j, n=n: score(s, b + n, h, i, j)) if score is not None else None
        seen = (lambda b, h, i, j, n=n: mask(b + n, h, i, j)) if mask is not None else None
        outs.append(flex_attention(*parts, of_n, seen, enable_gqa=True, backend="reference", **options))
    return outs


def some_mods():
    bias = torch.randn(4, 79, dtype=torch.float64, requires_grad=True)
    by_sequence = torch.tensor([0.5, 2.0, -1.0, 1.0], dtype=torch.float64)
    return {
        "none": (None, None),
        "causal": (None, lambda b, h, i, j: i >= j),
        "bias": (lambda s, b, h, i, j: s + bias[h, i - j + 39], lambda b, h, i, j: (i >= j) | (j < 2)),
        "sequence": (lambda s, b, h, i, j: s * by_sequence[b], lambda b, h, i, j: (i + j + b) % 3 != 0),
    }


@pytest.mark.parametrize("mods", ["none", "causal", "bias", "sequence"])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_sequences_do_not_see_each_other(lengths, mods):
    q, k, v, starts_q, starts_k = packed(*lengths)
    score, mask = some_mods()[mods]
    out, lse = flex_attention_varlen(
        q, k, v, starts_q, starts_k, score_mod=score, mask_mod=mask, enable_gqa=True, return_lse=True
    )
    parts = one_by_one(q, k, v, starts_q, starts_k, score, mask, return_lse=True)
    want = torch.cat([o.squeeze(0).transpose(0, 1) for o, _ in parts])
    torch.testing.assert_close(out, want, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lse, torch.cat([s.squeeze(0).transpose(0, 1) for _, s in parts]), rtol=1e-6, atol=1e-6)
    weight = torch.randn_like(want)
    for got, expected in zip(
        torch.autograd.grad((out * weight).sum(), (q, k, v), retain_graph=True),
        torch.autograd.grad((want * weight).sum(), (q, k, v), retain_graph=True),
    ):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_library_mods_count_from_the_start_of_each_sequence():
    q, k, v, starts, _ = packed([7, 12], [7, 12])
    score, mask = scores.alibi(4), masks.causal() & masks.sliding_window(3)
    out = flex_attention_varlen(q, k, v, starts, starts, score_mod=score, mask_mod=mask, enable_gqa=True)
    slopes = scores.alibi_slopes(4)
    parts = one_by_one(
        q, k, v, starts, starts,
        lambda s, b, h, i, j: s - slopes[h] * (i - j), lambda b, h, i, j: (i >= j) & (i - j < 3),
    )  # fmt: skip
    torch.testing.assert_close(out, torch.cat([o.squeeze(0).transpose(0, 1) for o in parts]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("lengths", [([2, 3], [4, 5]), ([40, 1, 7], [60, 9, 3])])
def test_the_last_query_of_each_sequence_sees_its_last_key(lengths):
    q, k, v, starts_q, starts_k = packed(*lengths)
    gaps = torch.tensor(lengths[1]) - torch.tensor(lengths[0])
    mask = masks.causal("bottom_right") & masks.sliding_window(50)
    out = flex_attention_varlen(q, k, v, starts_q, starts_k, mask_mod=mask, enable_gqa=True)
    parts = one_by_one(
        q, k, v, starts_q, starts_k, mask=lambda b, h, i, j: (i + gaps[b] >= j) & masks.sliding_window(50)(b, h, i, j)
    )
    torch.testing.assert_close(out, torch.cat([o.squeeze(0).transpose(0, 1) for o in parts]), rtol=1e-6, atol=1e-6)


def test_what_is_asked_for_beside_the_output():
    q, k, v, starts, _ = packed([4, 5], [4, 5])
    out, aux = flex_attention_varlen(q, k, v, starts, starts, enable_gqa=True, return_aux=AuxRequest(max_scores=True))
    assert out.shape == (9, 4, 8)
    assert aux.lse is None
    assert aux.max_scores.shape == (9, 4)


@pytest.mark.parametrize(
    "starts, error, message",
    [
        (torch.tensor([0, 5, 4, 9]), InputError, r"must go from 0 up to the 9 tokens, got \[0, 5, 4, 9\]"),
        (torch.tensor([1, 9]), InputError, "must go from 0 up to"),
        (torch.tensor([0, 8]), InputError, "must go from 0 up to"),
        (torch.tensor([0.0, 9.0]), KindError, "must be an int32 or int64 tensor, got torch.float32"),
        ([0, 9], KindError, "got list"),
        (torch.tensor([[0, 9]]), InputError, r"must have shape \[sequences \+ 1\], got \(1, 2\)"),
    ],
)
def test_starts_that_are_none(starts, error, message):
    q, k, v, good, _ = packed([4, 5], [4, 5])
    with pytest.raises(error, match=message):
        flex_attention_varlen(q, k, v, starts, good, enable_gqa=True)
    with pytest.raises(error, match=message):
        flex_attention_varlen(q, k, v, good, starts, enable_gqa=True)


def test_numbers_of_sequences_must_agree():
    q, k, v, starts, _ = packed([4, 5], [4, 5])
    with pytest.raises(InputError, match="as many sequences, got 2 and 1"):
        flex_attention_varlen(q, k, v, starts, torch.tensor([0, 9]), enable_gqa=True)


def test_ranks_are_checked():
    q, k, v, starts, _ = packed([4, 5], [4, 5])
    with pytest.raises(InputError, match=r"query must have shape \[tokens, heads, features\], got \(1, 9, 4, 8\)"):
        flex_attention_varlen(q.unsqueeze(0), k, v, starts, starts)


def test_the_longest_sequences_may_be_named_in_the_usual_places():
    q, k, v, starts_q, starts_k = packed([5, 6], [30, 2])
    plain = flex_attention_varlen(q, k, v, starts_q, starts_k, mask_mod=masks.causal(), enable_gqa=True)
    named = flex_attention_varlen(q, k, v, starts_q, starts_k, 6, 64, None, masks.causal(), None, True)
    assert torch.equal(plain, named)
    with pytest.raises(InputError, match="max_seqlen_q must be at least 6, the longest sequence, got 5"):
        flex_attention_varlen(q, k, v, starts_q, starts_k, 5, 30, enable_gqa=True)
    with pytest.raises(KindError, match=r"max_seqlen_k must be an integer, got 30\.0"):
        flex_attention_varlen(q, k, v, starts_q, starts_k, 6, 30.0, enable_gqa=True)


@pytest.mark.parametrize("apart", [False, True])
def test_errors_name_positions_in_their_sequence(apart):
    q, k, v, starts_q, starts_k = packed([5, 4, 12], [3, 9, 14])
    short = torch.zeros(10)
    places = {"score": (0, 10), "mask": (10, 0), "both": (0, 10)}
    calls = {
        "score": {"score_mod": lambda s, b, h, i, j: s + short[j]},
        "mask": {"mask_mod": lambda b, h, i, j: short[i] < 1},
        "both": {
            "mask_mod": lambda b, h, i, j: (i >= 0) | (short[j] < 1),
            "score_mod": lambda s, b, h, i, j: s + short[j],
        },
    }
    for name, mods in calls.items():
        query, key = places[name]
        words = (
            rf"of shape \(10,\)\) out of range in sequence b=2, at h=0, q_idx={query}, kv_idx={key}: it has 12 queries"
        )
        with pytest.raises((OutOfRangeError, InputError), match=words) as raised:
            flex_attention_varlen(q, k, v, starts_q, starts_k, enable_gqa=True, batch_invariant=apart, **mods)
        assert raised.value.place == (2, 0, query, key)
