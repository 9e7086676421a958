"""``deterministic`` and ``batch_invariant``: what they promise, bit for bit, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_flexattn import (
    InputError,
    KindError,
    PagedKVCache,
    flex_attention,
    flex_attention_varlen,
    masks,
    quantize_fp8,
    scores,
)
from torch_flexattn.ops import attention as ops


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def features(batch: int, queries: int, keys: int, heads: int = 4, kv_heads: int = 4) -> list[Tensor]:
    shapes = (batch, heads, queries, 32), (batch, kv_heads, keys, 32), (batch, kv_heads, keys, 32)
    return [drawn(*shape, seed=n) for n, shape in enumerate(shapes)]


@pytest.fixture
def switch() -> Iterator[Any]:
    yield torch.use_deterministic_algorithms
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What backward passes were asked for."""
    found: list[bool] = []
    real = ops.run_backward

    def spy(*arguments: Any) -> Any:
        found.append(arguments[-2].deterministic)
        return real(*arguments)

    monkeypatch.setattr(ops, "run_backward", spy)
    return found


def test_gradients_follow_the_switch_unless_told(switch: Any, seen: list[bool]) -> None:
    q = drawn(1, 2, 5, 8).requires_grad_()
    for on in (False, True):
        switch(on)
        for asked in (None, False, True):
            flex_attention(q, q, q, deterministic=asked).sum().backward()
    assert seen == [False, False, True, True, False, True]


def test_the_op_carries_the_modes() -> None:
    def call(q: Tensor) -> Tensor:
        return flex_attention(q, q, q, mask_mod=masks.causal(), deterministic=True, batch_invariant=True)

    class Module(torch.nn.Module):
        forward = staticmethod(call)  # type: ignore[assignment]

    q = drawn(2, 2, 40, 16)
    exported = torch.export.export(Module(), (q,))
    (node,) = (n for n in exported.graph.nodes if str(n.target) == "torch_flexattn.forward.default")
    names = [a.name for a in torch.ops.torch_flexattn.forward.default._schema.arguments]
    modes = {name: node.args[names.index(name)] for name in ("deterministic", "batch_invariant")}
    assert modes == {"deterministic": True, "batch_invariant": True}
    assert torch.equal(exported.module()(q), call(q))


def test_deterministic_calls_take_their_own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from torch_flexattn.kernels import passes

    chosen = []
    for module in (passes.ordered, passes.portable):
        real = module.backward
        monkeypatch.setattr(
            module, "backward", lambda *a, _real=real, _module=module, **o: chosen.append(_module) or _real(*a, **o)
        )
    q = drawn(1, 1, 20, 16).requires_grad_()
    for deterministic in (False, True):
        flex_attention(q, q, q, backend="triton", check=False, deterministic=deterministic).sum().backward()
    assert chosen == [passes.portable, passes.ordered]


def test_two_runs_give_equal_bits_on_a_cpu() -> None:
    q, k, v = (t.requires_grad_() for t in features(2, 150, 700))
    table, sinks = drawn(4, 50, seed=8).requires_grad_(), drawn(4, seed=9).requires_grad_()

    def run() -> tuple[Tensor, ...]:
        out = flex_attention(
            q, k, v, lambda s, b, h, i, j: s + table[h, (i * 7 + j) % 50], sinks=sinks, deterministic=True
        )
        return torch.autograd.grad(out.sin().sum(), [q, k, v, sinks, table])

    for one, other in zip(run(), run(), strict=True):
        assert torch.equal(one, other)


INVARIANT: dict[str, dict[str, Any]] = {
    "a score": {"score_mod": scores.softcap(10.0)},
    "a mask and lengths": {"mask_mod": masks.causal(), "kv_lens": torch.tensor([2500, 700, 64, 2049]), "offset": True},
    "keys that are padding": {"mask_mod": lambda b, h, i, j: j < 2049, "kv_lens": torch.tensor([2049, 2500, 9, 2048])},
    "of each batch entry": {"mask_mod": lambda b, h, i, j: j % (b + 2) != 0, "alone": False},
    "a window and lengths": {
        "mask_mod": masks.sliding_window(300),
        "score_mod": scores.alibi(4),
        "kv_lens": torch.tensor([100, 2500, 300, 2048]),
        "offset": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", INVARIANT)
def test_an_entry_is_the_same_in_any_batch(name: str) -> None:
    """In another order (where ``b`` is no matter), and alone, with no more keys than it has."""
    case = dict(INVARIANT[name])
    lens, alone, offset = case.pop("kv_lens", None), case.pop("alone", True), case.pop("offset", False)
    q, k, v = features(4, 64, 2500)

    def run(entries: list[int], keys: int = 2500) -> tuple[Tensor, Tensor]:
        own = None if lens is None else lens[entries]
        return flex_attention(
            q[entries], k[entries, :, :keys], v[entries, :, :keys], kv_lens=own, return_lse=True, batch_invariant=True,
            q_offset=own - 64 if offset else None, **case,
        )  # fmt: skip

    whole, again = run([0, 1, 2, 3]), run([3, 1, 0, 2] if alone else [0, 1, 2, 3])
    for one, other in zip(whole, again, strict=True):
        assert torch.equal(one[[3, 1, 0, 2] if alone else [0, 1, 2, 3]], other)
    for number in range(4) if alone else range(1):
        found = run([number], 2500 if lens is None else int(lens[number]))
        assert all(torch.equal(one[number], other[0]) for one, other in zip(whole, found, strict=True))
    plain, _ = flex_attention(
        q, k, v, kv_lens=lens, return_lse=True, q_offset=lens - 64 if offset else None, **case
    )  # fmt: skip
    torch.testing.assert_close(whole[0], plain, rtol=1e-5, atol=1e-5)


def test_the_batch_matters_without_the_mode() -> None:
    """Else the tests above show nothing."""
    q, k, v = features(4, 64, 2500)
    one, four = (flex_attention(q[:n], k[:n], v[:n], scores.softcap(10.0)) for n in (1, 4))
    assert not torch.equal(one[0], four[0])


def test_what_is_not_finite_stays_in_its_entry() -> None:
    q, k, v = features(2, 40, 200)
    right = flex_attention(q, k, v, batch_invariant=True)
    k[1, 0, 3, 5] = float("nan")
    found = flex_attention(q, k, v, batch_invariant=True)
    assert torch.equal(found[0], right[0])
    assert found[1].isnan().any()
    assert not torch.equal(flex_attention(q, k, v)[0], right[0])


def test_keys_of_all_the_batch_and_the_order_of_dimensions() -> None:
    q, (k, v) = drawn(3, 20, 4, 16).transpose(1, 2), (drawn(1, 2, 50, 16, seed=n) for n in (1, 2))
    lens = torch.tensor([50, 0, 7])
    options = {"enable_gqa": True, "kv_lens": lens, "sinks": drawn(4, seed=3), "return_lse": True}
    found, right = (flex_attention(q, k, v, batch_invariant=on, **options) for on in (True, False))
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other)
    assert found[0].stride() == right[0].stride()


def test_a_message_names_the_batch_entry() -> None:
    table = torch.ones(2)
    q = drawn(3, 1, 2, 8)
    with pytest.raises(IndexError, match=r"b=2, h=0, q=0, kv=0"):
        flex_attention(q, q, q, lambda s, b, h, i, j: s + table[b], batch_invariant=True)


LENGTHS = [70, 300, 1, 0, 513, 128]
ORDERS = [[4, 0, 5, 1, 3, 2], [1], [4], [2, 5]]


def packed(order: list[int], tensors: list[Tensor], **options: Any) -> tuple[Tensor, list[Tensor]]:
    """The outputs of sequences packed in an order, by sequence."""
    parts = [t.split(LENGTHS) for t in tensors]
    given = [torch.cat([part[n] for n in order]) for part in parts]
    lengths = [LENGTHS[n] for n in order]
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0)])
    out, lse = flex_attention_varlen(*given, starts, starts, return_lse=True, **options)
    return out, [torch.cat([o, e.unsqueeze(-1)], -1) for o, e in zip(out.split(lengths), lse.split(lengths))]


@pytest.mark.parametrize("score", [None, scores.softcap(5.0)])
def test_a_packed_sequence_is_the_same_at_any_place(score: Any) -> None:
    tensors = [drawn(sum(LENGTHS), 4, 32, seed=n) for n in range(3)]
    options = {"mask_mod": masks.causal(), "score_mod": score}
    whole, by_sequence = packed(list(range(6)), tensors, batch_invariant=True, **options)
    for order in ORDERS:
        _, found = packed(order, tensors, batch_invariant=True, **options)
        assert all(torch.equal(one, by_sequence[n]) for one, n in zip(found, order, strict=True))
    plain, of_plain = packed(list(range(6)), tensors, **options)
    torch.testing.assert_close(whole, plain)
    _, found = packed(ORDERS[0], tensors, **options)
    assert not all(torch.equal(one, of_plain[n]) for one, n in zip(found, ORDERS[0], strict=True))


def test_gradients_of_packed_sequences_that_are_set_apart() -> None:
    tensors = [drawn(sum(LENGTHS), 4, 16, seed=n).requires_grad_() for n in range(3)]
    table = drawn(513, seed=5).requires_grad_()
    grads = []
    for apart in (False, True):
        out, _ = packed(
            list(range(6)), tensors, batch_invariant=apart, mask_mod=masks.causal(),
            score_mod=lambda s, b, h, i, j: s + table[i] * table[j],
        )  # fmt: skip
        grads.append(torch.autograd.grad(out.sin().sum(), [*tensors, table]))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("queries", "lengths"), [(1, (40, 900, 333)), (20, (40, 900, 333)), (64, (2000, 2000, 2000))])
def test_a_sequence_in_pages_is_the_same_beside_any_others(queries: int, lengths: tuple[int, ...]) -> None:
    cache = PagedKVCache(400, 16, 4, 32, max_seqs=4)
    seqs = [cache.allocate() for _ in lengths]
    for number, (seq, length) in enumerate(zip(seqs, lengths)):
        cache.append([seq], drawn(1, 4, length, 32, seed=number), drawn(1, 4, length, 32, seed=9 + number))
    q = drawn(3, 4, queries, 32, seed=20)

    def attend(entries: list[int], batch_invariant: bool = True) -> Tensor:
        chosen = [seqs[n] for n in entries]
        return cache.attend(q[entries], chosen, scores.softcap(10.0), batch_invariant=batch_invariant)

    whole = attend([0, 1, 2])
    assert torch.equal(attend([2, 0, 1]), whole[[2, 0, 1]])
    for number in range(3):
        assert torch.equal(attend([number])[0], whole[number])
    if queries == 64:
        assert not torch.equal(attend([0], False)[0], attend([0, 1, 2], False)[0])


def test_8_bit_entries_with_factors_of_their_own_are_the_same_in_any_batch() -> None:
    """Each entry takes its factors along."""
    (q, of_q), (k, of_k), (v, of_v) = (
        quantize_fp8(t * torch.tensor([1.0, 30.0, 0.1]).view(3, 1, 1, 1)) for t in features(3, 20, 700)
    )
    lens = torch.tensor([700, 90, 300])

    def run(entries: list[int], batch_invariant: bool = True) -> list[Tensor]:
        return flex_attention(
            q[entries], k[entries], v[entries], scores.softcap(10.0), q_descale=of_q[entries], k_descale=of_k[entries],
            v_descale=of_v[entries], kv_lens=lens[entries], return_lse=True, batch_invariant=batch_invariant,
        )  # fmt: skip

    whole, right = run([0, 1, 2]), run([0, 1, 2], False)
    assert whole[0].dtype == torch.bfloat16
    for one, other in zip(whole, right, strict=True):
        torch.testing.assert_close(one, other)
    for order in ([2, 0, 1], [1]):
        assert all(torch.equal(one[order], other) for one, other in zip(whole, run(order), strict=True))


def test_packed_8_bit_sequences_are_the_same_at_any_place() -> None:
    tensors = [drawn(sum(LENGTHS), 4, 32, seed=n).to(torch.float8_e4m3fn) for n in range(3)]
    options = {"mask_mod": masks.causal(), "k_descale": torch.rand(4, generator=torch.Generator().manual_seed(0))}
    whole, by_sequence = packed(list(range(6)), tensors, batch_invariant=True, **options)
    for order in ORDERS:
        _, found = packed(order, tensors, batch_invariant=True, **options)
        assert all(torch.equal(one, by_sequence[n]) for one, n in zip(found, order, strict=True))
    torch.testing.assert_close(whole, packed(list(range(6)), tensors, **options)[0])


def test_modes_reach_nested_sequences(seen: list[bool]) -> None:
    """By both functions; a sequence is the same beside any others."""
    parts = [drawn(length, 2, 16, seed=length) for length in (200, 70, 300)]

    def nested(order: list[int]) -> Tensor:
        made = torch.nested.nested_tensor([parts[n] for n in order], layout=torch.jagged)
        return made.transpose(1, 2).detach().requires_grad_()

    for attend in (flex_attention, flex_attention_varlen):
        options = {"score_mod": scores.softcap(5.0), "deterministic": True, "batch_invariant": True}
        whole = attend(*[nested([0, 1, 2])] * 3, **options)
        whole.values().sum().backward()
        for order in ([2, 0, 1], [1]):
            found = attend(*[nested(order)] * 3, **options)
            assert all(torch.equal(one, whole.unbind()[n]) for one, n in zip(found.unbind(), order, strict=True))
    assert seen == [True, True]


def test_calls_of_other_modes_are_not_taken_for_one_another(seen: list[bool]) -> None:
    """Calls are remembered, with a mask whose blocks are known, by their modes, too."""
    q, mask = drawn(1, 2, 40, 8).requires_grad_(), masks.causal()
    for deterministic in (False, True, False, True):
        flex_attention(q, q, q, mask_mod=mask, deterministic=deterministic).sum().backward()
    assert seen == [False, True, False, True]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"deterministic": 1}, KindError, "deterministic must be True or False, got 1"),
        ({"batch_invariant": None}, KindError, "batch_invariant must be True or False, got None"),
        ({"deterministic": True, "dropout_p": 0.5}, InputError, "dropout_p=0.5 needs a seed, got seed=None"),
        ({"batch_invariant": True, "dropout_p": 0.5, "seed": 1}, InputError, "dropout_p=0.5: the place in the batch"),
        ({"batch_invariant": True, "backend": "reference"}, InputError, "with backend='reference', whose products"),
        ({"deterministic": True, "backend": "hopper"}, InputError, "with backend='hopper', whose backward kernels"),
        ({"batch_invariant": True, "kernel_options": {"autotune": True}}, InputError, "autotune=True, which finds"),
        ({"batch_invariant": True, "kernel_options": {"autotune": "db"}}, InputError, "autotune='db', which finds"),
        ({"deterministic": True, "backend": "reference"}, InputError, "use_deterministic_algorithms"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused(options: dict[str, Any], error: type[Exception], says: str) -> None:
    q = drawn(1, 1, 4, 8)
    with pytest.raises(error, match=says):
        flex_attention(q, q, q, **options)


def test_dropout_under_the_switch_draws_its_seed(switch: Any) -> None:
    """As PyTorch's dropout: whoever sets the generator's seed gets equal bits."""
    switch(True)
    q = drawn(1, 1, 40, 8)
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        found.append(flex_attention(q, q, q, dropout_p=0.5))
    assert torch.equal(*found)
    flex_attention(q, q, q, dropout_p=0.5, seed=1, deterministic=True)
    flex_attention(q, q, q, backend="reference", deterministic=True)
