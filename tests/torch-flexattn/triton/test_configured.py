"""Kernels and tiles that a caller names, tiles that do not fit, and tiles found by timing."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch_flexattn import (
    InputError,
    UnsupportedError,
    create_block_mask,
    flex_attention,
    flex_attention_varlen,
    masks,
    stats,
)
from torch_flexattn.kernels import fitting, gpu, passes
from torch_flexattn.kernels.launch.launch import DoesNotFit
from torch_flexattn.kernels.triton import attention, decode
from torch_flexattn.kernels.triton.tiles import Tiles
from torch_flexattn.tune import store, winner
from torch_flexattn.tune.candidates import MOST

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def features(queries: int = 40, keys: int = 40, grad: bool = False) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = (1, 4, queries, 16), (1, 2, keys, 16), (1, 2, keys, 16)
    return [torch.randn(s, generator=draw).to(DEVICE).requires_grad_(grad) for s in shapes]


def attend(inputs: list[torch.Tensor], backend: str = "triton", **options: object) -> torch.Tensor:
    return flex_attention(
        *inputs, mask_mod=masks.causal(), enable_gqa=True, backend=backend, check=False, kernel_options=options
    )


def expected(inputs: list[torch.Tensor]) -> torch.Tensor:
    return flex_attention(*inputs, mask_mod=masks.causal(), enable_gqa=True, backend="reference")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """Every launch of the portable kernels and of those of decoding: kernel, tiles, how float32 is multiplied."""
    seen: list[SimpleNamespace] = []
    for module, name in ((attention, "forward"), (attention, "backward"), (decode, "decode")):
        own = getattr(module, name)

        def spied(*inputs, own=own, name=name, **options):
            seen.append(SimpleNamespace(name=name, tiles=options.get("tiles"), products=options.get("products")))
            return own(*inputs, **options)

        monkeypatch.setattr(module, name, spied)
    return seen


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache folder of its own, and nothing known."""
    monkeypatch.setenv("TORCH_FLEXATTN_CACHE", str(tmp_path))
    monkeypatch.setattr(winner, "ROUNDS", 1)
    winner.forget_winners()
    yield tmp_path / store.NAME
    winner.forget_winners()


def test_sizes_reach_the_kernels_of_each_pass(launched):
    inputs = features(grad=True)
    out = attend(inputs, BLOCK_M=16, bwd_BLOCK_N=32, num_stages=1, fwd_num_warps=2)
    found = torch.autograd.grad(out.sum(), inputs)
    assert [(s.name, s.tiles) for s in launched] == [
        ("forward", Tiles(16, 32, 2, 1)),
        ("backward", Tiles(16, 32, 4, 1)),
    ]
    right = torch.autograd.grad(expected(inputs).sum(), inputs)
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=0)
    assert stats().kernel == "triton"


def test_decoding_takes_sizes_too_and_is_preferred(launched):
    inputs = features(2, 40)
    found = attend(inputs, "decode", BLOCK_N=16, BLOCK_M=16)
    assert [(s.name, s.tiles.keys) for s in launched] == [("decode", 16)]
    torch.testing.assert_close(found, expected(inputs), atol=2e-5, rtol=0)
    assert stats().kernel == "decode"


def test_the_portable_kernels_serve_few_queries_where_they_are_named(launched):
    inputs = features(2, 40)
    torch.testing.assert_close(attend(inputs), expected(inputs), atol=2e-5, rtol=0)
    assert [s.name for s in launched] == ["forward"]


def test_how_float32_is_multiplied_reaches_the_kernels(monkeypatch):
    asked = []
    for module in (attention, decode):
        monkeypatch.setattr(module, "precision", lambda q, products=None: asked.append(products) or "ieee")
    inputs = features(grad=True)
    attend(inputs, precision="tf32x3").sum().backward()
    attend(features(2), "decode", precision="tf32")
    attend(features(2), "decode")
    assert asked == ["tf32x3", "tf32x3", "tf32", None]


def test_packed_sequences_take_options(launched):
    starts = torch.tensor([0, 5, 12], device=DEVICE)
    q = torch.randn(12, 2, 16, device=DEVICE)
    flex_attention_varlen(q, q, q, starts, starts, backend="triton", check=False, kernel_options={"BLOCK_M": 16})
    assert launched[0].tiles.rows == 16


def test_sizes_must_divide_the_blocks_of_the_mask():
    with pytest.raises(InputError, match="BLOCK_M=256 must divide the 128 queries of a block"):
        attend(features(), BLOCK_M=256)
    with pytest.raises(InputError, match="BLOCK_N=256 must divide the 128 keys of a block"):
        attend(features(), fwd_BLOCK_N=256)


@pytest.mark.parametrize(
    "queries, dropout_p, said",
    [
        (40, 0.0, "1 to 16 queries, got 40"),
        (0, 0.0, "1 to 16 queries, got 0"),
        (2, 0.5, "no dropout, got dropout_p=0.5"),
    ],
)
def test_decoding_says_why_it_cannot_serve(queries, dropout_p, said):
    q, k, v = features(queries)
    with pytest.raises(UnsupportedError, match=f"backend='decode': .*{said}"):
        flex_attention(q, k, v, enable_gqa=True, backend="decode", check=False, dropout_p=dropout_p)


def test_decoding_says_that_it_has_no_backward_pass():
    out = flex_attention(*features(2, grad=True), enable_gqa=True, backend="decode", check=False)
    with pytest.raises(UnsupportedError, match=r"backend='decode': .*no backward pass"):
        out.sum().backward()


def too_large(most: int):
    """A kernel whose tiles have at most ``most`` scores in flight."""
    own = attention.forward

    def run(*inputs, tiles=None, **options):
        tiles = tiles or Tiles(64, 32, 4, 2)
        size = tiles.rows * tiles.keys * tiles.stages
        tried.append(tiles)
        if size > most:
            raise DoesNotFit(f"{size} scores of shared memory, and there are {most}")
        return own(*inputs, tiles=tiles, **options)

    tried: list[Tiles] = []
    run.tried = tried
    return run


def test_tiles_that_do_not_fit_give_way_to_smaller_ones_which_are_remembered(monkeypatch):
    fitting.FITTED.clear()
    run = too_large(32 * 32)
    monkeypatch.setattr(attention, "forward", run)
    inputs = features()
    torch.testing.assert_close(attend(inputs), expected(inputs), atol=2e-5, rtol=0)
    assert [(t.rows, t.keys, t.stages) for t in run.tried] == [(64, 32, 2), (64, 32, 1), (32, 32, 1)]
    run.tried.clear()
    attend(inputs)
    assert [(t.rows, t.keys, t.stages) for t in run.tried] == [(32, 32, 1)]
    fitting.FITTED.clear()


def test_calls_without_options_find_smaller_tiles_in_both_passes(monkeypatch):
    """By the functions that a call without wishes goes to."""
    fitting.FITTED.clear()
    inputs, tried = features(grad=True), []
    for name, own in (("forward", attention.forward), ("backward", attention.backward)):

        def run(*given, tiles=None, own=own, **options):
            tried.append(tiles)
            if tiles is None or tiles.keys > 16:
                raise DoesNotFit("too large")
            return own(*given, tiles=tiles, **options)

        monkeypatch.setattr(attention, name, run)
    mask = create_block_mask(masks.causal(), None, None, 40, 40, device=DEVICE)
    options = {
        "mask": mask, "score": None, "scale": 0.25, "q_offset": 0, "sinks": None, "kv_lens": None,
        "dropout_p": 0.0, "seed": 0, "check": False,
    }  # fmt: skip
    q, k, v = (t.detach() for t in inputs)
    out, lse, _ = gpu.forward(q, k, v, want_max=False, **options)
    grads = gpu.backward(torch.ones_like(out), None, q, k, v, out, lse, needed=[], deterministic=False, **options)
    right = expected(inputs)
    torch.testing.assert_close(out, right, atol=2e-5, rtol=0)
    for one, other in zip(grads, torch.autograd.grad(right.sum(), inputs)):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=0)
    tried.clear()
    gpu.backward(torch.ones_like(out), None, q, k, v, out, lse, needed=[], deterministic=False, **options)
    assert [t.keys for t in tried] == [16]
    fitting.FITTED.clear()


def test_where_no_tile_fits_width_type_and_architecture_are_named(monkeypatch):
    fitting.FITTED.clear()
    monkeypatch.setattr(attention, "forward", too_large(100))
    with pytest.raises(
        UnsupportedError, match=r"no tile of the triton kernels fits: 16 features .*float32, on .*shared"
    ):
        attend(features())


def test_sizes_asked_for_that_do_not_fit_are_an_error(monkeypatch):
    run = too_large(16 * 16)
    monkeypatch.setattr(attention, "forward", run)
    with pytest.raises(UnsupportedError, match=r"kernel options do not fit .*rows=32.* for 16 features"):
        attend(features(), BLOCK_M=32)
    assert len(run.tried) == 1


def test_tuning_times_once_and_keeps_the_winner(launched, tuned):
    inputs = features(grad=True)
    torch.autograd.grad(attend(inputs, autotune=True).sum(), inputs)
    for name in ("forward", "backward"):
        assert 2 < len({s.tiles for s in launched if s.name == name}) <= MOST
    kept = json.loads(tuned.read_text())["winners"]
    assert sorted(" backward " in key for key in kept) == [False, True]
    forward = next(found for key, found in kept.items() if " forward " in key)
    launched.clear()
    out = attend(inputs, autotune=True)
    assert [(s.name, s.tiles) for s in launched] == [("forward", Tiles(**forward["tiles"]))]
    torch.testing.assert_close(out, expected(inputs), atol=2e-5, rtol=0)


def test_another_length_of_the_same_power_of_two_is_not_timed_again(launched, tuned):
    attend(features(40, 40), autotune=True)
    launched.clear()
    attend(features(50, 50), autotune=True)
    assert len(launched) == 1
    attend(features(70, 70), autotune="db")  # a longer one: nothing is known, and nothing is timed
    assert launched[-1].tiles is None
    assert len(launched) == 2


def test_what_is_kept_serves_another_process_and_damage_is_no_candidate(launched, tuned):
    inputs = features()
    attend(inputs, autotune=True)
    text = json.loads(tuned.read_text())
    (key,) = text["winners"]
    text["winners"][key] |= {"kernel": "triton", "tiles": {"rows": 16, "keys": 64, "warps": 4, "stages": 2}}
    tuned.write_text(json.dumps(text))
    winner.forget_winners()  # as another process would begin
    launched.clear()
    attend(inputs, autotune="db")
    assert [s.tiles for s in launched] == [Tiles(16, 64, 4, 2)]
    text["winners"][key]["tiles"]["rows"] = 7
    tuned.write_text(json.dumps(text))
    winner.forget_winners()
    attend(inputs, autotune="db")
    assert launched[-1].tiles is None


def test_the_fastest_wins_and_wrong_or_failing_tiles_do_not(monkeypatch, tuned):
    inputs, own = features(), passes.Pass.run

    def run(call, name, tiles=None):
        if tiles.keys == 32 and tiles.rows == 64:
            raise RuntimeError("no such tile")
        out, lse, largest = own(call, name, tiles)
        return (out + 1 if tiles.rows == 16 else out), lse, largest

    times = {(64, 64, 4): 3.0, (64, 64, 8): 2.0, (32, 64, 4): 1.0, (32, 32, 4): 1.5, (32, 32, 8): 4.0}
    now: list[Tiles] = []

    def once(watch, call):
        seen: list[Tiles] = []
        monkeypatch.setattr(passes.Pass, "run", lambda self, name, tiles=None: seen.append(tiles))
        call()
        monkeypatch.setattr(passes.Pass, "run", run)
        now.append(seen[0])
        return times[seen[0].rows, seen[0].keys, seen[0].warps]

    monkeypatch.setattr(passes.Pass, "run", run)
    monkeypatch.setattr(winner.Stopwatch, "once", once)
    monkeypatch.setattr(winner.Stopwatch, "median", lambda watch, call, rounds: once(watch, call))
    heard: list[tuple[str, list[winner.Trial]]] = []
    with winner.timed_anew(lambda key, found: heard.append((key, found))):
        attend(inputs, autotune=True)
    assert next(iter(winner.KNOWN.values())).tiles == Tiles(32, 64, 4, 2)
    errors = {(t.candidate.tiles.rows, t.candidate.tiles.keys): t.error for t in heard[0][1] if t.ms is None}
    assert errors == {(64, 32): "RuntimeError: no such tile", (16, 64): "its results differ"}
    assert all(t.rows != 16 for t in now)


def test_where_nothing_runs_the_call_is_described(monkeypatch, tuned):
    def run(call, name, tiles=None):
        raise RuntimeError("broken\nlong story")

    monkeypatch.setattr(passes.Pass, "run", run)
    with pytest.raises(UnsupportedError, match=r"autotune: no tile runs: 16 features .* \(RuntimeError: broken\)"):
        attend(features(), autotune=True)
