"""Models of transformers say the same with attn_implementation="torch_flexattn" as with eager attention."""

import pytest
import torch

pytest.importorskip("transformers", minversion="5.4", reason="transformers is not installed here")

import torch_flexattn_transformers  # noqa: F401  registers the implementation
from torch_flexattn import listening, reset_stats, stats

from .transformers_models import DECODERS, ENCODER_DECODERS, LENGTH, PADDED, by_both, padded, tiny, tokens

FP32 = {"rtol": 0, "atol": 1e-5}


def test_a_model_is_loaded_with_it(tmp_path):
    from transformers import AutoModel

    tiny("bert").save_pretrained(tmp_path)
    model = AutoModel.from_pretrained(tmp_path, attn_implementation="torch_flexattn")
    assert model.config._attn_implementation == "torch_flexattn"
    calls = []
    with torch.no_grad(), listening(calls.append):
        model(tokens())
    assert len(calls) == 2


@pytest.mark.parametrize("kind", [*DECODERS, "llama4", "gpt2"])
def test_logits_of_decoders_equal_eager_ones(kind):
    ids, kept = padded("left")

    @torch.no_grad()
    def logits(model):
        return model(tokens()).logits, model(ids, attention_mask=kept).logits[kept.bool()]

    eager, ours = by_both(tiny(kind), logits)
    torch.testing.assert_close(ours, eager, **FP32)
    assert eager[0].std() > 0.1


def test_an_encoder_equals_its_eager_self_with_padding_on_the_right():
    ids, kept = padded("right")

    @torch.no_grad()
    def states(model):
        return model(tokens()).last_hidden_state, model(ids, attention_mask=kept).last_hidden_state[kept.bool()]

    eager, ours = by_both(tiny("bert"), states)
    torch.testing.assert_close(ours, eager, **FP32)


@pytest.mark.parametrize("kind", ENCODER_DECODERS)
def test_logits_and_gradients_of_encoder_decoders_equal_eager_ones(kind):
    ids, kept = padded("right")

    def step(model):
        out = model(input_ids=ids, attention_mask=kept, labels=tokens())
        out.loss.backward()
        grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        return out.logits.detach(), grads

    eager, ours = by_both(tiny(kind).double(), step)
    torch.testing.assert_close(ours, eager)
    bias = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    assert kind != "t5" or eager[1][bias].abs().max() > 1e-3


@pytest.mark.parametrize("kind", ENCODER_DECODERS)
def test_logits_of_encoder_decoders_equal_eager_ones_in_float32(kind):
    ids, kept = padded("right")

    @torch.no_grad()
    def logits(model):
        found = model(input_ids=ids, attention_mask=kept, decoder_input_ids=tokens()).logits
        return found / found.std()

    eager, ours = by_both(tiny(kind), logits)
    torch.testing.assert_close(ours, eager, **FP32)


@pytest.mark.parametrize("kind", DECODERS)
def test_gradients_of_a_training_step_equal_eager_ones(kind):
    ids, kept = padded("left")

    def step(model):
        model.train()
        model(ids, attention_mask=kept, labels=labels).loss.backward()
        grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        return grads

    labels = torch.where(kept.bool(), ids, -100)
    labels[0, PADDED] = -100  # told by padding, which sees nothing: eager attention makes it see everything
    model = tiny(kind)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.0
    eager, ours = by_both(model, step)
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)
    sinks = "model.layers.0.self_attn.sinks"
    assert kind != "gpt_oss" or eager[sinks].abs().max() > 1e-4


def test_sequences_packed_in_a_row_do_not_see_each_other():
    lengths = (5, LENGTH - 5)
    places = torch.cat([torch.arange(n) for n in lengths])[None].expand(2, -1)

    @torch.no_grad()
    def logits(model):
        return model(tokens(), position_ids=places, use_cache=False).logits

    eager, ours = by_both(tiny("gemma2"), logits)
    torch.testing.assert_close(ours, eager, **FP32)
    with torch.no_grad():
        alone = tiny("gemma2")(tokens()[:, 5:]).logits
    torch.testing.assert_close(ours[:, 5:], alone, **FP32)


def test_dropout_holds_while_training_only():
    model = tiny("llama")
    model.set_attn_implementation("torch_flexattn")
    with torch.no_grad():
        first, again = model(tokens()).logits, model(tokens()).logits
        model.train()
        torch.manual_seed(0)
        dropped, other = model(tokens()).logits, model(tokens()).logits
        torch.manual_seed(0)
        repeated = model(tokens()).logits
    assert torch.equal(first, again)
    assert not torch.allclose(dropped, first, atol=1e-2)
    assert not torch.allclose(dropped, other, atol=1e-2)
    assert torch.equal(repeated, dropped)


def test_all_layers_of_a_kind_share_one_mask():
    ids, kept = padded("left")
    model = tiny("llama")
    model.set_attn_implementation("torch_flexattn")
    for forward in (torch.no_grad, torch.inference_mode):
        reset_stats()
        with forward():
            model(ids, attention_mask=kept)
        assert (stats().masks_built, stats().masks_reused) == (1, 1)


@pytest.mark.slow
def test_a_compiled_model_equals_itself_at_every_length():
    model = tiny("llama")
    model.set_attn_implementation("torch_flexattn")
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    frames = []
    with torch.no_grad():
        for length in (19, 17, 13, 11):
            torch.testing.assert_close(compiled(tokens()[:, :length]).logits, model(tokens()[:, :length]).logits)
            frames.append(torch._dynamo.utils.counters["frames"]["ok"])
    assert frames[1] == frames[2] == frames[3]
