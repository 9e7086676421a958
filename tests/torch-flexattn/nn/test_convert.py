"""PyTorch's transformer layers go on as they are, on this package's attention."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_flexattn import masks
from torch_flexattn.nn import FlexMultiheadAttention, convert_mha_

B, L, S, E, H = 3, 6, 5, 16, 4


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(B, L, E)


def encoder(layers: int = 0, **options) -> nn.Module:
    one = nn.TransformerEncoderLayer(E, H, 32, dropout=0.0, batch_first=True, **options)
    return nn.TransformerEncoder(one, layers) if layers else one


@pytest.mark.parametrize("layers", [0, 2])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mask", ["padding", "causal"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_computes_the_same(x, layers, training, mask):
    model = encoder(layers).train(training)
    hidden = torch.zeros(B, L, dtype=torch.bool)
    hidden[1, 4:] = True
    if mask == "padding":
        options = {"src_key_padding_mask": hidden}
    else:
        options = {
            "mask" if layers else "src_mask": nn.Transformer.generate_square_subsequent_mask(L),
            "is_causal": True,
        }
        hidden = torch.zeros_like(hidden)
    with torch.set_grad_enabled(training):
        expected = model(x, **options)
        assert len(convert_mha_(model).modules) == max(layers, 1)
        torch.testing.assert_close(model(x, **options)[~hidden], expected[~hidden])


@pytest.mark.parametrize("training", [True, False])
def test_a_decoder_computes_the_same(x, training):
    model = nn.TransformerDecoderLayer(E, H, 32, dropout=0.0, batch_first=True).train(training)
    memory = torch.randn(B, S, E)
    mask = nn.Transformer.generate_square_subsequent_mask(L)
    expected = model(x, memory, tgt_mask=mask, tgt_is_causal=True)
    assert convert_mha_(model).modules == ("self_attn", "multihead_attn")
    torch.testing.assert_close(model(x, memory, tgt_mask=mask, tgt_is_causal=True), expected)


def test_the_fused_path_does_not_pass_the_mods_by(x):
    model = encoder().eval()
    convert_mha_(model)
    model.self_attn.mask_mod = masks.causal()
    with torch.no_grad():
        first, second = model(x), model(torch.cat([x[:, :3], x[:, 3:].flip(1)], 1))
    assert torch.equal(first[:, :3], second[:, :3])
    assert not torch.allclose(first[:, 3:], second[:, 3:])


def test_modules_parameters_and_hooks_stay_the_same_objects(x):
    model = encoder(2)
    modules, parameters = dict(model.named_modules()), {n: id(p) for n, p in model.named_parameters()}
    called = []
    model.layers[0].self_attn.register_forward_hook(lambda *_: called.append(1))
    convert_mha_(model)
    assert dict(model.named_modules()) == modules
    assert {n: id(p) for n, p in model.named_parameters()} == parameters
    model(x)
    assert called == [1]


def test_the_model_itself_and_shared_modules_are_converted():
    attention = nn.MultiheadAttention(E, H)
    assert convert_mha_(attention).modules == ("",)
    assert type(attention) is FlexMultiheadAttention
    shared = nn.MultiheadAttention(E, H)
    assert convert_mha_(nn.ModuleList([shared, shared])).modules == ("0",)
    assert convert_mha_(shared).modules == ()


def test_what_is_not_converted_is_said():
    class Own(nn.MultiheadAttention):
        pass

    model = nn.ModuleList([Own(E, H), nn.MultiheadAttention(E, H)])
    done = convert_mha_(model)
    assert done.modules == ("1",)
    assert "Own" in done.left["0"]
    assert type(model[0]) is Own


def test_a_converted_module_can_be_initialised_anew():
    attention = nn.MultiheadAttention(E, H)
    convert_mha_(attention)
    before = attention.in_proj_weight.clone()
    attention._reset_parameters()
    assert not torch.equal(attention.in_proj_weight, before)
    assert attention._qkv_same_embed_dim is False
