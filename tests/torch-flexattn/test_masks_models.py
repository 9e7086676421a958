"""Trees of guesses, text with images, and denoising of blocks against their formulas."""

from __future__ import annotations

import pytest
import torch
from torch_flexattn import masks
from torch_flexattn.errors import InputError, KindError
from torch_flexattn.reference import attention

PARENTS = [-1, 0, 1, 1, 3, 3, 0]


def ancestors(parents, node):
    """The node itself and all above it."""
    found = set()
    while node >= 0:
        found.add(node)
        node = parents[node]
    return found


def tree_formula(parents, prefix):
    def formula(b, h, i, j):
        if i < prefix or j < prefix:
            return i >= j
        return j - prefix in ancestors(parents, i - prefix)

    return formula


def random_tree(nodes, seed=0):
    draw = torch.rand(nodes, generator=torch.Generator().manual_seed(seed))
    return [int(x * (n + 1)) - 1 for n, x in enumerate(draw.tolist())]


def test_tree_rows(dense):
    seen = dense(masks.tree(PARENTS), 7)
    assert seen.sum() == 19
    assert seen[4].nonzero().flatten().tolist() == [0, 1, 3, 4]


@pytest.mark.parametrize("nodes", [1, 7, 32, 63, 64, 65, 100])
@pytest.mark.parametrize("prefix", [0, 5, 70])
def test_node_sees_the_prefix_and_its_ancestors(nodes, prefix, dense, looped):
    parents = random_tree(nodes, seed=nodes)
    expected = looped(tree_formula(parents, prefix), prefix + nodes)
    assert torch.equal(dense(masks.tree(parents, prefix), prefix + nodes), expected)


@pytest.mark.parametrize("nodes", [6, 70])
def test_tree_of_each_sequence(nodes, dense, looped):
    trees, prefixes = [random_tree(nodes, seed=s) for s in (1, 2)], [3, 0]
    formulas = [tree_formula(*each) for each in zip(trees, prefixes)]
    size = nodes + 3
    mask = masks.tree(torch.tensor(trees), torch.tensor(prefixes))
    seen = dense(mask & (lambda b, h, i, j: i < nodes + 3 - 3 * b), size, batch=2)
    expected = looped(lambda b, h, i, j: i < nodes + 3 - 3 * b and formulas[b](b, h, i, j), size, batch=2)
    assert torch.equal(seen, expected)


@pytest.mark.parametrize("nodes", [6, 70])
def test_tree_after_a_long_prefix_reads_its_table_inside(nodes):
    tokens = 100 + nodes
    x = torch.randn(1, 1, tokens, 2, generator=torch.Generator().manual_seed(0))
    out, _, _ = attention(x, x, x, mask_mod=masks.tree(list(range(-1, nodes - 1)), 100))  # raises where it does not
    expected, _, _ = attention(x, x, x, mask_mod=masks.causal())
    assert torch.equal(out, expected)


def test_deep_tree_is_causal(dense):
    chain = list(range(-1, 79))
    assert torch.equal(dense(masks.tree(chain, 2), 82), dense(masks.causal(), 82))


IMAGES = [-1, 0, 0, 0, -1, -1, 4, 2, 2, -1]


def image_formula(segments):
    return lambda b, h, i, j: i >= j or (segments[i] == segments[j] and segments[i] >= 0)


def test_images_see_all_of_themselves(dense, looped):
    expected = looped(image_formula(IMAGES), 10)
    mask = masks.image_text(IMAGES)
    assert torch.equal(dense(mask, 10), expected)
    assert len(mask.captures) == 1
    spans = torch.tensor([[1, 4], [6, 7], [7, 9], [3, 3]])
    assert torch.equal(dense(masks.transfusion(spans, 10), 10), expected)


def test_interrupted_images(dense, looped):
    segments = [0, 0, -1, 0, 1, -1, 1]
    assert torch.equal(dense(masks.image_text(segments), 7), looped(image_formula(segments), 7))


def test_images_of_each_sequence(dense, looped):
    rows = [[-1, 0, 0, -1, -1], [0, 0, 0, 1, 1]]
    expected = looped(lambda b, h, i, j: image_formula(rows[b])(b, h, i, j), 5, batch=2)
    assert torch.equal(dense(masks.image_text(torch.tensor(rows)), 5, batch=2), expected)
    spans = torch.tensor([[[1, 3], [0, 0]], [[3, 5], [0, 3]]])
    assert torch.equal(dense(masks.transfusion(spans, 5), 5, batch=2), expected)


def test_no_image_is_causal(dense):
    expected = dense(masks.causal(), 5)
    assert torch.equal(dense(masks.image_text([-1] * 5), 5), expected)
    assert torch.equal(dense(masks.transfusion(torch.zeros(0, 2).int(), 5), 5), expected)


def test_text_sees_the_last_image_before_it(dense, looped):
    last = [-1, -1, 0, 0, 2, 2, 1]
    expected = looped(lambda b, h, i, j: j // 3 == last[i], 7, 9)
    assert torch.equal(dense(masks.flamingo(last, 3), 7, 9), expected)
    sizes, owner = [2, 0, 4], [0, 0, 2, 2, 2, 2]
    expected = looped(lambda b, h, i, j: owner[j] == last[i], 7, 6)
    assert torch.equal(dense(masks.flamingo(last, sizes), 7, 6), expected)
    rows = torch.tensor([last, last[::-1]])
    expected = looped(lambda b, h, i, j: j == rows[b, i], 7, 3, batch=2)
    assert torch.equal(dense(masks.flamingo(rows), 7, 3, batch=2), expected)


@pytest.mark.parametrize("n, block", [(6, 2), (7, 3), (5, 1), (4, 9)])
def test_block_diffusion(n, block, dense, looped):
    def formula(b, h, i, j):
        own, other = i % n // block, j % n // block
        if i < n:
            return own == other if j < n else other < own
        return j >= n and other <= own

    assert torch.equal(dense(masks.block_diffusion(n, block), 2 * n), looped(formula, 2 * n))


@pytest.mark.parametrize(
    "make, error, says",
    [
        (lambda: masks.tree([-1, 1]), InputError, "parents must come before their nodes, got 1 of 1"),
        (lambda: masks.tree([-1, -2]), InputError, "parents must .*got -2"),
        (lambda: masks.tree([0.5]), KindError, "parents must hold integers, got torch.float32"),
        (lambda: masks.tree([-1], -1), InputError, "prefix_len must .*got -1"),
        (lambda: masks.tree([-1], torch.tensor([3, -4])), InputError, "prefix_len must .*got -4"),
        (lambda: masks.image_text([0, -2]), InputError, "segments must .*got -2"),
        (lambda: masks.image_text(torch.zeros(1, 1, 1).int()), InputError, r"segments must .*got \[1, 1, 1\]"),
        (lambda: masks.transfusion([[0, 3]], -1), InputError, "length must .*got -1"),
        (lambda: masks.transfusion([[0, 3]], 2), InputError, "spans must .*got 3"),
        (lambda: masks.transfusion([[2, 1]], 3), InputError, r"spans must not end before they begin, got \[2, 1\]"),
        (lambda: masks.transfusion([[0, 3], [2, 4]], 5), InputError, "spans must not overlap, got token 2 in two"),
        (lambda: masks.transfusion([[0, 1, 2]], 3), InputError, r"spans must have the shape .*got \[1, 3\]"),
        (lambda: masks.flamingo([-2]), InputError, "media_ids must .*got -2"),
        (lambda: masks.flamingo([1], [4]), InputError, "media_ids must .*at most 0, got 1"),
        (lambda: masks.flamingo([0], [-4]), InputError, "tokens_per_media must .*got -4"),
        (lambda: masks.flamingo([0], 1.5), KindError, "tokens_per_media must be an integer, got 1.5"),
        (lambda: masks.block_diffusion(0, 1), InputError, "n must .*got 0"),
        (lambda: masks.block_diffusion(4, 0), InputError, "block must .*got 0"),
    ],
)
def test_bad_arguments_are_named(make, error, says):
    with pytest.raises(error, match=says):
        make()
