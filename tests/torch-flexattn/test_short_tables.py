"""Masks whose tables are too short for the call: what they say there is no answer."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_flexattn import InputError, create_block_mask, flex_attention, mask_mod, masks, score_mod, scores
from torch_flexattn.analysis.geometry import Geometry
from torch_flexattn.analysis.index_bounds import reach
from torch_flexattn.analysis.undecided import refuse_undecided, undecided
from torch_flexattn.evaluate import evaluator, gather
from torch_flexattn.functional.table_sizes import check_head_tables, check_table_sizes

SHORT = torch.tensor([3, 0, 2, 5, 1])
PAIRS = torch.arange(20).view(4, 5) % 3
COLUMNS = PAIRS.T
FLAGS = torch.tensor([True, False, True])
INDICES = [torch.arange(n, dtype=torch.int32).view([-1 if d == own else 1 for d in range(4)]) for own, n in
           enumerate((3, 2, 12, 12))]  # fmt: skip
MASKS = {
    "guarded": lambda b, h, i, j: (i < 5) & (SHORT[i] >= j),
    "guarded behind": lambda b, h, i, j: (SHORT[i] >= j) & (i < 5),
    "or": lambda b, h, i, j: (i >= 5) | (SHORT[i] >= j),
    "where": lambda b, h, i, j: torch.where(i < 5, SHORT[i] >= j, j < 2),
    "where the other way": lambda b, h, i, j: torch.where(i < 5, j < 2, SHORT[i] >= j),
    "where by a read": lambda b, h, i, j: torch.where(FLAGS[i], i >= j, i > j),
    "not": lambda b, h, i, j: ~((i < 5) & (SHORT[i] >= j)),
    "both sides": lambda b, h, i, j: SHORT[i] == SHORT[j],
    "one read or another": lambda b, h, i, j: FLAGS[i] | FLAGS[j],
    "one read and another": lambda b, h, i, j: FLAGS[i] & FLAGS[j],
    "read by a read": lambda b, h, i, j: PAIRS[SHORT[i], j % 5] > 0,
    "from the end": lambda b, h, i, j: SHORT[j - i] > 0,
    "batch and head": lambda b, h, i, j: FLAGS[b] & FLAGS[h + 2],
    "exclusive or": lambda b, h, i, j: FLAGS[i] ^ (i < j),
}


def outside_gives(value: int) -> Any:
    def read(table: Tensor, indices: list[Tensor]) -> tuple[Tensor, Tensor | None]:
        found, bad = gather(table, indices)
        return (found if bad is None else torch.where(bad, torch.tensor(value).to(found.dtype), found)), bad

    return read


@pytest.mark.parametrize("name", MASKS)
def test_what_is_decided_does_not_depend_on_what_reads_out_of_range_give(name: str) -> None:
    mod = mask_mod(MASKS[name])
    inputs = dict(zip(("b", "h", "q", "kv"), INDICES))
    said = [
        evaluator(mod.program, read=outside_gives(v))(inputs, mod.captures, mod.scalars)[0][0] for v in range(-1, 13)
    ]
    differs = torch.zeros(3, 2, 12, 12, dtype=torch.bool)
    for a, b in itertools.pairwise(said):
        differs |= a != b
    open_ = undecided(mod)(*INDICES).expand(3, 2, 12, 12)
    assert not (differs & ~open_).any()
    if name not in ("read by a read", "from the end", "both sides"):  # there, the numbers tried do not tell
        assert torch.equal(differs, open_)


@pytest.mark.parametrize("name", ["guarded", "guarded behind"])
@pytest.mark.parametrize("length", [12, 2000])
def test_reads_that_do_not_decide_are_allowed(name: str, length: int) -> None:
    create_block_mask(MASKS[name], 3, 2, length, length)


@pytest.mark.parametrize(
    "name", ["where the other way", "where by a read", "both sides", "one read and another", "exclusive or"]
)
@pytest.mark.parametrize("length", [12, 2000])
def test_reads_that_decide_are_refused(name: str, length: int) -> None:
    with pytest.raises((InputError, IndexError), match=r"mask_mod reads a captured tensor"):
        create_block_mask(MASKS[name], 3, 2, length, length)


IDS = torch.zeros(2, 12, dtype=torch.int32)
CALLS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "bounds": (
        masks.document([0, 5]),
        {},
        r"shape \(5,\) \(from 0 to 11 along .* 0\).*q_idx=5.* 12 queries and 12 keys",
    ),
    "ids": (masks.document(doc_ids=IDS), {}, r"shape \(2, 12\) \(from 0 to 2 along dimension 0\).*b=2"),
    "lengths": (masks.padding([3, 4]), {}, r"shape \(2,\).*b=2"),
    "a dense mask": (masks.from_dense(torch.ones(5, 5, dtype=torch.bool)), {}, r"shape \(5, 5\).*q_idx=0, kv_idx=5"),
    "kinds": (masks.image_text(torch.ones(5, dtype=torch.int32)), {}, r"shape \(5,\)"),
    "a function": (lambda b, h, i, j: SHORT[j] > 0, {}, r"shape \(5,\) .*kv_idx=5"),
    "an offset": (masks.document([0, 12]), {"q_offset": 3}, r"shape \(12,\) \(from 3 to 14 along .*q_idx=9"),
    "offsets": (masks.document([0, 12]), {"q_offset": torch.tensor([0, 0, 2])}, r"b=2, h=0, q_idx=10"),
}


@pytest.mark.parametrize("name", CALLS)
def test_tables_too_short_for_the_call_are_refused(name: str) -> None:
    mask, options, message = CALLS[name]
    q = torch.randn(3, 1, 12, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match=f"mask_mod reads .*{message}"):
        flex_attention(q, q, q, mask_mod=mask, **options)
    flex_attention(q, q, q, mask_mod=mask, **options, check=False)


def test_keys_behind_the_lengths_do_not_count() -> None:
    q = torch.randn(2, 1, 12, 4, generator=torch.Generator().manual_seed(0))
    flex_attention(q, q, q, mask_mod=lambda b, h, i, j: SHORT[j] > 0, kv_lens=torch.tensor([5, 2]))


def test_sizes_alone_tell_without_looking() -> None:
    """What is looked at on a GPU, where the rest would have to be waited for."""
    mask = mask_mod(lambda b, h, i, j: (SHORT[i // 3] >= j) & (PAIRS[SHORT[0], j % 5] > -1) & (SHORT[j - i] > 0))
    assert reach(mask, (1, 1, 15, 1)).short == ((0, 0, (-14, 0)),)
    assert not reach(mask, (1, 1, 5, 5)).short
    assert not reach(mask, (1, 1, 5, 5)).is_known
    geometry = Geometry((1, 1, 12, 12), (128, 128), torch.device("cpu"))
    refuse_undecided(mask_mod(lambda b, h, i, j: SHORT[SHORT[j % 5] + j] > 0), geometry, suspected=True)
    with pytest.raises(InputError, match=r"from 0 to 11 along dimension 0"):
        refuse_undecided(mask_mod(lambda b, h, i, j: SHORT[j] > 0), geometry, suspected=True)
    refuse_undecided(mask_mod(MASKS["guarded"]), geometry, suspected=True)


def test_the_sizes_of_a_call_are_those_of_its_heads_and_offsets() -> None:
    q, k = torch.zeros(3, 2, 4, 8), torch.zeros(3, 2, 5, 8)
    of_heads = mask_mod(lambda b, h, i, j: SHORT[h + 4] > 0)
    with pytest.raises(InputError, match=r"from 4 to 5 along"):
        check_table_sizes(of_heads, q, k, 0)
    check_table_sizes(of_heads, q[:, :1], k, 0)
    rows = mask_mod(lambda b, h, i, j: SHORT[i] > j)
    check_table_sizes(rows, q, k, 1)
    with pytest.raises(InputError, match=r"from 2 to 5 along"):
        check_table_sizes(create_block_mask(rows, None, None, 4, 5), q, k, 2)


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (scores.alibi(8), r"shape \(8,\) at h \(dimension 0\), but query has 4 heads"),
        (
            scores.t5_bias(torch.zeros(4, 32)),
            r"shape \(4, 32\) at h \(dimension 1\), but query has 4 heads.*transposed",
        ),
        (lambda s, b, h, i, j: s + COLUMNS[h, 0], r"shape \(5, 4\) at h \(dimension 0\)"),
    ],
)
def test_tables_of_more_heads_than_the_call_has_are_warned_of(score: Any, message: str) -> None:
    q = torch.randn(1, 4, 3, 4, generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match=message):
        flex_attention(q, q, q, score)


def test_tables_of_as_many_heads_are_not_warned_of() -> None:
    q = torch.randn(1, 4, 3, 4, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for score in (scores.alibi(4), scores.alibi(torch.ones(1)), scores.t5_bias(torch.zeros(32, 4))):
            flex_attention(q, q, q, score)
        flex_attention(q, q, q, lambda s, b, h, i, j: s + PAIRS[h // 2, 0])


def test_tables_of_fewer_heads_are_refused_where_kernels_do_not_look() -> None:
    q = torch.zeros(2, 4, 3, 8)
    with pytest.raises(InputError, match=r"score_mod reads a captured tensor \(of shape \(2,\)\) .* at b=0, h=2"):
        check_head_tables(scores.alibi(2), q, q, checked=False)
    check_head_tables(scores.alibi(2), q, q, checked=True)
    check_head_tables(scores.alibi(4), q, q, checked=False)
    guarded = score_mod(lambda s, b, h, i, j: torch.where(h < 3, s * FLAGS[h], s))
    check_head_tables(guarded, q, q, checked=False)
    with pytest.raises(InputError, match=r"b=0, h=3"):
        check_head_tables(score_mod(lambda s, b, h, i, j: s * FLAGS[b + h]), q, q, checked=False)
    check_head_tables(score_mod(lambda s, b, h, i, j: s + SHORT[i + j]), q[:, :, :2], q, checked=False)
