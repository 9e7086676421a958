"""Packed and padded sequences against their formulas."""

from __future__ import annotations

import pytest
import torch
from torch_flexattn import masks
from torch_flexattn.errors import InputError, KindError

IDS = [0, 0, 0, 1, 3, 3, 3, 3, 2, 2]
CU = [0, 3, 4, 8, 10]


@pytest.mark.parametrize("causal", [False, True])
def test_documents_by_bounds_and_by_ids(causal, dense, looped):
    expected = looped(lambda b, h, i, j: IDS[i] == IDS[j] and (not causal or i >= j), 10)
    for mask in (
        masks.document(CU, causal=causal),
        masks.document(torch.tensor(CU), causal=causal),
        masks.document(torch.tensor(CU, dtype=torch.int32), total=10, causal=causal),
        masks.document(doc_ids=IDS, causal=causal),
        masks.document(doc_ids=torch.tensor([IDS]), causal=causal),
        masks.document(CU) & masks.causal() if causal else masks.document(CU),
    ):
        assert torch.equal(dense(mask, 10), expected)


@pytest.mark.parametrize("causal", [False, True])
def test_documents_of_each_sequence(causal, dense, looped):
    ids = [[0, 0, 1, 1, 1], [5, 2, 2, 2, 2]]
    expected = looped(lambda b, h, i, j: ids[b][i] == ids[b][j] and (not causal or i >= j), 5, batch=2)
    assert torch.equal(dense(masks.document(doc_ids=torch.tensor(ids), causal=causal), 5, batch=2), expected)


@pytest.mark.parametrize("causal", [False, True])
def test_interrupted_documents(causal, dense, looped):
    ids = [[0, 1, 0, 1, 1], [5, 5, 2, 2, 2]]
    expected = looped(lambda b, h, i, j: ids[b][i] == ids[b][j] and (not causal or i >= j), 5, batch=2)
    mask = masks.document(doc_ids=torch.tensor(ids), causal=causal)
    assert torch.equal(dense(mask, 5, batch=2), expected)
    assert len(mask.captures) == 1
    assert len(masks.document(doc_ids=ids[1]).captures) == 2  # an interval: where it starts and ends


def test_empty_documents_and_repeated_bounds(dense):
    assert torch.equal(dense(masks.document([0, 0, 2, 2, 2, 5, 5]), 5), dense(masks.document([0, 2, 5]), 5))
    assert masks.document([0]).captures[0].shape == (0,)


def test_number_of_visible_pairs_of_documents(dense):
    bounds = [0, 300, 428, 1500, 2048]
    assert dense(masks.document(bounds), 2048).sum() == 1_555_872
    assert dense(masks.document(bounds, causal=True), 2048).sum() == 778_960


def test_new_lengths_are_no_new_program():
    keys = {masks.document([0, n, 3 * n], causal=True).program.key for n in (1, 5, 70)}
    assert len(keys) == 1


def test_tables_are_int32():
    mask = masks.document(torch.tensor(CU)) & masks.shared_prefix(3, torch.tensor([3, 4]))
    assert {c.dtype for c in mask.captures} == {torch.int32}


def test_padding(dense, looped):
    lens = [3, 0, 5]
    expected = looped(lambda b, h, i, j: j < lens[b], 5, batch=3)
    assert torch.equal(dense(masks.padding(torch.tensor(lens)), 5, batch=3), expected)


@pytest.mark.parametrize("prefix", ["bidirectional", "causal"])
def test_shared_prefix(prefix, dense, looped):
    group = [-1, -1, -1, 0, 0, 1, 1, 1, 3]

    def formula(b, h, i, j):
        if prefix == "causal" and i < j:
            return False
        return j < 3 or (group[i] == group[j] and i >= j)

    mask = masks.shared_prefix(3, torch.tensor([2, 3, 0, 1]), prefix=prefix)
    assert torch.equal(dense(mask, 9), looped(formula, 9))


def test_shared_prefix_is_each_continuation_by_itself(dense):
    seen = dense(masks.shared_prefix(4, [3, 5], prefix="causal"), 12)
    second = [0, 1, 2, 3, 7, 8, 9, 10, 11]
    assert torch.equal(seen[second][:, second], torch.ones(9, 9, dtype=torch.bool).tril())
    assert not seen[second][:, [4, 5, 6]].any()


def test_turns_see_earlier_turns_without_what_is_dropped(dense, looped):
    conversation = [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]
    turn = [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    transient = [False, True, True, False, True, False, True, False, True, False]

    def formula(b, h, i, j):
        same = conversation[i] == conversation[j]
        return i >= j and same and (not transient[j] or turn[i] == turn[j])

    mask = masks.multi_turn_packed([0, 6, 10], [0, 3, 6, 8, 10], torch.tensor(transient))
    assert torch.equal(dense(mask, 10), looped(formula, 10))
    without = masks.multi_turn_packed([0, 6, 10], [0, 3, 6, 8, 10])
    assert torch.equal(dense(without, 10), dense(masks.document([0, 6, 10], causal=True), 10))


@pytest.mark.parametrize(
    "make, error, says",
    [
        (lambda: masks.document(), InputError, "cu_seqlens and doc_ids .*got neither"),
        (lambda: masks.document(CU, doc_ids=IDS), InputError, "cu_seqlens and doc_ids .*got both"),
        (lambda: masks.document([1, 3]), InputError, r"cu_seqlens must begin with 0.*got \[1, 3\]"),
        (lambda: masks.document([0, 3, 2]), InputError, r"cu_seqlens must .*never fall, got \[0, 3, 2\]"),
        (lambda: masks.document([]), (InputError, KindError), "cu_seqlens must .*"),
        (lambda: masks.document(CU, total=11), InputError, "cu_seqlens must end with .*11, got 10"),
        (lambda: masks.document(doc_ids=IDS, total=10), InputError, "total .*got total=10"),
        (lambda: masks.document([0.0, 3.0]), KindError, "cu_seqlens must hold integers, got torch.float32"),
        (lambda: masks.document(3), KindError, "cu_seqlens must be a tensor, got 3"),
        (lambda: masks.document(["a"]), KindError, r"cu_seqlens must be .*got \['a'\]"),
        (lambda: masks.document(torch.zeros(2, 2).int()), InputError, r"cu_seqlens .*got \[2, 2\]"),
        (lambda: masks.document(doc_ids=torch.tensor(1)), InputError, r"doc_ids .*got \[\]"),
        (lambda: masks.padding([-1]), InputError, "lens must .*got -1"),
        (lambda: masks.padding(torch.tensor([1.5])), KindError, "lens must .*got torch.float32"),
        (lambda: masks.shared_prefix(-1, [3]), InputError, "prefix_len must .*got -1"),
        (lambda: masks.shared_prefix(1, [-3]), InputError, "lens must .*got -3"),
        (lambda: masks.shared_prefix(1, [3], prefix="x"), InputError, "prefix must .*got 'x'"),
        (lambda: masks.multi_turn_packed([0, 4], [0, 3]), InputError, "cu_turns must end with .*4, got 3"),
        (lambda: masks.multi_turn_packed([0, 2, 4], [0, 3, 4]), InputError, "cu_turns must hold .*none at 2"),
        (
            lambda: masks.multi_turn_packed([0, 4], [0, 4], torch.ones(3, dtype=torch.bool)),
            InputError,
            r"transient must have one value for each of 4 tokens, got \[3\]",
        ),
        (
            lambda: masks.multi_turn_packed([0, 4], [0, 4], torch.ones(4)),
            KindError,
            "transient must be a tensor of bool, got torch.float32",
        ),
    ],
)
def test_bad_arguments_are_named(make, error, says):
    with pytest.raises(error, match=says):
        make()
