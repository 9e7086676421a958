"""``flex_attention`` against dense attention in float64, over its options; and what it refuses."""

# ruff: noqa: B023 - loops here record functions over their variables, and run them at once

from __future__ import annotations

import copy
import itertools
import math
import pickle
import threading

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as theirs
from torch_flexattn import (
    AuxRequest,
    BlockMask,
    FlexAttentionError,
    InputError,
    KindError,
    PagedKVCache,
    UnsupportedError,
    create_block_mask,
    flex_attention,
    forget_masks,
    mask_mod,
    masks,
    masks_of_calls,
    score_mod,
    scores,
)
from torch_flexattn.kernels.choose import kernels_for

CAUSAL = lambda b, h, q, kv: q >= kv  # noqa: E731


def features(
    *sizes: int,
    batch: int = 2,
    heads: int = 4,
    kv_heads: int = 4,
    dtype=torch.float32,
    kv_batch: int | None = None,
    grad=False,
):
    """Query, key and value; ``sizes``: L, S, E, Ev."""
    rows, keys, width, width_v = sizes
    generator = torch.Generator().manual_seed(rows * 1000 + keys)
    kv_batch = batch if kv_batch is None else kv_batch
    shapes = (batch, heads, rows, width), (kv_batch, kv_heads, keys, width), (kv_batch, kv_heads, keys, width_v)
    made = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    return [t.requires_grad_(grad) for t in made]


def agree(q: Tensor, k: Tensor, v: Tensor, *leaves: Tensor, dense: dict[str, object] | None = None, **options) -> None:
    """Output, lse and all gradients of both backends; ``dense``: what the second takes instead."""
    inputs = [t for t in (q, k, v, *leaves) if t.requires_grad]
    results, gradients = [], []
    for backend in ("auto", "reference"):
        given = {**options, **(dense or {})} if backend == "reference" else options
        out, aux = flex_attention(q, k, v, backend=backend, return_aux=AuxRequest(True, True), **given)
        generator = torch.Generator().manual_seed(5)
        loss = (out * torch.randn(out.shape, generator=generator, dtype=torch.float64)).sum()
        lse = aux.lse.masked_fill(aux.lse == float("-inf"), 0)
        loss = loss + (lse * torch.randn(lse.shape, generator=generator, dtype=torch.float64)).sum()
        gradients.append(torch.autograd.grad(loss, inputs, allow_unused=True) if inputs else ())
        results.append((out, aux.lse, aux.max_scores))
    slack = {torch.float64: 1e-11, torch.float32: 3e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}[q.dtype]
    for a, b in zip(*results):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=slack, atol=slack)
    for a, b, of in zip(*gradients, inputs):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == of.dtype
            assert a.shape == of.shape
            own = max(slack, 3e-5) if of.dtype == torch.float32 else slack  # autograd sums in the type of the leaf
            torch.testing.assert_close(a, b, rtol=own, atol=own)


MASKS = {
    "none": dict,
    "function": lambda: {"block_mask": CAUSAL},
    "mask": lambda: {"block_mask": masks.sliding_window(7)},
    "mask_mod": lambda: {"mask_mod": masks.causal()},
    "both": lambda: {"block_mask": masks.causal(), "mask_mod": lambda b, h, q, kv: (q - kv) < 9},
    "blocks": lambda: {"block_mask": create_block_mask(masks.causal(), None, None, 37, 45, BLOCK_SIZE=16)},
    "blocks and mask_mod": lambda: {
        "block_mask": create_block_mask(CAUSAL, None, None, 37, 45, BLOCK_SIZE=16),
        "mask_mod": masks.sliding_window(8),
    },
    "by batch and head": lambda: {"block_mask": lambda b, h, q, kv: (q + b) // 3 >= kv // (h + 1)},
    "nothing for some": lambda: {"block_mask": lambda b, h, q, kv: (q > kv) & (h != 1)},
    "PyTorch's": lambda: {
        "block_mask": theirs.create_block_mask(CAUSAL, None, None, 37, 45, device="cpu"),
        "dense": {"block_mask": CAUSAL},
    },
}


def test_the_dense_backend_takes_no_lists_of_blocks() -> None:
    q, k, v = features(37, 45, 8, 12)
    with pytest.raises(UnsupportedError, match="list of blocks"):
        flex_attention(q, k, v, backend="reference", block_mask=MASKS["PyTorch's"]()["block_mask"])


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("modified", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_masks_with_and_without_score_modification(name: str, modified: bool, grad: bool) -> None:
    q, k, v = features(37, 45, 8, 12, grad=grad)
    table = torch.randn(4, 90, generator=torch.Generator().manual_seed(0)).requires_grad_(grad)
    mod = (lambda s, b, h, i, j: torch.tanh(s) + table[h, i - j + 44]) if modified else None
    agree(q, k, v, table, score_mod=mod, **MASKS[name]())


OPTIONS = {
    "q_offset": lambda: {"q_offset": 8, "block_mask": masks.causal()},
    "q_offset by batch": lambda: {"q_offset": torch.tensor([0, 20]), "block_mask": CAUSAL},
    "q_offset int32": lambda: {"q_offset": torch.tensor([3, 1], dtype=torch.int32), "score_mod": scores.alibi(4)},
    "kv_lens": lambda: {"kv_lens": torch.tensor([13, 45])},
    "kv_lens 0": lambda: {"kv_lens": torch.tensor([0, 31]), "block_mask": masks.causal()},
    "dropout": lambda: {"dropout_p": 0.4, "seed": 123456789012},
    "dropout, offset": lambda: {"dropout_p": 0.2, "seed": 3, "q_offset": torch.tensor([5, 9]), "block_mask": CAUSAL},
    "scale": lambda: {"scale": 0.25},
    "all": lambda: {
        "q_offset": torch.tensor([7, 0]),
        "kv_lens": torch.tensor([29, 40]),
        "dropout_p": 0.1,
        "seed": 0,
        "scale": -0.3,
        "block_mask": masks.sliding_window(11),
        "score_mod": scores.softcap(3.0),
    },
}


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str, sinks: bool) -> None:
    q, k, v = features(37, 45, 8, 8, grad=True)
    sink = torch.tensor([0.5, -1.0, float("-inf"), 2.0], requires_grad=True) if sinks else None
    agree(q, k, v, *([sink] if sinks else []), sinks=sink, **OPTIONS[name]())


@pytest.mark.parametrize(("heads", "kv_heads", "kv_batch"), [(4, 2, None), (6, 2, 1), (5, 1, None), (3, 3, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_grouped_heads_shared_batches_and_types(
    heads: int, kv_heads: int, kv_batch: int | None, dtype: torch.dtype
) -> None:
    q, k, v = features(21, 33, 8, 4, batch=3, heads=heads, kv_heads=kv_heads, kv_batch=kv_batch, dtype=dtype, grad=True)
    slopes = torch.linspace(0.1, 1, heads).requires_grad_()
    agree(
        q,
        k,
        v,
        slopes,
        block_mask=masks.causal(),
        score_mod=lambda s, b, h, i, j: s - slopes[h] * (i - j),
        enable_gqa=True,
    )


@pytest.mark.parametrize(("batch", "rows", "keys"), [(2, 0, 5), (2, 5, 0), (0, 5, 5), (2, 0, 0), (1, 1, 1)])
def test_empty_inputs(batch: int, rows: int, keys: int) -> None:
    q, k, v = features(rows, keys, 4, 6, batch=batch, grad=True)
    table, sinks = torch.zeros(4, requires_grad=True), torch.zeros(4, requires_grad=True)
    for options in (
        {},
        {"block_mask": CAUSAL},
        {"score_mod": lambda s, b, h, i, j: s + table[h]},
        {"sinks": sinks},
        {"dropout_p": 0.5},
    ):
        out, lse = flex_attention(q, k, v, return_lse=True, **options)
        assert out.shape == (batch, 4, rows, 6)
        assert lse.shape == (batch, 4, rows)
        if keys == 0:
            assert not out.any()
            assert torch.equal(
                lse, torch.zeros_like(lse) if "sinks" in options else torch.full_like(lse, float("-inf"))
            )
        found = torch.autograd.grad(out.sum(), (q, k, v, table, sinks), allow_unused=True)
        assert all(g is None or g.isfinite().all() for g in found)


def test_no_heads() -> None:
    out = flex_attention(torch.zeros(2, 0, 3, 4), torch.zeros(2, 0, 5, 4), torch.zeros(2, 0, 5, 4))
    assert out.shape == (2, 0, 3, 4)
    none = torch.zeros(2, 0, 3, 4)
    assert flex_attention(none, none, none, backend="reference").shape == (2, 0, 3, 4)


def test_strided_inputs_and_the_order_of_the_output() -> None:
    whole = torch.randn(2, 9, 3 * 4 * 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    q, k, v = (part.view(2, 9, 4, 8).transpose(1, 2) for part in whole.chunk(3, -1))
    out = flex_attention(q, k, v, block_mask=CAUSAL)
    assert out.stride() == torch.empty(2, 9, 4, 8).transpose(1, 2).stride()
    expected = flex_attention(q.contiguous(), k.contiguous(), v.contiguous(), block_mask=CAUSAL)
    torch.testing.assert_close(out, expected)
    agree(q[..., ::2].detach().requires_grad_(), k[..., ::2], v.flip(-1), block_mask=CAUSAL)
    expanded = q[:, :1].expand(2, 4, 9, 8)
    torch.testing.assert_close(flex_attention(expanded, k, v), flex_attention(expanded.contiguous(), k, v))


@pytest.mark.parametrize("score", [None, lambda s, b, h, i, j: s + 0.1 * i], ids=["fused", "by blocks"])
@pytest.mark.parametrize("length", [9, 300])
@pytest.mark.parametrize("apart", ["query", "key", "value", "every second", "gradient", "one gradient"])
def test_features_that_do_not_lie_side_by_side(apart: str, length: int, score: object) -> None:
    def turned(t: Tensor) -> Tensor:
        return t.transpose(2, 3).contiguous().transpose(2, 3)

    given = dict(zip(("query", "key", "value"), features(length, length, 2, 2, grad=True)))
    laid = {name: turned(t.detach()).requires_grad_() if name == apart else t for name, t in given.items()}
    if apart == "every second":
        laid = {name: t.detach().repeat_interleave(2, 3)[..., ::2].requires_grad_() for name, t in given.items()}
    generator = torch.Generator().manual_seed(1)
    weight = torch.rand(1 if apart == "one gradient" else given["query"].shape, generator=generator)
    weight = turned(weight) if apart == "gradient" else weight.expand_as(given["query"])
    found, expected = (
        flex_attention(*tensors.values(), score, CAUSAL, backend=backend)
        for tensors, backend in ((laid, "auto"), (given, "reference"))
    )
    torch.testing.assert_close(found, expected)
    pairs = zip(*(torch.autograd.grad(o, t.values(), weight) for o, t in ((found, laid), (expected, given))))
    for of_laid, of_given in pairs:
        torch.testing.assert_close(of_laid, of_given)


@pytest.mark.parametrize("needs", list(itertools.product([False, True], repeat=4)))
def test_gradients_are_those_asked_for(needs: tuple[bool, ...]) -> None:
    q, k, v = (t.requires_grad_(need) for t, need in zip(features(9, 9, 4, 4), needs))
    table = torch.zeros(4, requires_grad=needs[3])
    out = flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[h] * i)
    assert out.requires_grad == any(needs)
    if any(needs):
        out.sum().backward()
        assert [t.grad is not None for t in (q, k, v, table)] == list(needs)


def test_no_grad_and_inference_mode() -> None:
    q, k, v = features(9, 9, 4, 4, grad=True)
    with torch.no_grad():
        assert not flex_attention(q, k, v, block_mask=CAUSAL).requires_grad
    with torch.inference_mode():
        made_here = torch.tensor([0, 4, 9], dtype=torch.int32)
        flex_attention(q, k, v, block_mask=masks.document(made_here))
        mask = create_block_mask(CAUSAL, None, None, 9, 9)
        flex_attention(q, k, v, block_mask=masks.causal())
    flex_attention(q, k, v, block_mask=mask).sum().backward()
    flex_attention(q, k, v, block_mask=masks.causal()).sum().backward()


# What may change between forward and backward, and between calls


def test_changing_what_backward_reads_is_an_error() -> None:
    q, k, v = features(9, 9, 4, 4, grad=True)
    table, limit = torch.zeros(9, requires_grad=True), torch.full((9,), 5)
    lens, offset, sinks = torch.tensor([9, 5]), torch.tensor([0, 1]), torch.zeros(4, requires_grad=True)
    for changed in (table, limit, lens, offset, sinks, q, v):
        out = flex_attention(
            q,
            k,
            v,
            score_mod=lambda s, b, h, i, j: s * table[i],
            block_mask=lambda b, h, i, j: limit[i % 9] >= j,
            kv_lens=lens,
            q_offset=offset,
            sinks=sinks,
            check=False,
        )
        with torch.no_grad():
            changed.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()
        with torch.no_grad():
            changed.sub_(1)


def test_a_mask_is_built_once_and_again_when_its_tensor_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_masks()
    built = []
    build = masks_of_calls.built
    monkeypatch.setattr(masks_of_calls, "built", lambda *args, **options: built.append(1) or build(*args, **options))
    q, k, v = features(9, 9, 4, 4)
    limit = torch.full((9,), 5)
    mask = lambda b, h, i, j: limit[i] >= j  # noqa: E731
    first = flex_attention(q, k, v, block_mask=mask)
    again = flex_attention(q, k, v, block_mask=lambda b, h, i, j: limit[i] >= j)
    assert len(built) == 1  # another function, the same program
    assert torch.equal(first, flex_attention(q, k, v, block_mask=mask))
    assert len(built) == 1
    limit.sub_(3)
    changed = flex_attention(q, k, v, block_mask=mask)
    assert len(built) == 2
    torch.testing.assert_close(changed, flex_attention(q, k, v, block_mask=mask, backend="reference"))
    assert not torch.equal(first, changed)
    torch.testing.assert_close(first, again)


def test_masks_over_large_tensors_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_masks()
    monkeypatch.setattr(masks_of_calls, "KEPT_BYTES", 3000)
    q, k, v = features(9, 9, 4, 4)
    for _ in range(4):
        allowed = torch.ones(16, 64, dtype=torch.bool)  # 1,024 bytes
        flex_attention(q, k, v, block_mask=lambda b, h, i, j, allowed=allowed: allowed[i, j])
        held = {id(t) for _, tensors in masks_of_calls._masks.values() for t in tensors}
        assert len(held) <= 2
    assert len(masks_of_calls._masks) == 2


def test_offsets_in_new_tensors_are_new_masks() -> None:
    """Addresses of tensors that are gone are given to new ones."""
    mask, shape, block = masks.causal(), (1, 1, 16, 256), (16, 16)
    for step in range(40):
        offset = torch.tensor([step % 5 * 16])
        found = masks_of_calls.block_mask_of(mask, shape, block, torch.device("cpu"), offset)
        assert found.nnz_blocks() == (1, step % 5)
        del offset


def test_captured_tensors_in_new_places_are_new_masks() -> None:
    q, k, v = features(8, 8, 4, 4)
    for step in range(20):
        limit = torch.full((8,), step % 8)
        found = flex_attention(q, k, v, block_mask=lambda b, h, i, j: j <= limit[i])
        expected = flex_attention(q, k, v, block_mask=lambda b, h, i, j: j <= step % 8)
        torch.testing.assert_close(found, expected)


def test_few_masks_are_remembered() -> None:
    forget_masks()
    q, k, v = features(8, 8, 4, 4)
    for window in range(1, masks_of_calls.KEPT + 10):
        flex_attention(q, k, v, block_mask=masks.sliding_window(window))
    assert len(masks_of_calls._masks) == masks_of_calls.KEPT


def test_masks_over_inference_tensors_are_not_remembered() -> None:
    forget_masks()
    q, k, v = features(8, 8, 4, 4)
    with torch.inference_mode():
        limit = torch.full((8,), 2)
        first = flex_attention(q, k, v, block_mask=lambda b, h, i, j: j <= limit[i])
        limit.add_(3)
        second = flex_attention(q, k, v, block_mask=lambda b, h, i, j: j <= limit[i])
    assert not masks_of_calls._masks
    torch.testing.assert_close(second, flex_attention(q, k, v, block_mask=lambda b, h, i, j: j <= 5))
    assert not torch.equal(first, second)


def test_threads_share_masks() -> None:
    forget_masks()
    q, k, v = features(40, 40, 4, 4)
    expected = {
        w: flex_attention(q, k, v, block_mask=masks.sliding_window(w), backend="reference") for w in range(1, 6)
    }
    wrong: list[object] = []

    def work(w: int) -> None:
        try:
            for _ in range(5):
                torch.testing.assert_close(
                    flex_attention(q, k, v, block_mask=masks.sliding_window(w)), expected[w], rtol=1e-4, atol=1e-5
                )
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(1 + n % 5,)) for n in range(10)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_double_backward_says_what_to_use() -> None:
    q, k, v = features(5, 5, 4, 4, grad=True)
    out = flex_attention(q, k, v)
    with pytest.raises(NotImplementedError, match="backend='reference'"):
        torch.autograd.grad(out.sum(), q, create_graph=True)
    out = flex_attention(q, k, v, backend="reference")
    (grad,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    assert torch.autograd.grad(grad.square().sum(), k)[0].isfinite().all()


# Bad input


def bad(message: str, kind: type, **changes):
    return pytest.param(message, kind, changes, id=message[:40])


Q, K = torch.zeros(2, 4, 8, 16), torch.zeros(2, 4, 8, 16)
OTHER = torch.device("meta")


@pytest.mark.parametrize(
    ("message", "kind", "changes"),
    [
        bad(r"query must have shape .*got \(4, 8, 16\)", InputError, query=Q[0]),
        bad(r"equally many features.*query \(2, 4, 8, 16\), key \(2, 4, 8, 12\)", InputError, key=K[..., :12]),
        bad("at least one", InputError, query=Q[..., :0], key=K[..., :0]),
        bad(r"same batch, heads and length.*value \(2, 4, 7, 16\)", InputError, value=K[:, :, :7]),
        bad("one dtype, got torch.float32, torch.float16, torch.float32", KindError, key=K.half()),
        bad("must be float32, float64, float16, bfloat16 or float8_e4m3fn, got torch.int64", KindError, query=Q.long()),
        bad("query must be a tensor, got list", KindError, query=[1]),
        bad("on one device, got cpu, meta, cpu", InputError, key=K.to(OTHER)),
        bad("pass enable_gqa=True", InputError, key=K[:, :2], value=K[:, :2]),
        bad("multiple of those of key", InputError, key=K[:, :3], value=K[:, :3], enable_gqa=True),
        bad("batch of query, or 1", InputError, key=torch.zeros(3, 4, 8, 16), value=torch.zeros(3, 4, 8, 16)),
        bad(
            "batch 3 and 1 heads",
            InputError,
            block_mask=create_block_mask(lambda b, h, q, k: q + b >= k, 3, None, 8, 8),
        ),
        bad("1 and 3 heads", InputError, block_mask=create_block_mask(lambda b, h, q, k: q + h >= k, None, 3, 8, 8)),
        bad(
            r"8 queries and 9 keys, but query has 8 and key 8: cut.*crop\(q_len, kv_len\), or pass mask_mod",
            InputError,
            block_mask=create_block_mask(CAUSAL, None, None, 8, 9),
        ),
        bad("block_mask is on meta", InputError, block_mask=create_block_mask(CAUSAL, None, None, 8, 8).to("meta")),
        bad(r"must be score_mod\(score, b, h, q_idx, kv_idx\)", KindError, score_mod=CAUSAL),
        bad(r"must be mask_mod\(b, h, q_idx, kv_idx\)", KindError, block_mask=lambda s, b, h, q, k: s),
        bad("the two were swapped", KindError, score_mod=masks.causal()),
        bad("the two were swapped", KindError, mask_mod=scores.softcap(2.0)),
        bad(
            r"score_mod captures a tensor META of shape \(8,\) on meta",
            InputError,
            score_mod=lambda s, b, h, q, k: s + torch.Tensor.__getitem__(META, q),
        ),
        bad(r"captures a tensor.*on meta", InputError, mask_mod=lambda b, h, q, k: META[q] > 0),
        bad(r"indexes with torch.float32", KindError, score_mod=lambda s, b, h, q, k: s + ZEROS[q * 1.0]),
        bad("at most 8, the number of keys, got 9", InputError, kv_lens=torch.tensor([9, 1])),
        bad("kv_lens must not be negative, got -1", InputError, kv_lens=torch.tensor([-1, 1])),
        bad("kv_lens must be an int32 or int64 tensor, got torch.float32", KindError, kv_lens=torch.tensor([1.0, 1])),
        bad("kv_lens must be an int32 or int64 tensor, got int", KindError, kv_lens=3),
        bad(r"kv_lens must have shape \(2,\)", InputError, kv_lens=torch.tensor([1])),
        bad("q_offset must not be negative, got -3", InputError, q_offset=-3),
        bad("q_offset must not be negative, got -2", InputError, q_offset=torch.tensor([0, -2])),
        bad("q_offset.*got bool", KindError, q_offset=True),
        bad(r"dropout_p must be in \[0, 1\), got 1.0", InputError, dropout_p=1.0),
        bad(r"dropout_p must be in \[0, 1\), got -0.1", InputError, dropout_p=-0.1),
        bad(r"dropout_p must be in \[0, 1\), got nan", InputError, dropout_p=math.nan),
        bad("seed must be an integer", KindError, dropout_p=0.5, seed=1.5),
        bad("seed must be from 0", InputError, dropout_p=0.5, seed=-1),
        bad(r"sinks must have shape \(4,\)", InputError, sinks=torch.zeros(3)),
        bad("sinks must be a floating-point tensor, got torch.int64", KindError, sinks=torch.zeros(4).long()),
        bad("scale must be a number, got '1'", KindError, scale="1"),
        bad("backend must be one of", InputError, backend="cuda"),
        bad("exclude each other", InputError, return_lse=True, return_aux=AuxRequest()),
        bad("block_mask must be a BlockMask or a mask, got str", KindError, block_mask="causal"),
        bad("block_mask .* got Tensor: masks.from_dense", KindError, block_mask=torch.ones(4, 4).bool()),
        bad("mask_mod .* got Tensor: masks.from_dense", KindError, mask_mod=torch.ones(4, 4).bool()),
        bad("score_mod .* got Tensor: scores.add_mask", KindError, score_mod=torch.ones(4, 4)),
        bad(
            "mask_mod .* got a BlockMask: pass it as block_mask",
            KindError,
            mask_mod=create_block_mask(CAUSAL, None, None, 8, 8),
        ),
        bad("q_offset must be an integer or a tensor of them, got float", KindError, q_offset=1.5),
        bad("key must be a dense tensor, got one of layout torch.sparse_coo", KindError, key=K.to_sparse()),
        bad("return_aux must be an AuxRequest", KindError, return_aux=True),
    ],
)
def test_bad_input_is_named(message: str, kind: type, changes: dict[str, object]) -> None:
    with pytest.raises(kind, match=message):
        flex_attention(**{"query": Q, "key": K, "value": K, **changes})


META, ZEROS = torch.zeros(8, device="meta"), torch.zeros(8)


def test_reads_out_of_range_at_visible_positions() -> None:
    q, k, v = features(8, 8, 4, 4)
    table = torch.randn(8, generator=torch.Generator().manual_seed(0))
    ahead = lambda s, b, h, i, j: s + table[i - j]  # noqa: E731
    with pytest.raises(IndexError, match=r"score_mod.*b=0, h=0"):
        flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[i + j])
    with pytest.raises(IndexError, match=r"mask_mod.*q_idx"):
        flex_attention(q, k, v, mask_mod=lambda b, h, i, j: table[i + j] > -9)
    flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[i + j], mask_mod=lambda b, h, i, j: i + j < 8)
    relaxed = flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[i + j], check=False)
    padded = torch.cat([table, torch.zeros(8)])
    torch.testing.assert_close(relaxed, flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + padded[i + j]))
    flex_attention(q, k, v, score_mod=ahead)  # negative indices count from the end


def test_tensors_without_data_give_shapes() -> None:
    q = Q.to("meta")
    out, aux = flex_attention(q, q, q, block_mask=masks.causal(), return_aux=AuxRequest(lse=True, max_scores=True))
    assert out.is_meta
    assert out.shape == q.shape
    assert aux.lse.shape == aux.max_scores.shape == q.shape[:3]


def test_errors_are_of_the_package_and_the_built_in_ones_that_fit() -> None:
    with pytest.raises(ValueError, match="one dtype") as mixed:
        flex_attention(Q.half(), Q, Q)
    assert isinstance(mixed.value, TypeError)
    table = torch.zeros(3)
    with pytest.raises(IndexError) as read:
        flex_attention(Q, Q, Q, score_mod=lambda s, b, h, i, j: s + table[i + 8])
    with pytest.raises(IndexError) as index:
        create_block_mask(CAUSAL, None, None, 8, 8)[0, 0, 5]
    with pytest.raises(KeyError, match=r"^seq 7 is no sequence") as sequence:
        PagedKVCache(num_pages=2, page_size=16, num_kv_heads=1, head_dim=8, max_seqs=1).length(7)
    for raised in (mixed, read, index, sequence):
        assert isinstance(raised.value, FlexAttentionError)


def test_triton_says_why_it_cannot_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    kernels_for.cache_clear()
    with pytest.raises(UnsupportedError, match=r"backend='triton': .*(not installed|are on cpu)"):
        flex_attention(Q, Q, Q, backend="triton", check=False)
    with pytest.raises(UnsupportedError, match=r"not installed|are on cpu"):
        flex_attention(Q, Q, Q, backend="triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(UnsupportedError, match=r"float64|not installed"):
        flex_attention(Q.double(), Q.double(), Q.double(), backend="triton", check=False)


def test_numbers_at_invisible_places_do_not_matter_and_at_visible_ones_stay_in_their_row() -> None:
    q, k, v = features(9, 9, 4, 4, grad=True)
    expected = flex_attention(q, k, v, block_mask=CAUSAL, kv_lens=torch.tensor([7, 7]))
    with torch.no_grad():
        k[:, :, 7:], v[:, :, 7:] = math.nan, math.inf
    found = flex_attention(q, k, v, block_mask=CAUSAL, kv_lens=torch.tensor([7, 7]))
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        k[:, :, 7:], v[:, :, 7:], k[0, 0, 4] = 0, 0, math.nan
    out = flex_attention(q, k, v, block_mask=CAUSAL)
    assert out[0, 0, :4].isfinite().all()
    assert out[0, 0, 4:].isnan().all()
    assert out[0, 1:].isfinite().all()
    plus = flex_attention(
        *features(9, 9, 4, 4), score_mod=lambda s, b, h, i, j: torch.where((i == 3) & (j == 2), math.inf, s)
    )
    assert plus[:, :, 3].isnan().all()
    assert plus[:, :, [0, 1, 2, 4, 5, 6, 7, 8]].isfinite().all()
    minus = flex_attention(*features(9, 9, 4, 4), score_mod=lambda s, b, h, i, j: torch.where(i == 3, -math.inf, s))
    assert not minus[:, :, 3].any()


def test_autocast_is_that_of_pytorchs_attention() -> None:
    q, k, v = features(9, 9, 4, 4, grad=True)
    table = torch.randn(9, generator=torch.Generator().manual_seed(0)).requires_grad_()
    mod = lambda s, b, h, i, j: s + table[i] * 0.1 * j  # noqa: E731
    with torch.autocast("cpu", torch.bfloat16):
        out = flex_attention(q, k.half(), v.bfloat16(), mod, CAUSAL)
        exact = flex_attention(q.double(), k.double(), v.double(), mod, CAUSAL)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, flex_attention(*(t.bfloat16() for t in (q, k.half(), v)), mod, CAUSAL))
    assert exact.dtype == torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(out.float().square().sum(), (q, k, v, table))
    outside = flex_attention(*(t.bfloat16() for t in (q, k.half(), v)), mod, CAUSAL)
    for a, b in zip(found, torch.autograd.grad(outside.float().square().sum(), (q, k, v, table))):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)


def test_mods_are_called_with_python_numbers_too() -> None:
    assert masks.causal()(0, 0, 3, 2).item() is True
    assert masks.causal()(0, 0, 3, torch.arange(5)).tolist() == [True, True, True, True, False]
    assert scores.softcap(2.0)(0.5, 0, 0, 1, 1).item() == pytest.approx(2 * math.tanh(0.25))


# As objects


def test_mods_are_copied_and_pickled() -> None:
    table = torch.randn(16, generator=torch.Generator().manual_seed(0))
    window = 3
    mask = mask_mod(lambda b, h, q, kv: (q - kv < window) & (q >= kv))
    mod = score_mod(lambda s, b, h, q, kv: s + table[q])
    q, k, v = features(9, 9, 4, 4)
    expected = flex_attention(q, k, v, score_mod=mod, block_mask=mask)
    for again in (copy.deepcopy, copy.copy, lambda x: pickle.loads(pickle.dumps(x))):
        assert again(mask).program == mask.program
        assert torch.equal(flex_attention(q, k, v, score_mod=again(mod), block_mask=again(mask)), expected)
    assert copy.deepcopy(mod).captures[0] is not table


def test_seeds_come_from_the_default_generator() -> None:
    q, k, v = features(9, 9, 4, 4)
    torch.manual_seed(1)
    first, second = (flex_attention(q, k, v, dropout_p=0.5) for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(first, flex_attention(q, k, v, dropout_p=0.5))
    assert not torch.equal(first, second)


# The operators


def packed_arguments(q, k, v, sinks=None, want_max=True, **options):
    from torch_flexattn.call import Call, pack

    call = Call(options.pop("mask", None), options.pop("score", None), 0.5, **options)
    return (q, k, v, sinks, *pack(call), want_max)


BIAS = torch.zeros(4, 17, requires_grad=True)
OPS = {
    "plain": dict,
    "mask": lambda: {"mask": create_block_mask(CAUSAL, None, None, 9, 9, BLOCK_SIZE=16)},
    "all": lambda: {
        "mask": create_block_mask(masks.document(torch.tensor([0, 4, 9])), None, None, 9, 9, BLOCK_SIZE=16),
        "score": score_mod(lambda s, b, h, i, j: s * 0.9 + BIAS[h, i - j + 8]),
        "sinks": torch.zeros(4, requires_grad=True),
        "kv_lens": torch.tensor([9, 4]),
        "dropout_p": 0.25,
        "seed": 7,
    },
    "offset": lambda: {"q_offset": torch.tensor([1, 2]), "want_max": False},
}


@pytest.mark.parametrize("name", OPS)
def test_operators_pass_opcheck(name: str) -> None:
    q, k, v = features(9, 9, 4, 6, grad=True)
    arguments = packed_arguments(q, k, v, **OPS[name]())
    torch.library.opcheck(torch.ops.torch_flexattn.forward.default, arguments)
    q, k, v = (t.detach() for t in (q, k, v))
    arguments = [a.detach() if isinstance(a, Tensor) else a for a in packed_arguments(q, k, v, **OPS[name]())]
    arguments[5] = [c.detach() for c in arguments[5]]
    out, lse, _ = torch.ops.torch_flexattn.forward(*arguments)
    needed = [c.is_floating_point() for c in arguments[5]]
    for grad_lse in (None, torch.ones_like(lse)):
        backward = (torch.ones_like(out), grad_lse, q, k, v, out, lse, arguments[3], *arguments[4:-1], needed)
        torch.library.opcheck(torch.ops.torch_flexattn.backward.default, backward)


def test_operators_do_what_the_function_does() -> None:
    q, k, v = features(9, 9, 4, 6, grad=True)
    options = OPS["all"]()
    out, lse, largest = torch.ops.torch_flexattn.forward(*packed_arguments(q, k, v, **dict(options)))
    score, sinks = options["score"], options["sinks"]
    wanted, aux = flex_attention(
        q,
        k,
        v,
        score,
        options["mask"],
        0.5,
        sinks=sinks,
        kv_lens=options["kv_lens"],
        dropout_p=0.25,
        seed=7,
        return_aux=AuxRequest(True, True),
    )
    assert torch.equal(out, wanted)
    assert torch.equal(lse, aux.lse)
    assert torch.equal(largest, aux.max_scores)
    leaves = (q, k, v, sinks, BIAS)
    for a, b in zip(
        torch.autograd.grad(out.sum() + lse.sum(), leaves), torch.autograd.grad(wanted.sum() + aux.lse.sum(), leaves)
    ):
        assert torch.equal(a, b)


# Second opinions


def test_agrees_with_scaled_dot_product_attention() -> None:
    q, k, v = features(33, 33, 8, 8, grad=True)
    for options, mine in (({}, {}), ({"is_causal": True}, {"block_mask": masks.causal()})):
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
        found = flex_attention(q, k, v, **mine)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        pairs = zip(torch.autograd.grad(found.sum(), (q, k, v)), torch.autograd.grad(expected.sum(), (q, k, v)))
        for a, b in pairs:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def relative(score, b, h, q_idx, kv_idx):
    return score + (q_idx - kv_idx)


def checkerboard(score, b, h, q_idx, kv_idx):
    return torch.where((q_idx - kv_idx).abs() % 2 == 1, score * 0.5, score)


def causal_by_score(score, b, h, q_idx, kv_idx):
    return torch.where(q_idx >= kv_idx, score, -float("inf"))


def per_head(score, b, h, q_idx, kv_idx):
    return score + 2 * h


SLOPES, DOCUMENTS = torch.exp2(-((torch.arange(4) + 1) * 8.0 / 4)), torch.tensor([0] * 10 + [1] * 15 + [2] * 8)


def alibi(score, b, h, q_idx, kv_idx):
    return score + SLOPES[h] * (kv_idx - q_idx)


def softcap(score, b, h, q_idx, kv_idx):
    return 20 * torch.tanh(score / 20)


def document_causal(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (DOCUMENTS[q_idx] == DOCUMENTS[kv_idx])


def prefix(b, h, q_idx, kv_idx):
    return (kv_idx <= 5 + b) | (q_idx >= kv_idx)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("mod", [None, relative, checkerboard, causal_by_score, per_head, alibi, softcap])
@pytest.mark.parametrize("mask", [None, CAUSAL, document_causal, prefix])
def test_agrees_with_pytorchs_flex_attention_on_its_own_examples(mod, mask) -> None:
    q, k, v = features(33, 33, 8, 8)
    block_mask = None if mask is None else theirs.create_block_mask(mask, 2, None, 33, 33, device="cpu", BLOCK_SIZE=16)
    expected, lse = theirs.flex_attention(q, k, v, score_mod=mod, block_mask=block_mask, return_lse=True)
    for given in (block_mask, mask, None if mask is None else BlockMask.from_torch(block_mask)):
        out, own_lse = flex_attention(q, k, v, mod, given, return_lse=True)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(own_lse, lse, rtol=1e-4, atol=1e-5)
    if mod is not None:
        wrapped = theirs.flex_attention(q, k, v, score_mod=score_mod(mod), block_mask=block_mask)
        torch.testing.assert_close(wrapped, expected, rtol=1e-4, atol=1e-5)


def test_alibi_of_too_few_heads_names_the_read():
    q = torch.randn(1, 4, 32, 8)
    with pytest.raises(IndexError, match=r"captured tensor out of range .*h=2"):
        flex_attention(q, q, q, scores.alibi(2), mask_mod=CAUSAL)


@pytest.mark.parametrize("offset", [2**31, torch.tensor([2**31])])
def test_offsets_that_int32_cannot_count(offset):
    q = torch.randn(1, 1, 4, 8)
    with pytest.raises(InputError, match=r"q_offset must be at most 2147483644 with 4 queries .* got 2147483648"):
        flex_attention(q, q, q, mask_mod=CAUSAL, q_offset=offset)
