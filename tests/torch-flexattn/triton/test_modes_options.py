"""The two modes beside ``kernel_options``, named kernels, and tiles that do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_flexattn import UnsupportedError, flex_attention, masks, score_mod, stats
from torch_flexattn.kernels import fitting, gpu, passes
from torch_flexattn.kernels.configured import Configured
from torch_flexattn.kernels.hopper import attention as hopper
from torch_flexattn.kernels.hopper import requirements
from torch_flexattn.kernels.launch.launch import DoesNotFit
from torch_flexattn.kernels.triton import attention, decode, deterministic, gradients, index_width
from torch_flexattn.kernels.triton.tiles import Tiles
from torch_flexattn.options import KernelOptions
from torch_flexattn.tune.key import key_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TABLE = torch.linspace(-1, 1, 90, device=DEVICE)


def features(queries: int = 40) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(2, 2, n, 16, generator=draw).to(DEVICE).requires_grad_() for n in (queries, 40, 40)]


def gradients_of(inputs: list[Tensor], **options: Any) -> tuple[Tensor, ...]:
    given = {"backend": "triton", "check": False, "mask_mod": masks.causal(), **options}
    return torch.autograd.grad(flex_attention(*inputs, **given).sin().sum(), inputs)


@pytest.fixture(autouse=True)
def nothing_fitted() -> Iterator[None]:
    fitting.FITTED.clear()
    yield
    fitting.FITTED.clear()


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Launchers that were called, with their options."""
    seen: list[tuple[str, dict[str, Any]]] = []
    for module, name in (
        (attention, "forward"),
        (attention, "backward"),
        (decode, "decode"),
        (deterministic, "backward"),
    ):
        own = getattr(module, name)

        def spied(
            *inputs: Any, _own: Any = own, _name: str = module.__name__.rpartition(".")[2], **options: Any
        ) -> Any:
            seen.append((_name, options))
            return _own(*inputs, **options)

        monkeypatch.setattr(module, name, spied)
    return seen


@pytest.mark.parametrize("options", [{"BLOCK_M": 16, "bwd_BLOCK_N": 32}, {"autotune": True}])
def test_the_deterministic_pass_takes_its_own_tiles(
    options: dict[str, Any], launched: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of it is timed; how float32 is multiplied is as asked for."""
    timed: list[bool] = []
    monkeypatch.setattr(
        "torch_flexattn.kernels.configured.winner_of", lambda call, *_, **__: timed.append(call.backward)
    )
    asked: list[Any] = []
    monkeypatch.setattr(deterministic, "precision", lambda q, products: asked.append(products) or "ieee")
    inputs = features()
    found = gradients_of(inputs, deterministic=True, kernel_options={**options, "precision": "tf32x3"})
    (_, backward) = launched[-1]
    assert [name for name, _ in launched] == ["attention", "deterministic"]
    assert (backward["tiles"], backward["products"]) == (None, "tf32x3")
    assert asked == ["tf32x3", "tf32x3"]  # of both kernels
    assert timed == ([False] if "autotune" in options else [])
    assert stats().kernel == "triton"
    for one, other in zip(found, gradients_of(inputs), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=0)


@pytest.mark.parametrize("options", [None, {"num_stages": 2}])
def test_deterministic_tiles_that_do_not_fit_give_way_to_smaller_ones(
    options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, own, tried = features(), deterministic.backward, []
    right = gradients_of(inputs)

    def run(*given: Any, tiles: Tiles | None = None, **others: Any) -> Any:
        tried.append(tiles)
        if tiles is None or tiles.keys > 16:
            raise DoesNotFit("too large")
        return own(*given, tiles=tiles, **others)

    monkeypatch.setattr(deterministic, "backward", run)
    for _ in range(2):
        tried.clear()
        found = gradients_of(inputs, deterministic=True, kernel_options=options)
        for one, other in zip(found, right, strict=True):
            torch.testing.assert_close(one, other, atol=2e-5, rtol=0)
    assert [t.keys for t in tried] == [16]
    monkeypatch.setattr(deterministic, "backward", own)
    assert all(key[4:6] for key in fitting.FITTED)


def test_calls_without_options_find_smaller_deterministic_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the function that a call without wishes goes to."""
    inputs, own, tried = features(), deterministic.backward, []

    def run(*given: Any, tiles: Tiles | None = None, **others: Any) -> Any:
        tried.append(tiles)
        if tiles is None:
            raise DoesNotFit("too large")
        return own(*given, tiles=tiles, **others)

    monkeypatch.setattr(deterministic, "backward", run)
    q, k, v = (t.detach() for t in inputs)
    out, lse = flex_attention(q, k, v, backend="reference", return_lse=True)
    options = {"mask": None, "score": None, "scale": 0.25, "kv_lens": None, "dropout_p": 0.0, "seed": 0, "sinks": None}
    options["q_offset"] = 0
    of_q, of_k, of_v, _, _ = gpu.backward(
        torch.ones_like(out), None, q, k, v, out, lse, needed=[], check=False, deterministic=True, **options
    )
    assert len(tried) == 2
    right = torch.autograd.grad(flex_attention(*inputs, backend="reference").sum(), inputs)
    for one, other in zip((of_q, of_k, of_v), right, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=0)


def test_deterministic_kernels_read_a_seed_where_it_lies() -> None:
    inputs, number = features(), 5 << 33 | 77
    seeds = (number, torch.tensor(number, device=DEVICE), torch.tensor([number + 1], device=DEVICE))
    one, same, other = (gradients_of(inputs, deterministic=True, dropout_p=0.4, seed=seed) for seed in seeds)
    plain = gradients_of(inputs, dropout_p=0.4, seed=number)
    for a, b, c in zip(one, same, plain, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, atol=2e-5, rtol=0)
    assert not torch.equal(one[0], other[0])


def call(**changed: Any) -> passes.Pass:
    q = torch.zeros(1, 2, 40, 16)
    options = {"mask": None, "score": None, "q_offset": 0, "sinks": None, "descales": None, "want_max": False}
    inputs = (q, None, q, q, q, q, q[..., 0]) if changed.get("backward") else (q, q, q)
    return replace(passes.Pass(inputs, options, None, 0.0, 0, False), **changed)


def test_tiles_found_for_one_mode_are_not_those_of_another() -> None:
    one, other = call(backward=True), call(backward=True, deterministic=True)
    assert one.compiled_from("triton") != other.compiled_from("triton")
    assert key_of(one, ("triton",)) != key_of(other, ("triton",))
    invariant = {**call().options, "batch_invariant": True}
    plain, same = call(options={**invariant, "batch_invariant": False}), call(options=invariant)
    assert plain.compiled_from("triton") == call().compiled_from("triton") != same.compiled_from("triton")
    changed = [{"kv_lens": torch.ones(1)}, {"options": {**invariant, "want_max": True}}]
    kinds = {call(**{"options": invariant, **c}).compiled_from("triton") for c in (*changed, {})}
    assert len(kinds) == 3


def test_hopper_says_that_it_has_no_order() -> None:
    q = torch.zeros(1, 1, 256, 64, dtype=torch.bfloat16)
    assert requirements.why_not_backward(q, q, q, q, None, None, 0.0) is None
    reason = requirements.why_not_backward(q, q, q, q, None, None, 0.0, deterministic=True)
    assert reason is not None
    assert "order" in reason


def test_a_named_hopper_refuses_what_the_switch_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on such a GPU."""
    monkeypatch.setattr(passes, "hopper_kernels", lambda device: hopper)
    inputs = call(backward=True).inputs
    options = {"mask": None, "score": None, "kv_lens": None, "dropout_p": 0.0, "seed": 0, "check": False}
    options |= {"q_offset": 0, "sinks": None}
    with pytest.raises(UnsupportedError, match="backend='hopper': the backward kernels add in an order"):
        Configured("hopper", KernelOptions()).backward(*inputs, deterministic=True, **options)


@pytest.mark.parametrize(("queries", "name"), [(40, "attention"), (2, "decode")])
def test_sizes_reach_batch_invariant_kernels(
    queries: int, name: str, launched: list[tuple[str, dict[str, Any]]]
) -> None:
    q, k, v = (t.detach() for t in features(queries))

    def run(entries: slice) -> Tensor:
        return flex_attention(
            q[entries], k[entries], v[entries], check=False, batch_invariant=True,
            backend="triton" if name == "attention" else "decode", kernel_options={"BLOCK_M": 16, "BLOCK_N": 16},
        )  # fmt: skip

    whole = run(slice(None))
    assert torch.equal(run(slice(1, 2)), whole[1:])
    assert [found for found, _ in launched] == [name] * 2
    for _, options in launched:
        assert options["batch_invariant"]
        assert (options["tiles"].rows, options["tiles"].keys) == (16, 16)
    torch.testing.assert_close(whole, flex_attention(q, k, v, backend="reference"), atol=2e-5, rtol=0)


@pytest.mark.parametrize("kernels", [attention, hopper])
def test_large_captured_tensors_get_gradients_by_indices_of_64_bits(
    kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is differentiated is the program that is widened."""
    monkeypatch.setattr(index_width, "REACH", 50)
    made: list[Any] = []

    class Kept(gradients.Gradients):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self.derivative)
            raise StopIteration

    monkeypatch.setattr(kernels, "Gradients", Kept)
    q = torch.zeros(1, 1, 64, 16, dtype=torch.bfloat16, device=DEVICE)
    table = TABLE.clone().requires_grad_()
    with pytest.raises(StopIteration):
        kernels.backward(
            q, None, q, q, q, q, q[..., 0].float(), mask=None, scale=1.0, needed=[True],
            score=score_mod(lambda s, b, h, i, j: s + table[i - j + 45]),
        )  # fmt: skip
    (derivative,) = made
    (scatter,) = derivative.scatters
    assert {derivative.program.nodes[derivative.program.outputs[i]].dtype for i in scatter.indices} == {"int64"}
