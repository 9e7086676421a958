"""What torchtitan's modules call, next to PyTorch's flex_attention and the dense formula; needs no torchtitan."""

import doctest
import gc
import importlib
import inspect
import re
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.attention import flex_attention as theirs
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch_flexattn import InputError, KindError, UnsupportedError, create_mask, listening, masks
from torch_flexattn_torchtitan import InnerAttention, attention, converted, document_mask

from .torchtitan_calls import KEYWORDS, causal, packed_documents, positions_of, same_document

LENGTHS, TOKENS, HEADS, KEY_HEADS = [37, 100, 63], 200, 6, 2


class Inner(InnerAttention, nn.Module):
    kernel_options, backend = {}, "auto"


def tensors(batch=None, dtype=torch.float32, requires_grad=False, device="cpu"):
    rng = torch.Generator().manual_seed(0)
    leading = (TOKENS,) if batch is None else (batch, TOKENS)
    made = (torch.randn(*leading, heads, 16, dtype=dtype, generator=rng) for heads in (HEADS, KEY_HEADS, KEY_HEADS))
    return [t.to(device).requires_grad_(requires_grad) for t in made]


def blocks(lengths=LENGTHS, *more):
    """A block mask as torchtitan makes it."""
    mods = causal, packed_documents(positions_of(lengths)), *more
    return theirs.create_block_mask(theirs.and_masks(*mods), 1, None, sum(lengths), sum(lengths), device="cpu")


def by_pytorch(q, k, v, mask, **options):
    """Output and ``lse`` of PyTorch's attention without a compiler."""
    packed = q.dim() == 3
    q, k, v = ((t[None] if packed else t).transpose(1, 2) for t in (q, k, v))
    aux = theirs.AuxRequest(lse=True)
    out, found = theirs.flex_attention(q, k, v, block_mask=mask, enable_gqa=True, return_aux=aux, **options)
    out, lse = out.transpose(1, 2), found.lse.transpose(1, 2)
    return (out[0], lse[0]) if packed else (out, lse)


def dense(mask, queries=TOKENS, keys=TOKENS, batch=1):
    return theirs.create_mask(mask, batch, 1, queries, keys, device="cpu")


def formula(q, k, v, visible, sinks=None):
    """The output ``[T, N, H]`` over all pairs; with a sink for each head."""
    k, v = (t.repeat_interleave(HEADS // KEY_HEADS, 1) for t in (k, v))
    scores = torch.einsum("inh,jnh->nij", q, k) / 4
    scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(HEADS, TOKENS, 1)], -1)
    return torch.einsum("nij,jnh->inh", scores.softmax(-1)[..., :TOKENS], v)


def test_the_call_is_the_one_that_was_recorded_from_torchtitan():
    _self, *others = inspect.signature(InnerAttention.forward).parameters.values()
    assert [p.kind for p in others[:3]] == [inspect.Parameter.POSITIONAL_ONLY] * 3
    assert tuple(p.name for p in others if p.kind == p.KEYWORD_ONLY) == KEYWORDS
    assert others[-1].kind == inspect.Parameter.VAR_KEYWORD
    assert [p.default for p in others[3:-1]] == [inspect.Parameter.empty, None, None, False, None]


@pytest.mark.parametrize("batch", [None, 1, 2])
def test_output_and_lse_are_those_of_pytorch_in_both_layouts(batch):
    q, k, v = tensors(batch)
    mask = blocks()
    found = attention(q, k, v, attention_masks=mask, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(found, by_pytorch(q, k, v, mask, scale=0.3))
    assert found[0].is_contiguous()


def test_a_score_modification_applies():
    q, k, v = tensors()
    slopes = torch.rand(HEADS, generator=torch.Generator().manual_seed(1))

    def alibi(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    mask = blocks()
    out = Inner()(q, k, v, attention_masks=mask, score_mod=alibi, enable_gqa=True)
    torch.testing.assert_close(out, by_pytorch(q, k, v, mask, score_mod=alibi)[0])


def test_gradients_are_those_of_the_dense_formula_through_sinks_too():
    inputs = tensors(dtype=torch.float64, requires_grad=True)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, -0.5], dtype=torch.float64, requires_grad=True)

    def rescaled(out, lse):
        return out * (lse - sinks).sigmoid().unsqueeze(-1)

    out = Inner()(*inputs, attention_masks=blocks(), enable_gqa=True, out_transform=rescaled, other="ignored")
    visible = dense(lambda b, h, i, j: (i >= j) & same_document(positions_of(LENGTHS))(b, h, i, j))[0, 0]
    expected = formula(*inputs, visible, sinks)
    torch.testing.assert_close(out, expected)
    found, wanted = (torch.autograd.grad(o.square().sum(), [*inputs, sinks]) for o in (out, expected))
    torch.testing.assert_close(found, wanted)


def test_a_block_mask_is_converted_once_for_all_layers():
    mask, calls = blocks(), []
    with listening(calls.append):
        for _ in range(3):
            Inner()(*tensors(), attention_masks=mask, enable_gqa=True)
    assert {id(call.mask) for call in calls} == {id(converted(mask))}


def test_what_a_block_mask_was_converted_to_goes_with_it():
    mask = blocks()
    ours = weakref.ref(converted(mask))
    assert ours() is not None
    del mask
    gc.collect()
    assert ours() is None


def test_blocks_that_are_not_listed_stay_hidden():
    number, listed = torch.ones(1, 1, 2, dtype=torch.int32), torch.tensor([[[[0, 1], [1, 0]]]], dtype=torch.int32)
    mask = theirs.BlockMask.from_kv_blocks(number, listed, seq_lengths=(TOKENS, TOKENS), BLOCK_SIZE=128)
    q, k, v = tensors()
    visible = dense(lambda b, h, i, j: i // 128 == j // 128)[0, 0]
    out, _ = attention(q, k, v, attention_masks=mask, enable_gqa=True)
    torch.testing.assert_close(out, formula(q, k, v, visible))


def test_the_queries_of_a_rank_see_what_they_see_in_the_whole():
    order = torch.cat([torch.arange(0, 64), torch.arange(192, 256)])  # first and last quarter, as context parallelism
    whole = theirs.and_masks(causal, packed_documents(positions_of([100, 120, 36])))
    cut = theirs.create_block_mask(lambda b, h, i, j: whole(b, h, order[i], j), 1, None, 128, 256, device="cpu")
    seen = converted(cut).to_element_mask()[0, 0]
    assert torch.equal(seen, dense(whole, 256, 256)[0, 0, order])


def test_masks_of_torch_flexattn_need_no_conversion():
    q, k, v = tensors()
    expected = attention(q, k, v, attention_masks=blocks(), enable_gqa=True)
    for mask in (
        document_mask(positions_of(LENGTHS)),
        converted(blocks()),
        theirs.and_masks(causal, packed_documents(positions_of(LENGTHS))),
    ):
        torch.testing.assert_close(attention(q, k, v, attention_masks=mask, enable_gqa=True), expected)


@pytest.mark.parametrize("mask", [None, {"basic_mask": masks.causal()}, torch.ones(3, 3, dtype=torch.bool)])
def test_what_is_no_mask_of_one_layer_is_refused(mask):
    with pytest.raises(KindError, match=f"attention_masks must be the mask of one layer, .* got {type(mask).__name__}"):
        Inner()(*tensors(), attention_masks=mask, enable_gqa=True)


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_document_mask_is_that_of_torchtitan(is_causal):
    positions = positions_of(LENGTHS)
    expected = dense(theirs.and_masks(same_document(positions), *([causal] if is_causal else [])))
    found = create_mask(document_mask(positions, causal=is_causal), 1, 1, TOKENS, TOKENS, device="cpu")
    assert torch.equal(found, expected)
    if is_causal:
        assert torch.equal(found, dense(theirs.and_masks(causal, packed_documents(positions))))


def test_document_masks_of_several_rows_and_of_a_row_that_begins_inside_a_document():
    positions = torch.stack([positions_of([3, 5, 4]), positions_of([12]) + 7, positions_of([6, 6])])
    expected = torch.cat([dense(same_document(row), 12, 12) for row in positions])
    found = create_mask(document_mask(positions, causal=False), 3, 1, 12, 12, device="cpu")
    assert torch.equal(found, expected)


def test_positions_that_are_none_are_refused():
    with pytest.raises(KindError, match=r"positions must be a tensor of integers, got torch\.float32"):
        document_mask(torch.zeros(4))
    with pytest.raises(KindError, match="positions must be a tensor of integers, got list"):
        document_mask([0, 1])
    with pytest.raises(InputError, match=r"positions must have shape \[T\] or \[B, L\], got \(1, 2, 3\)"):
        document_mask(torch.zeros(1, 2, 3, dtype=torch.long))


def test_checkpointing_that_keeps_every_result_does_not_see_the_conversion():
    def keep(context, operator, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE

    inputs, made = tensors(requires_grad=True), []

    def layer(*qkv, mask):
        return Inner()(*qkv, attention_masks=mask, enable_gqa=True).square()

    expected = torch.autograd.grad(layer(*inputs, mask=blocks()).sum(), inputs)
    with listening(made.append):
        out = checkpoint(
            layer,
            *inputs,
            mask=blocks(),
            use_reentrant=False,
            context_fn=lambda: create_selective_checkpoint_contexts(keep),
        )
        found = torch.autograd.grad(out.sum(), inputs)
    torch.testing.assert_close(found, expected)
    assert [call.backward for call in made] == [False, True]


def test_a_compiled_module_equals_itself_and_takes_new_documents_without_a_new_graph():
    inner, inputs = Inner(), tensors(requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(inner, backend="aot_eager", fullgraph=True)
    graphs = []
    for lengths in (LENGTHS, [1, 199], [50, 50, 50, 50]):
        results = []
        for module in (inner, compiled):
            out = module(*inputs, attention_masks=blocks(lengths), enable_gqa=True)
            results.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
        torch.testing.assert_close(*results)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[2]


def test_lists_of_blocks_without_a_function_are_refused_in_a_graph_but_taken_converted():
    number, listed = torch.ones(1, 1, 2, dtype=torch.int32), torch.tensor([[[[0, 1], [1, 0]]]], dtype=torch.int32)
    mask = theirs.BlockMask.from_kv_blocks(number, listed, seq_lengths=(TOKENS, TOKENS), BLOCK_SIZE=128)
    inner, inputs = Inner(), tensors()
    torch._dynamo.reset()
    compiled = torch.compile(inner, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match=r"give converted\(mask\), made outside") as raised:
        compiled(*inputs, attention_masks=mask, enable_gqa=True)
    assert "UnsupportedError" in repr(raised.value) or isinstance(raised.value, UnsupportedError)
    out = compiled(*inputs, attention_masks=converted(mask), enable_gqa=True)
    torch.testing.assert_close(out, inner(*inputs, attention_masks=mask, enable_gqa=True))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_output_and_gradients_on_a_gpu_are_those_of_the_dense_formula(dtype):
    inputs = tensors(dtype=dtype, requires_grad=True, device="cuda")
    exact = [t.detach().double().requires_grad_() for t in inputs]
    positions = positions_of(LENGTHS).cuda()
    visible = dense(theirs.and_masks(causal, same_document(positions_of(LENGTHS))))[0, 0].cuda()
    expected = formula(*exact, visible)
    wanted = torch.autograd.grad(expected.square().sum(), exact)
    on_gpu = theirs.create_block_mask(
        theirs.and_masks(causal, packed_documents(positions)), 1, None, TOKENS, TOKENS, device="cuda"
    )
    bounds = {"rtol": 2e-2, "atol": 6e-2} if dtype == torch.bfloat16 else {"rtol": 1e-3, "atol": 4e-3}
    for mask in (on_gpu, document_mask(positions)):
        out = Inner()(*inputs, attention_masks=mask, enable_gqa=True)
        torch.testing.assert_close(out.double(), expected, **bounds)
        found = torch.autograd.grad(out.square().sum(), inputs)
        torch.testing.assert_close([t.double() for t in found], list(wanted), **bounds)


PACKAGE = "torch_flexattn_torchtitan"
README = Path(importlib.import_module(PACKAGE).__file__).parents[2] / "README.md"


def test_the_example_of_the_readme_prints_what_it_says(capsys):
    found = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    exec(compile(found[1], str(README), "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out == found[2]


@pytest.mark.parametrize("module", ["attention", "block_masks", "documents", "inner_attention"])
def test_the_examples_of_docstrings_hold(module):
    found = doctest.testmod(importlib.import_module(f"{PACKAGE}.{module}"))
    assert found.attempted
    assert not found.failed
