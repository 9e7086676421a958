"""FlexMultiheadAttention computes what torch.nn.MultiheadAttention does, and takes mods beside."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch_flexattn import listening, mask_mod, masks, scores
from torch_flexattn.nn import FlexMultiheadAttention

L, S, B, H, E = 5, 7, 3, 4, 16
OPTIONS = {
    "plain": {},
    "no bias": {"bias": False},
    "other keys": {"add_bias_kv": True, "add_zero_attn": True},
    "other widths": {"kdim": 6, "vdim": 10},
    "batch first": {"batch_first": True},
}
MASKS = ("none", "pairs", "heads", "added", "added by head")
PADDING = ("none", "bool", "float")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def twins(**options: Any) -> tuple[nn.MultiheadAttention, FlexMultiheadAttention]:
    theirs, ours = nn.MultiheadAttention(E, H, **options), FlexMultiheadAttention(E, H, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def tables(mask: str, padding: str) -> tuple[Tensor | None, Tensor | None]:
    """An attn_mask and a key_padding_mask that leave every query the first key."""
    attn = {
        "none": lambda: None,
        "pairs": lambda: torch.rand(L, S) > 0.7,
        "heads": lambda: torch.rand(B * H, L, S) > 0.7,
        "added": lambda: torch.randn(L, S).requires_grad_(),
        "added by head": lambda: torch.randn(B * H, L, S).masked_fill(torch.rand(B * H, L, S) > 0.7, -torch.inf),
    }[mask]()
    pad = {"none": None, "bool": torch.rand(B, S) > 0.6, "float": torch.randn(B, S)}[padding]
    with torch.no_grad():
        for table in (attn, pad):
            if table is not None:
                table[..., 0] = 0
    return attn, pad


def run(layer: nn.Module, inputs: list[Tensor], attn: Tensor | None, pad: Tensor | None, **options: Any) -> list[Any]:
    """Outputs and all gradients."""
    layer.zero_grad()
    q, k, v = (x.clone().requires_grad_() for x in inputs)
    leaf = attn is not None and attn.requires_grad
    out, weights = layer(q, k, v, attn_mask=attn, key_padding_mask=pad, **options)
    total = out.square().sum() + (0 if weights is None else weights.square().sum())
    leaves = [q, k, v, *layer.parameters(), *([attn] if leaf else [])]
    return [out, weights, *torch.autograd.grad(total, leaves)]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("weights", ["none", "averaged", "of heads"])
@pytest.mark.filterwarnings("ignore:Support for mismatched")
def test_outputs_and_gradients_are_those_of_pytorch(options, mask, padding, weights):
    theirs, ours = twins(**OPTIONS[options])
    inputs = [torch.randn(L, B, E), torch.randn(S, B, theirs.kdim), torch.randn(S, B, theirs.vdim)]
    if theirs.batch_first:
        inputs = [x.transpose(0, 1) for x in inputs]
    attn, pad = tables(mask, padding)
    wanted = {"need_weights": weights != "none", "average_attn_weights": weights != "of heads"}
    for found, expected in zip(*(run(layer, inputs, attn, pad, **wanted) for layer in (ours, theirs))):
        assert (found is None) == (expected is None)
        if found is not None:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("need_weights", [True, False])
def test_inputs_without_a_batch(need_weights):
    theirs, ours = twins()
    q, k = torch.randn(L, E), torch.randn(S, E)
    mask, pad = torch.rand(H, L, S) > 0.7, torch.zeros(S, dtype=torch.bool)
    mask[..., 0], pad[3] = False, True
    for found, expected in zip(*(m(q, k, k, pad, need_weights, mask) for m in (ours, theirs))):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("need_weights", [True, False])
def test_is_causal_needs_no_mask_and_agrees_with_one(need_weights):
    theirs, ours = twins(batch_first=True)
    x = torch.randn(B, L, E)
    hidden = torch.ones(L, L, dtype=torch.bool).triu(1)
    expected = theirs(x, x, x, attn_mask=hidden, need_weights=need_weights)[0]
    torch.testing.assert_close(ours(x, x, x, need_weights=need_weights, is_causal=True)[0], expected)
    torch.testing.assert_close(ours(x, x, x, None, need_weights, hidden, is_causal=True)[0], expected)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("added", [True, False])
def test_fully_masked_rows_give_zero_not_nan(need_weights, added):
    layer = FlexMultiheadAttention(E, H, batch_first=True, bias=False)
    x = torch.randn(B, L, E, requires_grad=True)
    hidden = torch.zeros(L, L, dtype=torch.bool)
    hidden[2] = True
    mask = torch.zeros(L, L).masked_fill(hidden, -torch.inf) if added else hidden
    out, weights = layer(x, x, x, attn_mask=mask, need_weights=need_weights)
    assert torch.equal(out[:, 2], torch.zeros(B, E))
    if weights is not None:
        assert torch.equal(weights[:, 2], torch.zeros(B, L))
    out.sum().backward()
    assert bool(x.grad.isfinite().all())


@pytest.mark.parametrize("need_weights", [True, False])
def test_infinite_scores_of_hidden_keys_reach_no_gradient(need_weights):
    def far(score, b, h, q, kv):
        return score * (1 + torch.log(torch.relu((q - kv + 1).float())))  # of hidden keys the logarithm of 0

    layer = FlexMultiheadAttention(E, H, batch_first=True, mask_mod=masks.causal(), score_mod=far)
    x = torch.randn(B, L, E, requires_grad=True)
    layer(x, x, x, need_weights=need_weights)[0].sum().backward()
    assert bool(x.grad.isfinite().all())


def test_infinity_that_is_added_hides_whole_blocks():
    layer, calls = FlexMultiheadAttention(E, H, batch_first=True), []
    x = torch.randn(1, 300, E)
    mask = nn.Transformer.generate_square_subsequent_mask(300)
    with listening(calls.append):
        layer(x, x, x, attn_mask=mask, need_weights=False)
        layer(x, x, x, attn_mask=mask.requires_grad_(), need_weights=False)
    assert calls[0].mask.visible_pairs() == 300 * 301 // 2
    assert calls[1].mask is None


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("where", ["layer", "call"])
@pytest.mark.parametrize("others", [False, True])
def test_mods_apply_as_the_tensors_they_stand_for(need_weights, where, others):
    theirs, ours = twins(add_bias_kv=others)
    x, i = torch.randn(L, B, E), torch.arange(L)
    distance = i[:, None] - i
    slopes = scores.alibi_slopes(H)
    added = torch.where((distance < 3) & (distance >= 0), -slopes[:, None, None] * distance, -torch.inf).repeat(B, 1, 1)
    expected = theirs(x, x, x, attn_mask=added, need_weights=need_weights)
    mods = {"mask_mod": masks.sliding_window(3), "score_mod": scores.alibi(H)}
    if where == "layer":
        ours.mask_mod, ours.score_mod = mods["mask_mod"], mods["score_mod"]
        found = ours(x, x, x, need_weights=need_weights)
    else:
        found = ours(x, x, x, need_weights=need_weights, **mods)
    torch.testing.assert_close(found[0], expected[0])
    if need_weights:
        torch.testing.assert_close(found[1], expected[1])


def test_mods_and_tensors_apply_together():
    theirs, ours = twins(batch_first=True)
    x, i = torch.randn(B, L, E), torch.arange(L)
    attn, pad = torch.rand(L, L) > 0.7, torch.zeros(B, L, dtype=torch.bool)
    attn[:, 0], pad[1, 3:] = False, True
    far = (i[:, None] - i).abs() > 2
    ours.mask_mod = mask_mod(lambda b, h, q, kv: ((q - kv).abs() <= 2) | (kv == 0))
    far[:, 0] = False
    expected = theirs(x, x, x, pad, False, attn | far)[0]
    torch.testing.assert_close(ours(x, x, x, pad, False, attn)[0], expected)
    torch.testing.assert_close(ours(x, x, x, pad, True, attn)[0], expected)


def test_state_dicts_and_initial_values_go_both_ways():
    torch.manual_seed(3)
    theirs = nn.MultiheadAttention(E, H, add_bias_kv=True, kdim=6)
    torch.manual_seed(3)
    ours = FlexMultiheadAttention(E, H, add_bias_kv=True, kdim=6)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    theirs.load_state_dict(FlexMultiheadAttention(E, H, add_bias_kv=True, kdim=6).state_dict(), strict=True)


def test_dropout_only_in_training():
    layer = FlexMultiheadAttention(E, H, dropout=0.5, batch_first=True)
    x = torch.randn(B, L, E)
    for need in (True, False):
        layer.train()
        assert not torch.equal(layer(x, x, x, need_weights=need)[0], layer(x, x, x, need_weights=need)[0])
        layer.eval()
        assert torch.equal(layer(x, x, x, need_weights=need)[0], layer(x, x, x, need_weights=need)[0])


def test_copies_keep_the_mods():
    layer = FlexMultiheadAttention(
        E, H, batch_first=True, mask_mod=masks.sliding_window(2), score_mod=scores.softcap(2.0)
    )
    x = torch.randn(B, L, E)
    expected = layer(x, x, x, need_weights=False)[0]
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x, x, x, need_weights=False)[0], expected)
    assert "mask_mod=MaskMod" in repr(layer)


def test_autocast_gives_its_type():
    layer = FlexMultiheadAttention(E, H, batch_first=True)
    x = torch.randn(B, L, E)
    expected = layer(x, x, x, need_weights=False)[0]
    for need in (True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = layer(x, x, x, need_weights=need)[0]
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.float(), expected, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("case", ["tables", "causal", "mods and tables", "weights"])
def test_one_graph_of_the_compiler(case):
    options = {"mask_mod": masks.sliding_window(3), "score_mod": scores.softcap(2.0)} if "mods" in case else {}
    layer = FlexMultiheadAttention(E, H, batch_first=True, **options)
    x = torch.randn(B, L, E)
    pad = torch.zeros(B, L, dtype=torch.bool)
    pad[1, 3:] = True
    named: dict[str, Any] = {"need_weights": case == "weights"}
    if case == "causal":
        named["is_causal"] = True
    else:
        named |= {"attn_mask": torch.randn(B * H, L, L), "key_padding_mask": pad}
    torch._dynamo.reset()
    fast = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(fast(x, x, x, **named)[0], layer(x, x, x, **named)[0])


@pytest.mark.parametrize("need_weights", [True, False])
def test_without_keys_or_batch_entries(need_weights):
    layer, x = FlexMultiheadAttention(E, H, batch_first=True), torch.randn(B, L, E)
    out, weights = layer(x, x[:, :0], x[:, :0], need_weights=need_weights)
    assert torch.equal(out, layer.out_proj.bias.expand(B, L, E))
    assert weights is None or weights.shape == (B, L, 0)
    assert layer(x[:0], x[:0], x[:0], need_weights=need_weights)[0].shape == (0, L, E)


def test_a_mask_that_is_changed_in_place_is_seen():
    theirs, ours = twins(batch_first=True)
    x, mask = torch.randn(B, L, E), torch.zeros(L, L, dtype=torch.bool)
    for _ in range(2):
        expected = theirs(x, x, x, attn_mask=mask, need_weights=False)[0]
        torch.testing.assert_close(ours(x, x, x, attn_mask=mask, need_weights=False)[0], expected)
        mask[:, 2:] = True


def test_new_lengths_take_one_graph_more_and_then_none():
    layer = FlexMultiheadAttention(E, H, batch_first=True)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    fast = torch.compile(layer, fullgraph=True, backend=counter)
    for length in (9, 12, 15, 31):
        x, mask = torch.randn(B, length, E), torch.randn(length, length)
        expected = layer(x, x, x, attn_mask=mask, need_weights=False)[0]
        torch.testing.assert_close(fast(x, x, x, attn_mask=mask, need_weights=False)[0], expected)
    assert counter.frame_count == 2


def test_wrong_inputs_are_named():
    layer, x = FlexMultiheadAttention(E, H), torch.randn(L, B, E)
    with pytest.raises(ValueError, match=r"key must have .*16 features; got \(5, 3, 6\)"):
        layer(x, x[..., :6], x)
    with pytest.raises(ValueError, match=r"attn_mask must have the shape \(5, 5\) or \(12, 5, 5\), got \(5, 4\)"):
        layer(x, x, x, attn_mask=torch.ones(5, 4))
    with pytest.raises(TypeError, match=r"key_padding_mask .* got torch.int64"):
        layer(x, x, x, torch.ones(B, L, dtype=torch.int64))
    with pytest.raises(ValueError, match="one batch"):
        layer(x, x[:, :2], x[:, :2])
