"""`generate` gives the tokens of eager attention, whatever the cache; a step of it makes what it needs and no more."""

import pytest
import torch

pytest.importorskip("transformers", minversion="5.4", reason="transformers is not installed here")

import torch_flexattn_transformers.model_mask as masks_of_models
import transformers
from torch_flexattn import reset_stats, stats

from .transformers_models import DECODERS, ENCODER_DECODERS, LENGTH, WINDOW, by_both, padded, tiny, tokens

STEPS = 8


def generated(model, ids=None, kept=None, **options):
    ids = tokens() if ids is None else ids
    with torch.no_grad():
        return model.generate(ids, attention_mask=kept, max_new_tokens=STEPS, do_sample=False, **options)


@pytest.mark.parametrize("kind", [*DECODERS, "llama4", "gpt2"])
@pytest.mark.parametrize("cache", [None, "static"])
def test_decoders_give_the_tokens_of_eager_attention(kind, cache):
    ids, kept = padded("left")
    eager, ours = by_both(tiny(kind), lambda m: generated(m, ids, kept, cache_implementation=cache))
    assert torch.equal(ours, eager)
    assert LENGTH > 2 * WINDOW  # keys leave the windows from the first step on
    assert len(eager[:, LENGTH:].unique()) > 3


@pytest.mark.parametrize("kind", ENCODER_DECODERS)
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"cache_implementation": "static"}], ids=str)
def test_encoder_decoders_give_the_tokens_of_eager_attention(kind, options):
    ids, kept = padded("right")
    eager, ours = by_both(tiny(kind), lambda m: generated(m, ids, kept, **options))
    assert torch.equal(ours, eager)


@pytest.mark.parametrize("kind", [*DECODERS, *ENCODER_DECODERS])
@pytest.mark.parametrize("cache", [None, "static"])
def test_steps_that_read_nothing_from_the_device_give_the_same_tokens(kind, cache, monkeypatch):
    monkeypatch.setattr(masks_of_models, "may_look", lambda device, q_length: q_length > 1)
    ids, kept = padded("right" if kind in ENCODER_DECODERS else "left")
    eager, ours = by_both(tiny(kind), lambda m: generated(m, ids, kept, cache_implementation=cache))
    assert torch.equal(ours, eager)


def test_a_prompt_in_chunks_gives_the_same_tokens():
    ids, kept = padded("left")
    eager, ours = by_both(tiny("gemma2"), lambda m: generated(m, ids, kept, prefill_chunk_size=7))
    assert torch.equal(ours, eager)


def test_steps_without_padding_make_no_mask():
    model = tiny("llama")
    model.set_attn_implementation("torch_flexattn")
    reset_stats()
    generated(model)
    assert stats().masks_built == 1


def test_steps_with_padding_make_one_mask_and_record_nothing():
    ids, kept = padded("left")
    model = tiny("llama")
    model.set_attn_implementation("torch_flexattn")
    generated(model, ids, kept)
    reset_stats()
    generated(model, ids[:, 1:], kept[:, 1:])
    assert (stats().masks_built, stats().programs) == (STEPS, 0)


def test_compiled_steps_over_a_static_cache_are_no_new_graphs(monkeypatch):
    from torch._dynamo.utils import counters

    config = transformers.CompileConfig(backend="eager", fullgraph=True, mode=None, dynamic=None)
    config._compile_all_devices = True
    monkeypatch.setattr(masks_of_models, "may_look", lambda device, q_length: q_length > 1)
    ids, kept = padded("left")
    model = tiny("gemma2")
    model.set_attn_implementation("torch_flexattn")
    expected = generated(model, ids, kept)
    torch._dynamo.reset()
    counters.clear()
    found = generated(model, ids, kept, cache_implementation="static", compile_config=config)
    assert torch.equal(found, expected)
    assert (
        counters["stats"]["unique_graphs"] == 2
    )  # the place of a query in a window: first a constant, then a variable
