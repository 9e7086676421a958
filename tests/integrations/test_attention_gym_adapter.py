"""attention-gym's functions as modifications of torch-flexattn, next to themselves under PyTorch's flex_attention."""

import doctest
import importlib
import re
from pathlib import Path

import pytest
import torch
from torch.nn.attention import flex_attention as theirs
from torch_flexattn import BlockMask, InputError, KindError, MaskMod, ScoreMod, create_mask, flex_attention, masks

pytest.importorskip("attn_gym", reason="attention-gym is not installed here")

from attn_gym import masks as gym
from attn_gym import mods as gym_mods
from torch_flexattn_attention_gym import convert, native, rope_as_features
from torch_flexattn_attention_gym.convert import formulas

from .attention_gym_cases import BOUNDS, HEADS, LENGTH, MASKS, SCORES, made, sizes

CHOSEN = torch.tensor([[2, 0], [1, 2], [0, 1]]).expand(1, HEADS, 3, 2)
EDGE = torch.tensor([8, 5, 8])
WINDOW = gym.generate_sliding_window(3)
NATIVE = {
    "causal": gym.causal_mask,
    "window": WINDOW,
    "prefix": gym.generate_prefix_lm_mask(7),
    "global": gym.generate_global_sliding_window(3, torch.arange(LENGTH) % 11 == 0),
    "dilated": gym.generate_dilated_sliding_window(9, 2),
    "dilated past a step": gym.generate_dilated_sliding_window(8, 3),
    "documents": gym.generate_doc_mask_mod(theirs.noop_mask, BOUNDS),
    "causal documents": gym.generate_doc_mask_mod(gym.causal_mask, BOUNDS),
    "windows in documents": gym.generate_doc_mask_mod(WINDOW, BOUNDS),
    "both in documents": gym.generate_doc_mask_mod(theirs.and_masks(gym.causal_mask, WINDOW), BOUNDS),
    "packed documents": gym.generate_packed_causal_doc_mask_mod(BOUNDS),
    "an empty document": gym.generate_packed_causal_doc_mask_mod(torch.tensor([0, 0, 9, 9, LENGTH])),
    "natten": gym.generate_natten(5, 5, 3, 1),
    "tiles": gym.generate_sta_mask_mod_2d((4, 8), (2, 4), (2, 2)),
    "an even number of tiles": gym.generate_sta_mask_mod_2d((6, 4), (4, 2), (2, 2)),
    "cubes": gym.generate_sta_mask_mod_3d((2, 2, 6), (2, 2, 4), (1, 2, 2)),
    "diffusion": gym.generate_block_diffusion_mask(12, 3),
    "chunks": gym.batchify_mask_mod(gym.causal_mask, 5),
    "video": gym.generate_vsa_mask_mod(CHOSEN, 8),
    "video with edges": gym.generate_vsa_mask_mod(CHOSEN, 8, EDGE),
    "both": theirs.and_masks(gym.causal_mask, gym.generate_natten(5, 5, 3, 3)),
    "either, one of them by hand": theirs.or_masks(lambda b, h, q_idx, kv_idx: kv_idx == h, gym.causal_mask),
}
GRIDS = {"natten": 25, "tiles": 32, "an even number of tiles": 24, "cubes": 24, "both": 25}
NO_OTHER = {
    "an even kernel": gym.generate_natten(5, 5, 2, 3),
    "no square": gym.generate_natten(6, 4, 3, 3),
    "a kernel larger than the grid": gym.generate_natten(3, 3, 5, 5),
    "tiles and text": gym.generate_sta_mask_mod_2d((4, 4), (2, 2), (2, 2), 8),
    "a prefix in each document": gym.generate_doc_mask_mod(gym.generate_prefix_lm_mask(3), BOUNDS),
    "windows in groups": gym.batchify_mask_mod(WINDOW, 5),
    "a negative window": gym.generate_sliding_window(-1).__closure__[0].cell_contents[0],
    "by hand": lambda b, h, q_idx, kv_idx: q_idx >= kv_idx,
}


def features(length=LENGTH, key_heads=HEADS, requires_grad=False):
    rng = torch.Generator().manual_seed(1)
    shapes = ((1, HEADS, length, 16), (1, key_heads, length, 16), (1, key_heads, length, 16))
    return [torch.randn(shape, generator=rng).requires_grad_(requires_grad) for shape in shapes]


def dense(mask, *lengths):
    return theirs.create_mask(mask, 1, HEADS, *lengths, device="cpu")


@pytest.mark.parametrize("name", NATIVE)
def test_a_native_mask_is_the_one_it_stands_for(name):
    mask, length = NATIVE[name], GRIDS.get(name, LENGTH)
    ours = native(mask)
    assert isinstance(ours, MaskMod)
    expected = dense(mask, length, length)
    assert torch.equal(create_mask(ours, 1, HEADS, length, length, device="cpu").expand_as(expected), expected)
    assert 0 < expected.sum() < expected.numel()


@pytest.mark.parametrize("name", NO_OTHER)
def test_another_formula_is_recorded_as_it_is(name):
    mask = NO_OTHER[name]
    assert native(mask) is None
    expected = dense(mask, LENGTH, LENGTH)
    assert torch.equal(create_mask(convert(mask), 1, HEADS, LENGTH, LENGTH, device="cpu").expand_as(expected), expected)


@pytest.mark.parametrize("name", MASKS)
def test_every_mask_is_converted_to_itself(name):
    mask = made(name)
    expected = dense(mask, *sizes(name))
    assert torch.equal(create_mask(convert(mask), 1, HEADS, *sizes(name), device="cpu").expand_as(expected), expected)


@pytest.mark.parametrize("name", ["causal", "windows in documents", "natten", "video with edges", "global"])
def test_attention_with_a_native_mask_equals_that_of_pytorch_with_the_function(name):
    length = GRIDS.get(name, LENGTH)
    q, k, v = features(length)
    blocks = theirs.create_block_mask(NATIVE[name], 1, HEADS, length, length, device="cpu")
    expected = theirs.flex_attention(q, k, v, block_mask=blocks)
    torch.testing.assert_close(flex_attention(q, k, v, mask_mod=native(NATIVE[name])), expected)


@pytest.mark.parametrize("name", SCORES)
def test_attention_with_a_converted_score_equals_that_of_pytorch_with_the_function(name):
    score = made(name)
    assert isinstance(convert(score), ScoreMod)
    q, k, v = features()
    blocks = theirs.create_block_mask(gym.causal_mask, 1, HEADS, LENGTH, LENGTH, device="cpu")
    expected = theirs.flex_attention(q, k, v, score, blocks)
    torch.testing.assert_close(flex_attention(q, k, v, convert(score), convert(gym.causal_mask)), expected)


@pytest.mark.parametrize("name", ["windows in documents", "video with edges"])
def test_gradients_under_a_native_mask_are_those_of_the_dense_formula(name):
    mask, seen = native(NATIVE[name]), masks.from_dense(dense(NATIVE[name], LENGTH, LENGTH)[0])
    inputs = features(requires_grad=True)
    weights = torch.randn(1, HEADS, LENGTH, 16, generator=torch.Generator().manual_seed(2))
    found = torch.autograd.grad((flex_attention(*inputs, mask_mod=mask) * weights).sum(), inputs)
    out = flex_attention(*inputs, mask_mod=seen, backend="reference")
    torch.testing.assert_close(found, torch.autograd.grad((out * weights).sum(), inputs))


def test_both_soft_caps_are_native():
    cap, approximate = (gym_mods.generate_tanh_softcap(2, approx=approx) for approx in (False, True))
    q, k, v = features()
    exact = flex_attention(q, k, v, native(cap))
    torch.testing.assert_close(exact, theirs.flex_attention(q, k, v, cap))
    torch.testing.assert_close(flex_attention(q, k, v, native(approximate)), exact, rtol=0, atol=1e-5)
    assert native(approximate).program != native(cap).program


def test_a_captured_table_of_a_converted_score_gets_its_gradient():
    table = torch.randn(HEADS, 5, generator=torch.Generator().manual_seed(3), requires_grad=True)
    near = torch.arange(LENGTH).view(1, 1, -1).sub(torch.arange(LENGTH).view(1, -1, 1)).abs().clamp(max=4)
    score = convert(gym_mods.generate_graphormer_spatial_bias(table, near))
    inputs = features()
    found, expected = (
        torch.autograd.grad(flex_attention(*inputs, score, backend=backend).square().sum(), table)[0]
        for backend in ("cpu", "reference")
    )
    torch.testing.assert_close(found, expected)
    assert expected.abs().max() > 1e-3


@pytest.mark.parametrize("edge", [None, EDGE * 4])
def test_a_block_mask_keeps_its_blocks_and_gets_a_mask_that_can_be_computed(edge):
    chosen = torch.tensor([[0, 1], [1, 2], [0, 2]]).expand(1, HEADS, 3, 2)
    mask = gym.generate_vsa_mask_mod(chosen, 32, edge)
    by_function = theirs.create_block_mask(mask, 1, HEADS, 96, 96, "cpu", 32)
    by_lists = gym.create_vsa_block_mask(chosen, 32, 3, edge)
    for blocks in (by_function, by_lists):  # PyTorch's attention without a compiler looks at the function alone
        assert isinstance(convert(blocks), BlockMask)
        assert torch.equal(convert(blocks).to_element_mask().expand(1, HEADS, 96, 96), dense(mask, 96, 96))
    q, k, v = features(96)
    expected = theirs.flex_attention(q, k, v, block_mask=by_function)
    torch.testing.assert_close(flex_attention(q, k, v, block_mask=convert(by_lists)), expected)


@pytest.mark.parametrize("key_heads", [1, HEADS])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_rope_as_features_makes_the_scores_of_the_modification(key_heads, scale):
    q, k, v = (t.double().detach().requires_grad_() for t in features(key_heads=key_heads))
    rng = torch.Generator().manual_seed(4)
    rope = [torch.randn(1, heads, LENGTH, 4, dtype=q.dtype, generator=rng, requires_grad=True) for heads in (HEADS, 1)]
    mod = gym_mods.generate_mla_rope_score_mod(*rope, num_heads=HEADS, scale=0.7)
    mask = masks.causal()
    query, key, factor = rope_as_features(mod, q, k, scale)
    ours = flex_attention(query, key, v, mask_mod=mask, scale=factor, enable_gqa=True)
    scores = q @ k.mT * (0.25 if scale is None else scale) + 0.7 * (rope[0] @ rope[1].mT)
    expected = scores.masked_fill(~dense(gym.causal_mask, LENGTH, LENGTH), -torch.inf).softmax(-1) @ v
    torch.testing.assert_close(ours, expected)
    inputs = [q, k, v, *rope]
    found, wanted = (torch.autograd.grad(out.square().sum(), inputs) for out in (ours, expected))
    torch.testing.assert_close(found, wanted)


def test_rope_as_features_reads_the_vectors_of_each_group_of_heads():
    query, key = torch.zeros(1, 4, 3, 8), torch.zeros(1, 4, 3, 8)
    keys = torch.arange(2.0).view(1, 2, 1, 1).expand(1, 2, 3, 1)
    mod = gym_mods.generate_mla_rope_score_mod(torch.ones(1, 4, 3, 1), keys, num_heads=2)
    assert rope_as_features(mod, query, key)[1][0, :, 0, -1].tolist() == [0, 0, 1, 1]
    with pytest.raises(InputError, match="num_heads=2 of mod must be a multiple of the 4 query heads"):
        rope_as_features(mod, query, key[:, :1])
    with pytest.raises(KindError, match="generate_mla_rope_score_mod, got"):
        rope_as_features(gym.causal_mask, query, key)


def test_what_is_neither_mask_nor_score_is_refused():
    with pytest.raises(KindError, match="mask_mod must be a function, got int"):
        convert(3)
    with pytest.raises(KindError, match="mask_mod"):
        convert(lambda score: score)
    mask = masks.causal()
    assert convert(mask) is mask


def test_formulas_of_another_version_are_not_taken_for_known(monkeypatch):
    formulas.cache_clear()
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0.99")
    try:
        with pytest.warns(UserWarning, match=r"attn-gym 0\.0\.99 is installed, .* of 0\.0\.17 are known"):
            assert native(gym.causal_mask) is None
        assert isinstance(convert(gym.causal_mask), MaskMod)
    finally:
        formulas.cache_clear()


PACKAGE = "torch_flexattn_attention_gym"
README = Path(importlib.import_module(PACKAGE).__file__).parents[2] / "README.md"


def test_the_example_of_the_readme_prints_what_it_says(capsys):
    found = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    exec(compile(found[1], str(README), "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out == found[2]


@pytest.mark.parametrize("module", ["convert", "features", "made_by", "mask_formulas"])
def test_the_examples_of_docstrings_hold(module):
    found = doctest.testmod(importlib.import_module(f"{PACKAGE}.{module}"), optionflags=doctest.ELLIPSIS)
    assert found.attempted
    assert not found.failed
