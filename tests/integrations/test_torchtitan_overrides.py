"""The replacements in torchtitan's own configuration; these tests need torchtitan.

They were written against torchtitan's commit b5bcd76c66d0acb1a08b176d9639425bc55e0b2a (August 2026) and hold for its
release 0.3.0, too, whose attention has another layout.
"""

import inspect

import pytest
import torch
from torch.nn.attention import flex_attention as theirs
from torch_flexattn import InputError, UnsupportedError, listening

pytest.importorskip("spmd_types", reason="torchtitan is not installed here")
pytest.importorskip("torchtitan", reason="torchtitan is not installed here")

from torch_flexattn_torchtitan import document_mask, overrides
from torch_flexattn_torchtitan.flex_attention import SIGNATURE, FlexAttention
from torchtitan.distributed import activation_checkpoint as titan_ac
from torchtitan.models.common import attention as titan

from .torchtitan_calls import KEYWORDS, LAYOUTS, positions_of


def inputs(layout):
    shape = {"q_TNH": (24,), "q_BLNH": (2, 24)}[layout[0]]
    rng = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, heads, 16, generator=rng) for heads in (4, 2, 2)]


def blocks(q):
    positions = positions_of([5, 11, 8]).expand(q.shape[:-2])
    mods = titan.get_causal_mask_mod(), titan.get_document_mask_mod(positions)
    count = q.shape[0] if q.dim() == 4 else 1
    return theirs.create_block_mask(theirs.and_masks(*mods), count, None, 24, 24, device="cpu")


def test_the_call_is_the_one_that_was_recorded():
    _self, *tensors = list(SIGNATURE.parameters)[:4]
    assert tuple(tensors) in LAYOUTS
    kinds = [p.kind for p in SIGNATURE.parameters.values()]
    assert {name for name, p in SIGNATURE.parameters.items() if p.kind == p.KEYWORD_ONLY} == set(KEYWORDS)
    assert kinds[-1] == inspect.Parameter.VAR_KEYWORD
    assert inspect.signature(FlexAttention.forward) == SIGNATURE


@pytest.mark.parametrize("by_name", [False, True])
def test_the_module_computes_what_torchtitans_does(by_name, monkeypatch):
    monkeypatch.setattr(titan.FlexAttention, "_compiled_flex_attn", staticmethod(theirs.flex_attention))
    ours = overrides.flex_attention(titan.FlexAttention.Config()).build()
    stock = titan.FlexAttention.Config().build()
    names = tuple(SIGNATURE.parameters)[1:4]
    tensors = inputs(names)
    mask = blocks(tensors[0])
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    for transform in (None, lambda out, lse: out * (lse - sinks).sigmoid().unsqueeze(-1)):
        options = {"attention_masks": mask, "scale": 0.3, "enable_gqa": True, "out_transform": transform}
        out = ours(**dict(zip(names, tensors)), **options) if by_name else ours(*tensors, **options, more=1)
        torch.testing.assert_close(out, stock(*tensors, **options))


def test_an_override_keeps_what_a_configuration_says_but_for_options_of_other_kernels():
    theirs_ = titan.FlexAttention.Config(block_size=(256, 128), kernel_options={"BACKEND": "FLASH"})
    config = overrides.flex_attention(theirs_, kernel_options={"BLOCK_N": 32}, backend="cpu")
    assert isinstance(config, titan.FlexAttention.Config)
    assert (config.block_size, config.kernel_options, config.backend) == ((256, 128), {"BLOCK_N": 32}, "cpu")
    assert isinstance(config.build(), titan.FlexAttention)
    with pytest.raises(InputError, match="unknown kernel option 'BLOCKN'"):
        overrides.flex_attention(theirs_, kernel_options={"BLOCKN": 32}).build()


def test_batch_invariant_mode_is_refused(monkeypatch):
    monkeypatch.setattr("torchtitan.distributed.utils._batch_invariant_enabled", True)
    q, k, v = inputs(tuple(SIGNATURE.parameters)[1:4])
    with pytest.raises(UnsupportedError, match="batch-invariant"):
        FlexAttention.Config().build()(q, k, v, attention_masks=blocks(q), enable_gqa=True)


@pytest.fixture
def model():
    """A model of torchtitan's whose attentions were replaced, two layers of it."""
    from torchtitan.config.override import OverrideConfig, apply_overrides
    from torchtitan.models.llama3 import model_registry

    config = model_registry("debugmodel", attn_backend="flex").model
    config.layers = config.layers[:2]
    apply_overrides(OverrideConfig(imports=["torch_flexattn_torchtitan.overrides.flex_attention"]), config)
    torch.manual_seed(0)
    built = config.build()
    built.init_states()
    return built


def arguments(model):
    batch = () if "q_TNH" in SIGNATURE.parameters else (1,)
    positions = positions_of([5, 11, 8]).expand(*batch, 24)
    tokens = torch.randint(0, 64, positions.shape, generator=torch.Generator().manual_seed(1))
    return {"tokens": tokens, "positions": positions, "attention_masks": model.get_attention_masks(positions)}


def gradients(model, **call):
    model.zero_grad()
    model(**call).square().mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def test_a_model_says_what_it_says_with_torchtitans_attention(model, monkeypatch):
    monkeypatch.setattr(titan.FlexAttention, "_compiled_flex_attn", staticmethod(theirs.flex_attention))
    call, calls = arguments(model), []
    with torch.no_grad():
        with listening(calls.append):
            ours = model(**call)
        monkeypatch.setattr(FlexAttention, "forward", titan.FlexAttention.forward)
        torch.testing.assert_close(ours, model(**call), rtol=1e-4, atol=1e-5)
    assert len(calls) == len(model.layers)
    assert ours.std() > 0.1


def test_gradients_of_a_model_are_those_of_the_dense_formula(model):
    call = arguments(model)
    found = gradients(model, **call)
    for layer in model.layers.values():
        layer.attention.inner_attention.backend = "reference"
    expected = gradients(model, **{**call, "attention_masks": document_mask(call["positions"])})
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("policy", ["SelectiveAC", "selective_ac", "FullAC"])
def test_gradients_of_a_checkpointed_model_are_those_without(model, policy):
    call, calls = arguments(model), []
    expected = gradients(model, **call)
    config = overrides.selective_ac(titan_ac.SelectiveAC.Config()) if policy == "selective_ac" else None
    (config or getattr(titan_ac, policy).Config()).build().apply(model)
    call = arguments(model)
    with listening(calls.append):
        found = gradients(model, **call)
    names = {name: name.replace("._checkpoint_wrapped_module", "") for name in found}
    torch.testing.assert_close({names[name]: grad for name, grad in found.items()}, expected)
    again = sum(not seen.backward for seen in calls) - len(model.layers)
    assert again == (0 if policy == "selective_ac" else len(model.layers))


def test_blocks_of_a_model_compile_whole(model):
    call = arguments(model)
    expected = gradients(model, **call)
    for layer in model.layers.values():
        layer.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(gradients(model, **call), expected)
