"""Functions inside ``torch.compile(fullgraph=True)``: made outside and inside, with every kind of capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch_flexattn import (
    MaskMod,
    and_masks,
    compose_scores,
    create_block_mask,
    flex_attention,
    flex_attention_varlen,
    mask_mod,
    masks,
    not_mask,
    or_masks,
    score_mod,
    scores,
)
from torch_flexattn.nn import T5RelativeBias
from torch_flexattn.trace import forget

TABLE = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
PARAMETER = nn.Parameter(torch.randn(2, 64, generator=torch.Generator().manual_seed(1)))
STEP = 3
CAPTURES = ("none", "tensor", "parameter", "scalar")
SOFTCAP = scores.softcap(2.0)
LENGTHS = (32, 40, 33)


def query(length: int) -> Tensor:
    return torch.randn(2, 2, length, 8, generator=torch.Generator().manual_seed(length)).requires_grad_()


def compiled(function: Callable[..., Any], **options: Any) -> tuple[Callable[..., Any], CompileCounterWithBackend]:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(function, fullgraph=True, backend=counter, **options), counter


def graphs_of(function: Callable[..., Tensor], calls: list[tuple[Any, ...]], **options: Any) -> list[int]:
    """How many graphs there were after each call; outputs and gradients are those without a compiler."""
    fast, counter = compiled(function, **options)
    counts = []
    for arguments in calls:
        found, expected = fast(*arguments), function(*arguments)
        torch.testing.assert_close(found, expected)
        leaves = [a for a in (*arguments, PARAMETER) if isinstance(a, Tensor) and a.requires_grad]
        for a, b in zip(*(torch.autograd.grad(x.square().sum(), leaves, allow_unused=True) for x in (found, expected))):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b)
        counts.append(counter.frame_count)
    return counts


def score_of(capture: str, step: int = STEP) -> Callable[..., Any]:
    return {
        "none": lambda s, b, h, i, j: s * 0.5 + (i - j),
        "tensor": lambda s, b, h, i, j: s + TABLE[h, i],
        "parameter": lambda s, b, h, i, j: s * PARAMETER[h, j] + PARAMETER[h][i],
        "scalar": lambda s, b, h, i, j: s + (i - j) * step,
    }[capture]


def mask_of(capture: str, step: int = STEP) -> Callable[..., Any]:
    return {
        "none": lambda b, h, i, j: i >= j,
        "tensor": lambda b, h, i, j: (i >= j) & (TABLE[h, j] > -0.5),
        "parameter": lambda b, h, i, j: (i >= j) & (PARAMETER[h, j] > -0.5),
        "scalar": lambda b, h, i, j: (i - j).abs() < step,
    }[capture]


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("make", [score_of, mask_of], ids=["score", "mask"])
@pytest.mark.parametrize("made", ["outside", "inside"])
def test_functions_take_one_graph_more_for_new_lengths_and_then_none(made: str, make: Any, capture: str) -> None:
    outside, kind = make(capture), "score_mod" if make is score_of else "mask_mod"

    def attend(q: Tensor) -> Tensor:
        return flex_attention(q, q, q, **{kind: outside if made == "outside" else make(capture)})

    assert graphs_of(attend, [(query(n),) for n in LENGTHS]) == [1, 2, 2]


@pytest.mark.parametrize("capture", ["parameter", "scalar"])
def test_both_functions_with_dynamic_shapes(capture: str) -> None:
    attend = lambda q: flex_attention(q, q, q, score_of(capture), mask_of(capture))  # noqa: E731
    counts = graphs_of(attend, [(query(n),) for n in LENGTHS], dynamic=True)
    assert counts == counts[:1] * 3


def test_a_number_that_changes_is_seen_and_takes_one_graph_more() -> None:
    def attend(q: Tensor, step: int) -> Tensor:
        return flex_attention(q, q, q, lambda s, b, h, i, j: s + (i - j) * step, lambda b, h, i, j: i - j < step)

    assert graphs_of(attend, [(query(32), step) for step in (3, 5, 7, 4)]) == [1, 2, 2, 2]


def test_a_fraction_that_changes_is_seen() -> None:
    graphs_of(
        lambda q, slope: flex_attention(q, q, q, lambda s, b, h, i, j: s * slope),
        [(query(32), slope) for slope in (0.5, 2.5, 1.25)],
    )


def test_numbers_and_tensors_of_functions_made_outside_are_not_stale() -> None:
    step, table = 3, TABLE.clone()
    fast, _ = compiled(lambda q: flex_attention(q, q, q, lambda s, b, h, i, j: s + table[h, j] * step))
    q = query(32)
    for step in (3, 4):
        for shift in (0.0, 1.0):
            table.add_(shift).mul_(1.5)
            plain = table * step
            torch.testing.assert_close(fast(q), flex_attention(q, q, q, lambda s, b, h, i, j: s + plain[h, j]))  # noqa: B023


def test_gradients_reach_what_the_region_computes_before_it_is_captured() -> None:
    def attend(q: Tensor, weight: Tensor) -> Tensor:
        bias = torch.tanh(weight) * 2
        return flex_attention(q, q, q, lambda s, b, h, i, j: s + bias[h, i - j])

    weight = torch.randn(2, 64).requires_grad_()
    assert graphs_of(attend, [(query(32), weight), (query(32).detach(), weight)])[0] == 1


def test_inputs_and_captures_may_share_storage() -> None:
    def attend(qkv: Tensor, biases: Tensor) -> Tensor:
        q, k, v = qkv.unbind(0)
        one, other = biases.unbind(0)
        return flex_attention(q, k, v, lambda s, b, h, i, j: s * one[h, i] + other[h, j])

    qkv, biases = torch.randn(3, 2, 2, 32, 8).requires_grad_(), torch.randn(2, 2, 64).requires_grad_()
    assert graphs_of(attend, [(qkv, biases)]) == [1]


def test_functions_beside_modifications_and_block_masks() -> None:
    window, soft = masks.sliding_window(9), scores.softcap(2.0)
    doc = masks.document(torch.tensor([0, 10, 64]))
    blocks = create_block_mask(window & doc, None, None, 32, 32, BLOCK_SIZE=16)
    q, one = query(32), [1]
    assert graphs_of(lambda q: flex_attention(q, q, q, score_of("parameter"), blocks), [(q,)]) == one
    assert graphs_of(lambda q: flex_attention(q, q, q, score_of("scalar"), doc), [(q,)]) == one
    assert graphs_of(lambda q: flex_attention(q, q, q, soft, mask_of("tensor")), [(q,)]) == one
    assert graphs_of(lambda q: flex_attention(q, q, q, soft, doc, mask_mod=mask_of("tensor")), [(q,)]) == one
    assert (
        graphs_of(lambda q: flex_attention(q, q, q, None, mask_of("scalar"), mask_mod=mask_of("none")), [(q,)]) == one
    )
    assert graphs_of(lambda q: flex_attention(q, q, q, soft, doc, mask_mod=window), [(q,)]) == one
    offset = torch.tensor([3, 0])
    options = {"q_offset": offset, "kv_lens": torch.tensor([32, 9]), "sinks": torch.zeros(2), "return_lse": True}
    assert (
        graphs_of(lambda q: flex_attention(q, q, q, score_of("scalar"), mask_of("none"), **options)[1], [(q,)]) == one
    )


def test_masks_named_shifted_and_parted_inside() -> None:
    """Combinations under PyTorch's names, and the methods of a mask."""
    window, doc = masks.sliding_window(9), masks.document(torch.tensor([0, 10, 64]))
    q = query(32)
    for mask in (
        lambda: and_masks(window, mask_of("tensor"), doc),
        lambda: or_masks(mask_of("none"), doc),
        lambda: not_mask(window),
        lambda: not_mask(mask_of("tensor")),
        lambda: window.shift(q=3, kv=1),
        lambda: masks.causal().shift(kv=-2) & doc,
        lambda: window.on_heads([1]) & masks.causal(),
        lambda: mask_mod(mask_of("tensor")).on_heads([0, 1]),
        lambda: MaskMod.per_batch([window, not_mask(window)]),
        lambda: MaskMod.per_batch([mask_of("scalar")]).on_heads([0]),
    ):
        assert graphs_of(lambda q, mask=mask: flex_attention(q, q, q, mask_mod=mask()), [(q,)]) == [1]


def test_modifications_made_and_combined_inside() -> None:
    window, doc, soft = masks.sliding_window(9), masks.document(torch.tensor([0, 10, 64])), scores.softcap(2.0)
    q, one = query(32), [1]
    for mask in (
        lambda: window & doc,
        lambda: window | doc,
        lambda: lambda b, h, i, j: ~window(b, h, i, j),
        lambda: mask_mod(mask_of("tensor")) & window,
        lambda: window & mask_of("tensor"),
        lambda: masks.causal() & masks.sliding_window(4),
        lambda: masks.causal("bottom_right", q_len=32, kv_len=32) & masks.always(),
        lambda: masks.causal("bottom_right"),
        lambda: lambda b, h, i, j: doc(b, h, i, j) & (i >= j),
    ):
        assert graphs_of(lambda q, mask=mask: flex_attention(q, q, q, mask_mod=mask()), [(q,)]) == one
    for score in (
        lambda: soft.then(score_of("parameter")),
        lambda: score_mod(score_of("parameter")).then(soft),
        lambda: compose_scores(scores.softcap(4.0), score_of("scalar"), soft),
    ):
        assert graphs_of(lambda q, score=score: flex_attention(q, q, q, score()), [(q,)]) == one


def test_numbers_of_masks_made_inside_take_one_graph_more_and_then_none() -> None:
    attend = lambda q, width: flex_attention(q, q, q, mask_mod=masks.sliding_window(width))  # noqa: E731
    assert graphs_of(attend, [(query(32), width) for width in (3, 5, 9, 4)]) == [1, 2, 2, 2]


def test_a_learnt_bias_of_distances_inside() -> None:
    bias = T5RelativeBias(8, 2, max_distance=16)

    def attend(q: Tensor, weight: Tensor) -> Tensor:
        return flex_attention(q, q, q, bias.score_mod())

    assert graphs_of(attend, [(query(n), bias.weight) for n in LENGTHS]) == [1, 2, 2]


def test_masks_made_inside_take_no_new_graph_for_new_tables() -> None:
    def attend(q: Tensor, starts: Tensor) -> Tensor:
        return flex_attention(q, q, q, mask_mod=masks.causal() & masks.document(starts, total=32))

    assert graphs_of(attend, [(query(32), torch.tensor([0, n, 32])) for n in (5, 9, 31)]) == [1, 1, 1]


@pytest.mark.parametrize("made", ["object", "function"])
def test_packed_sequences_take_one_graph_more_for_new_lengths_and_then_none(made: str) -> None:
    mask, score = masks.sliding_window(6), scores.alibi(2)
    if made == "function":
        mask, score = mask_of("scalar"), score_of("parameter")

    def attend(x: Tensor, starts: Tensor) -> Tensor:
        return flex_attention_varlen(x, x, x, starts, starts, score_mod=score, mask_mod=mask)

    calls = [(query(n).detach()[0].transpose(0, 1), torch.tensor([0, 7, 7, n])) for n in LENGTHS]
    calls = [(x.requires_grad_(), starts) for x, starts in calls]
    assert graphs_of(attend, calls) == [1, 2, 2]
    assert graphs_of(lambda x, starts: flex_attention_varlen(x, x, x, starts, starts), calls[:1]) == [1]


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_take_packed_sequences(strict: bool) -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor, starts: Tensor) -> Tensor:
            return flex_attention_varlen(x, x, x, starts, starts, score_mod=SOFTCAP, mask_mod=mask_of("none"))

    torch._dynamo.reset()
    x = query(32).detach()[0].transpose(0, 1)
    program = torch.export.export(Model(), (x, torch.tensor([0, 7, 7, 32])), strict=strict).module()
    for first in (7, 20):
        starts = torch.tensor([0, first, 25, 32])
        torch.testing.assert_close(program(x, starts), Model()(x, starts))


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_carry_functions(strict: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(TABLE.clone())

        def forward(self, q: Tensor) -> Tensor:
            bias = self.bias
            return flex_attention(q, q, q, lambda s, b, h, i, j: s + bias[h, j], lambda b, h, i, j: i >= j)

    torch._dynamo.reset()
    model, length = Model(), torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(model, (query(32).detach(),), dynamic_shapes=({2: length},), strict=strict)
    for n in (41, 2):
        torch.testing.assert_close(program.module()(query(n).detach()), model(query(n).detach()))


def test_a_block_mask_beside_a_function_is_refused() -> None:
    blocks = create_block_mask(masks.sliding_window(9), None, None, 32, 32, BLOCK_SIZE=16)
    fast, _ = compiled(lambda q: flex_attention(q, q, q, None, blocks, mask_mod=mask_of("none")))
    with pytest.raises(Exception, match="combine the masks with & instead"):
        fast(query(32))


def test_the_dense_backend_does_not_drop_functions() -> None:
    attend = lambda q: flex_attention(q, q, q, mask_mod=mask_of("none"), backend="reference")  # noqa: E731
    with pytest.raises(Exception, match=r"takes no functions under torch\.compile"):
        compiled(attend)[0](query(32))
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(attend, backend="eager")(query(32)), attend(query(32)))


def test_what_dynamo_cannot_read_leaves_the_graph_and_is_right() -> None:
    hidden = torch.compiler.disable(mask_of("none"))

    def attend(q: Tensor) -> Tensor:
        return flex_attention(q * 2, q, q, score_of("parameter"), lambda b, h, i, j: hidden(b, h, i, j), kv_lens=None)

    torch._dynamo.reset()
    q = query(32)
    found, expected = torch.compile(attend, backend="aot_eager")(q), attend(q)
    torch.testing.assert_close(found, expected)
    for a, b in zip(*(torch.autograd.grad(x.square().sum(), (q, PARAMETER)) for x in (found, expected)), strict=True):
        torch.testing.assert_close(a, b)


def test_what_no_kernel_can_do_is_said_with_the_line() -> None:
    fast, _ = compiled(lambda q: flex_attention(q, q, q, lambda s, b, h, i, j: s + TABLE.sum(0)[i]))
    with pytest.raises(Exception, match=r"the mod at test_compile_functions.py:\d+ calls sum"):
        fast(query(32))


@pytest.mark.parametrize(
    "make",
    [
        lambda q, blocks: create_block_mask(lambda b, h, i, j: i - j < 5, None, None, q.shape[2], q.shape[2]),
        lambda q, blocks: blocks.crop(q.shape[2], q.shape[2]),
        lambda q, blocks: blocks.slice_q(0, q.shape[2]),
        lambda q, blocks: blocks[:, :, 0],
    ],
    ids=["create", "crop", "slice_q", "index"],
)
def test_block_masks_made_inside_break_the_graph_once_and_say_the_remedy(make: Any) -> None:
    blocks, q, kv = create_block_mask(masks.sliding_window(9), None, None, 64, 32, BLOCK_SIZE=32), query(32), query(32)
    attend = lambda q: flex_attention(q * 2, kv, kv, block_mask=make(q, blocks))  # noqa: E731
    fast, _ = compiled(attend)
    with pytest.raises(Exception, match="make or cut it outside of the compiled function and pass it in"):
        fast(q)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    torch.testing.assert_close(torch.compile(attend, backend=counter)(q), attend(q))
    assert counter.frame_count == 2


@pytest.mark.parametrize("strict", [False, True])
def test_a_saved_export_of_a_function_never_recorded_before_can_be_loaded(tmp_path, strict):
    """What recording calls must not become a part of the exporter's graph."""

    class Layer(torch.nn.Module):
        def forward(self, q):
            return flex_attention(q, q, q, mask_mod=lambda b, h, i, j: i - 3 >= j)

    forget()
    q = torch.randn(1, 2, 10, 8)
    torch.export.save(torch.export.export(Layer(), (q,), strict=strict), tmp_path / "layer.pt2")
    torch.testing.assert_close(torch.export.load(tmp_path / "layer.pt2").module()(q), Layer()(q))
