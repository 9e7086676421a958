"""The two functions that transformers calls, against attention written out over all pairs."""

import doctest
import importlib.util
import math
import os
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", minversion="5.4", reason="transformers is not installed here")

import torch_flexattn_transformers.model_mask as masks_of_models
from torch_flexattn import InputError, UnsupportedError, flex_attention
from torch_flexattn_transformers import ModelMask, attention, mask
from transformers import masking_utils

HEADS, KV_HEADS, QUERIES, KEYS, FEATURES = 6, 2, 4, 9, 8


class Layer(torch.nn.Module):
    is_causal = True


def features(queries=QUERIES, keys=KEYS):
    made = torch.Generator().manual_seed(0)
    shapes = [(2, HEADS, queries), (2, KV_HEADS, keys), (2, KV_HEADS, keys)]
    return [torch.randn(*shape, FEATURES, dtype=torch.float64, generator=made) for shape in shapes]


def dense(q, k, v, seen=None, bias=None, softcap=None, sinks=None, scaling=None):
    """``[B, L, H, E]``, over all pairs; a query that sees nothing gets 0."""
    k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
    scores = q @ k.mT * (1 / math.sqrt(FEATURES) if scaling is None else scaling)
    scores = scores if softcap is None else softcap * (scores / softcap).tanh()
    scores = scores if bias is None else scores + bias
    scores = scores if seen is None else scores.masked_fill(~seen, -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    weights = scores.softmax(-1).nan_to_num()[..., : k.shape[2]]
    return (weights @ v).transpose(1, 2)


def of_transformers(**arguments):
    """The mask that transformers makes for SDPA: bools of all pairs."""
    return masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False, allow_is_bidirectional_skip=False)


@pytest.fixture(params=[True, False], ids=["looks", "reads nothing"])
def looking(request, monkeypatch):
    monkeypatch.setattr(masks_of_models, "may_look", lambda device, q_length: request.param)


def mask_functions():
    ids = torch.arange(KEYS).expand(2, -1) // 4
    left = torch.tensor([2, 0])
    return {
        "causal": masking_utils.causal_mask_function,
        "bidirectional": masking_utils.bidirectional_mask_function,
        "window": masking_utils.sliding_window_causal_mask_function(3),
        "window of both sides": masking_utils.sliding_window_bidirectional_mask_function(2),
        "chunks": masking_utils.chunked_causal_mask_function(3, left),
        "blocks": masking_utils.or_masks(masking_utils.causal_mask_function, masking_utils.blockwise_overlay(ids)),
        "documents": masking_utils.packed_sequence_mask_function(ids),
        "places": masking_utils.remap_positions_for_packed_sequence(masking_utils.causal_mask_function, ids),
    }


@pytest.mark.parametrize("padding", ["none", "left", "short", "tensor"])
@pytest.mark.parametrize("kind", mask_functions())
def test_every_mask_function_of_transformers_is_recorded(kind, padding, looking):
    q, k, v = features()
    kept = torch.ones(2, KEYS, dtype=torch.bool)
    kept[0, :3] = padding != "left"
    kept = {"none": None, "short": kept[:, : KEYS - 1]}.get(padding, kept)
    offset = KEYS - QUERIES - (padding == "short")
    asked = {"batch_size": 2, "q_length": QUERIES, "kv_length": KEYS, "attention_mask": kept}
    asked["mask_function"] = mask_functions()[kind]
    ours = mask(**asked, q_offset=torch.tensor(offset) if padding == "tensor" else offset)
    found, weights = attention(Layer().eval(), q, k, v, ours)
    torch.testing.assert_close(found, dense(q, k, v, of_transformers(**asked, q_offset=offset)))
    assert weights is None


@pytest.mark.parametrize("queries", [1, QUERIES])
@pytest.mark.parametrize("kind", ["causal", "window", "bidirectional"])
def test_keys_that_a_cache_dropped_are_counted(kind, queries, looking):
    q, k, v = features(queries, KEYS)
    kept = torch.ones(2, 15, dtype=torch.bool)
    kept[0, :8] = False
    asked = {"batch_size": 2, "q_length": queries, "kv_length": KEYS, "attention_mask": kept}
    asked |= {"mask_function": mask_functions()[kind], "q_offset": 15 - queries, "kv_offset": 15 - KEYS}
    found, _ = attention(Layer().eval(), q, k, v, mask(**asked))
    torch.testing.assert_close(found, dense(q, k, v, of_transformers(**asked)))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed here")
@pytest.mark.parametrize("kind", mask_functions())
def test_the_decoding_kernels_of_a_gpu_take_the_masks_as_they_are(kind, monkeypatch, tmp_path):
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("runs in Triton's interpreter")
    monkeypatch.setenv("TORCH_FLEXATTN_CACHE", str(tmp_path))
    monkeypatch.setattr(masks_of_models, "may_look", lambda device, q_length: False)
    q, k, v = (t.float() for t in features(1))
    kept = torch.ones(2, KEYS - 1, dtype=torch.bool)
    kept[0, :3] = False
    asked = {"batch_size": 2, "q_length": 1, "kv_length": KEYS, "attention_mask": kept}
    asked["mask_function"] = mask_functions()[kind]
    ours = mask(**asked, q_offset=torch.tensor(KEYS - 2))
    options = {"block_mask": ours.mod, "q_offset": ours.q_offset, "enable_gqa": True, "check": False}
    with torch.no_grad():
        found = flex_attention(q, k, v, **options, backend="triton")
    seen = of_transformers(**asked, q_offset=KEYS - 2)
    torch.testing.assert_close(found.transpose(1, 2), dense(q, k, v, seen), rtol=0, atol=1e-5)


def test_a_mask_stays_when_the_cache_counts_on(monkeypatch):
    monkeypatch.setattr(masks_of_models, "may_look", lambda device, q_length: False)
    length, kept = torch.tensor(5), torch.ones(2, KEYS, dtype=torch.bool)
    made = mask(2, 1, KEYS, length, attention_mask=kept)
    length.add_(1)
    kept.fill_(False)
    assert made.q_offset.tolist() == [5, 5]
    assert made.mod(*(torch.tensor(n) for n in (0, 0, 5, 5)))


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("heads", [1, HEADS])
@pytest.mark.parametrize("queries", [1, QUERIES])
@pytest.mark.parametrize("keys", [1, KEYS, KEYS + 2])
@pytest.mark.parametrize("offset", [0, 5, torch.tensor([5, 3])], ids=["no offset", "offset", "offsets"])
def test_a_bias_follows_the_cap_and_gets_its_gradient(batches, heads, queries, keys, offset):
    q, k, v = features()
    made = torch.Generator().manual_seed(1)
    bias = torch.randn(batches, heads, queries, keys, dtype=torch.float64, generator=made).requires_grad_()
    rows = torch.arange(QUERIES).view(1, 1, -1, 1) + torch.as_tensor(offset).view(-1, 1, 1, 1)
    seen = ModelMask(masks_of_models.CAUSAL, (2, 1, QUERIES, KEYS), offset)
    found, _ = attention(Layer().eval(), q, k, v, seen, softcap=0.7, position_bias=bias)
    expected = dense(q, k, v, torch.arange(KEYS) <= rows, bias[..., :KEYS], softcap=0.7)
    torch.testing.assert_close(found, expected)
    weight = torch.randn(found.shape, dtype=torch.float64, generator=made)
    grads = [torch.autograd.grad((out * weight).sum(), bias)[0] for out in (found, expected)]
    torch.testing.assert_close(*grads)


def test_sinks_and_their_gradient_on_a_cpu():
    q, k, v = features()
    sinks = torch.linspace(-1, 1, HEADS, dtype=torch.float64).requires_grad_()
    found, _ = attention(Layer().eval(), q, k, v, mask(2, QUERIES, KEYS, KEYS - QUERIES), s_aux=sinks, scaling=0.5)
    seen = torch.arange(KEYS) <= torch.arange(KEYS - QUERIES, KEYS)[:, None]
    expected = dense(q, k, v, seen, sinks=sinks, scaling=0.5)
    torch.testing.assert_close(found, expected)
    grads = [torch.autograd.grad(out.square().sum(), sinks)[0] for out in (found, expected)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    "batches, heads, queries", [(1, 1, 1), (2, 1, 1), (2, 1, QUERIES), (1, HEADS, 1), (2, HEADS, 1)]
)
def test_masks_of_numbers_and_of_bools_are_read(batches, heads, queries):
    q, k, v = features()
    made = torch.Generator().manual_seed(2)
    table = torch.randn(batches, heads, queries, KEYS + 1, dtype=torch.float64, generator=made)
    added, _ = attention(Layer().eval(), q, k, v, table, position_bias=2 * table)
    torch.testing.assert_close(added, dense(q, k, v, bias=3 * table[..., :KEYS]))
    hidden, _ = attention(Layer().eval(), q, k, v, table > 0)
    torch.testing.assert_close(hidden, dense(q, k, v, table[..., :KEYS] > 0))


def test_without_a_mask_a_causal_layer_is_causal_as_in_sdpa():
    q, k, v = features()
    down = torch.arange(KEYS) <= torch.arange(QUERIES)[:, None]
    near = down & (torch.arange(KEYS) > torch.arange(QUERIES)[:, None] - 2)
    layer = Layer().eval()
    torch.testing.assert_close(attention(layer, q, k, v, None)[0], dense(q, k, v, down))
    torch.testing.assert_close(attention(layer, q, k, v, None, sliding_window=2)[0], dense(q, k, v, near))
    torch.testing.assert_close(attention(layer, q, k, v, None, is_causal=False)[0], dense(q, k, v))
    one = q[:, :, :1]
    torch.testing.assert_close(attention(layer, one, k, v, None)[0], dense(one, k, v))


def test_a_block_mask_of_pytorch_is_taken():
    from torch.nn.attention.flex_attention import create_block_mask

    q, k, v = features(KEYS)
    blocks = create_block_mask(lambda b, h, i, j: i >= j, None, None, KEYS, KEYS, device="cpu")
    down = torch.ones(KEYS, KEYS, dtype=torch.bool).tril()
    torch.testing.assert_close(attention(Layer().eval(), q, k, v, blocks)[0], dense(q, k, v, down))


def test_dropout_is_that_of_a_layer_that_trains():
    q, k, v = features()
    layer = Layer()
    whole, _ = attention(layer.eval(), q, k, v, None, dropout=0.5, is_causal=False)
    torch.testing.assert_close(whole, dense(q, k, v))
    layer.train()
    torch.manual_seed(0)
    mean = sum(attention(layer, q, k, v, None, dropout=0.5, is_causal=False)[0] for _ in range(400)) / 400
    assert not torch.equal(attention(layer, q, k, v, None, dropout=0.5, is_causal=False)[0], whole)
    torch.testing.assert_close(mean, whole, rtol=0, atol=0.25)


def test_what_would_change_the_result_is_refused():
    q, k, v = features()
    with pytest.raises(UnsupportedError, match="block_indices"):
        attention(Layer(), q, k, v, None, block_indices=torch.zeros(1))
    with pytest.raises(InputError, match=r"attention_mask .*\(4, 9\)"):
        attention(Layer(), q, k, v, torch.ones(QUERIES, KEYS, dtype=torch.bool))
    with pytest.raises(InputError, match=r"position_bias .*\(4, 9\)"):
        attention(Layer(), q, k, v, None, position_bias=torch.ones(QUERIES, KEYS))
    with pytest.raises(UnsupportedError, match="cuts its attention mask"):
        mask(1, 3, 3)[:, :, :, :2]
    with pytest.warns(UserWarning, match="weights are never made"):
        attention(Layer(), q, k, v, None, output_attentions=True)


def test_a_mask_moves_to_another_device():
    made = mask(2, 3, 3, torch.tensor(0), attention_mask=torch.tensor([[True, True, True], [False, True, True]]))
    moved = made.to("meta")
    assert moved.shape == (2, 1, 3, 3)
    assert {c.device.type for c in moved.mod.captures} == {"meta"}


README = Path(masks_of_models.__file__).parents[2] / "README.md"


def test_the_example_of_the_readme_prints_what_it_says(capsys):
    code, printed = re.search(
        r"```python\n(.*?)```\n\n```text\n(.*?)```", README.read_text("utf-8"), re.DOTALL
    ).groups()
    exec(compile(code, str(README), "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("module", ["layer_attention", "model_mask", "register"])
def test_the_examples_of_docstrings_hold(module):
    found = doctest.testmod(importlib.import_module(f"torch_flexattn_transformers.{module}"))
    assert found.attempted
    assert not found.failed
