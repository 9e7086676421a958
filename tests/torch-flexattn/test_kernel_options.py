"""What a caller may say about kernels: names, values, and that it reaches the operators."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch_flexattn import InputError, KernelOptions, KindError, UnsupportedError, flex_attention, masks
from torch_flexattn.call import Call, pack, unpack
from torch_flexattn.kernels.choose import kernels_for
from torch_flexattn.options import DEFAULTS, Tile


def features() -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, 20, 8, generator=draw) for _ in range(3)]


def test_a_dict_is_options():
    given = {"BLOCK_M": 64, "bwd_num_stages": 3, "precision": "tf32x3", "PRESCALE_QK": True}
    assert KernelOptions.of(given) == KernelOptions(**given)
    assert KernelOptions.of({}) is KernelOptions.of(None) is KernelOptions.of(KernelOptions()) is None


def test_sizes_of_a_pass_precede_those_of_both():
    options = KernelOptions(BLOCK_M=64, BLOCK_N=32, bwd_BLOCK_N=128, fwd_num_warps=8)
    assert options.tile(backward=False) == Tile(64, 32, 8, None)
    assert options.tile(backward=True) == Tile(64, 128, None, None)


@pytest.mark.parametrize(
    "given",
    [{"BLOCK_M": 64}, {"autotune": "db"}, {"autotune": True, "precision": "ieee"}, {"ROWS_GUARANTEED_SAFE": True}],
)
def test_text_holds_all(given):
    options = KernelOptions(**given)
    assert KernelOptions.parse(options.text) == options
    assert KernelOptions.parse("") == KernelOptions()
    assert {name for name, _ in DEFAULTS} >= set(given)


@pytest.mark.parametrize(
    "given, error, said",
    [
        ({"BLOCKM": 64}, InputError, "'BLOCKM'; the nearest is 'BLOCK_M'"),
        ({"FOO": 1}, InputError, "'FOO'; there are "),
        ({"fwd_num_wraps": 4}, InputError, "'fwd_num_wraps'; the nearest is 'fwd_num_warps'"),
        ({"USE_TMA": True}, InputError, "'USE_TMA' is one of PyTorch's kernels: .*hopper"),
        ({"bwd_BLOCK_M1": 32}, InputError, "'bwd_BLOCK_M1' is one of PyTorch's kernels: .*bwd_BLOCK_M"),
        ({3: 4}, InputError, "unknown kernel option 3"),
        ({"BLOCK_M": 48}, InputError, "BLOCK_M must be a power of two from 16 to 512, got 48"),
        ({"fwd_BLOCK_N": 8}, InputError, "fwd_BLOCK_N must be .* got 8"),
        ({"num_warps": 6}, InputError, "num_warps must be a power of two from 1 to 32, got 6"),
        ({"num_stages": 0}, InputError, "num_stages must be from 1 to 8, got 0"),
        ({"BLOCK_M": 64.0}, KindError, "BLOCK_M must be an integer, got 64.0"),
        ({"BLOCK_M": True}, KindError, "BLOCK_M must be an integer, got True"),
        ({"PRESCALE_QK": 1}, KindError, "PRESCALE_QK must be True or False, got 1"),
        ({"precision": "fp8"}, InputError, "precision must be one of ieee, tf32, tf32x3; got 'fp8'"),
        ({"autotune": "maybe"}, InputError, "autotune must be False, True or 'db', got 'maybe'"),
        ({"autotune": 1}, InputError, "autotune must be .* got 1"),
        ({"autotune": True, "bwd_BLOCK_N": 32}, InputError, "autotune=True finds the sizes that bwd_BLOCK_N=32 fixes"),
        ("fast", KindError, "kernel_options must be a dict or KernelOptions, got str"),
    ],
)
def test_what_no_kernel_takes_is_refused(given, error, said):
    q, k, v = features()
    with pytest.raises(error, match=said):
        flex_attention(q, k, v, kernel_options=given)


def test_a_cpu_looks_at_no_sizes():
    q, k, v = features()
    plain = flex_attention(q, k, v, None, masks.causal())
    assert torch.equal(plain, flex_attention(q, k, v, None, masks.causal(), None, False, False, {"BLOCK_M": 128}))


def test_a_cpu_says_that_it_times_nothing_and_not_when_it_only_looks_up():
    q, k, v = features()
    kernels_for.cache_clear()
    with pytest.warns(UserWarning, match="autotune=True: nothing is timed"):
        flex_attention(q, k, v, kernel_options={"autotune": True})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flex_attention(q, k, v, kernel_options={"autotune": "db"})


def test_kernels_of_a_gpu_by_name_say_why_they_cannot_serve(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    kernels_for.cache_clear()
    q, k, v = features()
    for backend in ("triton", "hopper", "decode"):
        with pytest.raises(UnsupportedError, match=f"backend='{backend}': .*(not installed|are on cpu)"):
            flex_attention(q, k, v, backend=backend, check=False)


def test_options_travel_with_a_packed_call():
    q, k, _ = features()
    options = KernelOptions(BLOCK_N=32, autotune=False, precision="tf32")
    for given in (options, None):
        call = Call(masks.causal(), None, 0.5, kernel_options=given)
        assert unpack(q, k, *pack(call)).kernel_options == given


def test_options_travel_through_a_compiler_and_an_export():
    causal = masks.causal()

    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return flex_attention(q, k, v, None, causal, kernel_options={"BLOCK_M": 16, "precision": "ieee"})

    q, k, v = features()
    torch._dynamo.reset()
    compiled = torch.compile(Model(), fullgraph=True, backend="eager")
    assert torch.equal(compiled(q, k, v), Model()(q, k, v))
    graph = torch.export.export(Model(), (q, k, v)).graph
    texts = [a for node in graph.nodes for a in node.args if isinstance(a, str)]
    assert any(text.endswith("BLOCK_M=16 precision=ieee") for text in texts)
