"""The backward pass whose additions have no order, against that of the CPU, and its sums of integers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_flexattn import create_block_mask, masks, score_mod
from torch_flexattn.differentiate import differentiate
from torch_flexattn.kernels import cpu
from torch_flexattn.kernels.triton import backward_source, deterministic, exact_sums, query_source
from torch_flexattn.kernels.triton.ordered_sums import OrderedSums
from torch_flexattn.kernels.triton.score_gradient import Gradient
from torch_flexattn.kernels.triton.tiles import Tiles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TINY = Tiles(16, 16, 4, 1)


def learnt(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(DEVICE).requires_grad_()


TABLE, PAIRS, OF_ALL, PER_HEAD, NUMBER = learnt(4, 120), learnt(48, 64), learnt(2, 4, 48, 64), learnt(4), learnt()
ROWS, SQUARE = learnt(64), learnt(64, 64)
MODS = {
    "a number": lambda s, b, h, i, j: s * NUMBER,
    "of a head": lambda s, b, h, i, j: s * PER_HEAD[h],
    "of a query": lambda s, b, h, i, j: s + ROWS[i],
    "of a key": lambda s, b, h, i, j: s * ROWS[j],
    "of a distance": lambda s, b, h, i, j: s + TABLE[h, i - j + 60],
    "of a bucket": lambda s, b, h, i, j: s + TABLE[h, (i - j).abs() // 3],
    "of a pair": lambda s, b, h, i, j: s + PAIRS[i, j],
    "of a pair of each head": lambda s, b, h, i, j: s + OF_ALL[b, h, i, j],
    "of a pair, both ways": lambda s, b, h, i, j: s + SQUARE[i, j] * SQUARE[j, i],
    "several": lambda s, b, h, i, j: torch.tanh(s * NUMBER) * PER_HEAD[h] + OF_ALL[0, h, i, j] + TABLE[h, (i * j) % 7],
}  # fmt: skip


def compared(
    score: Any,
    mask: Any = None,
    kv_batch: int = 2,
    rows: int = 21,
    keys: int = 34,
    tiles: Tiles | None = TINY,
    **options: Any,
) -> None:
    """Gradients of two batch entries, four heads that share two, with those of the CPU."""
    generator = torch.Generator().manual_seed(7)
    shapes = (2, 4, rows, 16), (kv_batch, 2, keys, 16), (kv_batch, 2, keys, 24)
    q, k, v = (torch.randn(s, generator=generator) for s in shapes)
    blocks = None if mask is None else create_block_mask(mask, 2, 4, rows, keys, BLOCK_SIZE=16)
    score = None if score is None else score_mod(score)
    given = {"mask": blocks, "score": score, "scale": 0.3, **options}
    there = {name: _moved(value, DEVICE) for name, value in given.items()}
    here = {name: _moved(value, "cpu") for name, value in given.items()}
    needed = [True] * (0 if score is None else len(score.captures))
    out, lse, _ = cpu.forward(q, k, v, **here)
    inputs = torch.randn(out.shape, generator=generator), torch.randn(lse.shape, generator=generator), q, k, v, out, lse
    right = cpu.backward(*inputs, **here, needed=needed)
    found = deterministic.backward(*(t.to(DEVICE) for t in inputs), **there, needed=needed, tiles=tiles)
    for one, other in zip((*found[:3], *found[3], found[4]), (*right[:3], *right[3], right[4]), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            scale = other.abs().max().clamp(min=1)
            torch.testing.assert_close(one.cpu() / scale, other / scale, rtol=2e-5, atol=2e-5)


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, Tensor) or hasattr(value, "to"):
        moved = value.to(device)
        return moved.detach() if isinstance(moved, Tensor) else moved
    return value


@pytest.mark.parametrize("name", MODS)
def test_captured_tensors_of_each_kind(name: str) -> None:
    compared(MODS[name], masks.causal())


CASES: dict[str, dict[str, Any]] = {
    "nothing": {"score": None},
    "keys of all the batch": {"score": None, "kv_batch": 1, "mask": lambda b, h, i, j: (i + b) // 3 >= j // (h + 1)},
    "offsets, lengths, sinks": {
        "score": MODS["of a pair"],
        "mask": masks.causal(),
        "q_offset": torch.tensor([0, 9]),
        "kv_lens": torch.tensor([13, 34]),
        "sinks": torch.tensor([0.3, -1.0, float("-inf"), 2.0]),
    },
    "dropout": {"score": MODS["of a head"], "dropout_p": 0.3, "seed": 5, "rows": 15, "keys": 18},
    "tiles that are chosen": {"score": MODS["several"], "tiles": None},
}


@pytest.mark.parametrize("name", CASES)
def test_options(name: str) -> None:
    compared(**CASES[name])


def test_sums_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound on memory that a table of 480 numbers is beyond."""
    monkeypatch.setattr(exact_sums, "MOST_BYTES", 8 * exact_sums.RECORD * 300)
    compared(MODS["several"], masks.causal(), rows=20, keys=20)


def test_gradients_of_large_tensors_are_addressed_in_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = deterministic._of_keys
    monkeypatch.setattr(deterministic, "_of_keys", lambda kernel: seen.append(kernel) or real(kernel))
    monkeypatch.setattr("torch_flexattn.kernels.triton.index_width.REACH", 1000)
    compared(MODS["of a pair"])
    (program,) = {kernel.score.program for kernel in seen}
    (scatter,) = seen[0].score.scatters
    assert {program.nodes[program.outputs[i]].dtype for i in scatter.indices} == {"int64"}


def test_a_sum_has_no_order() -> None:
    """Numbers of all sizes, whose float32 sum is another in every order."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(-120, 120, (512,), generator=generator).float()
    values = torch.randn(512, generator=generator) * torch.exp2(sizes)
    values[:4] = torch.tensor([1e-45, -3e-42, 3e38, -2.5e38])
    found = [_summed(values[torch.randperm(512, generator=generator)]) for _ in range(4)]
    assert all(torch.equal(found[0], other) for other in found)
    assert found[0].item() == values.double().sum().float().item()
    subnormal = torch.tensor([1e-45, -3e-42, 1e-39, 2e-40])
    assert _summed(subnormal).item() == subnormal.double().sum().float().item()


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_makes_its_sum_nan(bad: float) -> None:
    assert _summed(torch.tensor([1.0] * 7 + [bad])).isnan().item()


def _summed(values: Tensor) -> Tensor:
    """By one program for each 8 numbers, to one place of two; the other must stay 0."""
    sums = exact_sums.zeros(2, torch.device(DEVICE))
    given = torch.cat([values, values.new_zeros(-len(values) % 8)]).to(DEVICE)
    _module().run[len(given) // 8,](given, sums, exact_sums.RECORD)
    found = exact_sums.rounded(sums).cpu()
    assert found[0] == 0
    return found[1]


def _module() -> Any:
    from torch_flexattn.kernels.launch.files import load

    return load(
        "import triton\nimport triton.language as tl\n"
        "from torch_flexattn.kernels.triton.exact_sums_kernel import add_exactly\n\n\n"
        "@triton.jit\ndef run(values, sums, record):\n"
        "    value = tl.load(values + tl.program_id(0) * 8 + tl.arange(0, 8))\n"
        "    add_exactly(sums + record + tl.zeros([8], tl.int32), value, value == value + 0.0 * value)\n"
        "    add_exactly(sums + record + tl.zeros([8], tl.int32), value, value != value + 0.0 * value)\n"
    )


@pytest.mark.parametrize(
    ("name", "exact", "launches"),
    [
        ("a number", True, 1),
        ("of a distance", True, 1),
        ("of a pair", False, 4),
        ("of a pair of each head", False, 1),
        ("of a pair, both ways", True, 1),
        ("several", True, 2),
    ],
)
def test_no_place_gets_two_floats_in_a_launch(name: str, exact: bool, launches: int) -> None:
    score = score_mod(MODS[name])
    derivative = differentiate(score.program, [True] * len(score.captures))
    sums = OrderedSums(derivative, [torch.zeros(c.shape) for c in score.captures], 37, 50)
    planes = sums.planes(2, 2, 4)
    assert bool(sums.exact) == exact
    assert len(planes) == launches
    seen = [first + n * step for first, step, count in planes for n in range(count)]
    assert sorted(seen) == [0, 1, 2, 3]


def test_a_dimension_that_is_too_short_for_the_queries_wraps() -> None:
    score = score_mod(lambda s, b, h, i, j: s + PAIRS[i - 40, j])
    derivative = differentiate(score.program, [True])
    assert not OrderedSums(derivative, [torch.zeros(48, 64)], 48, 64).exact
    assert OrderedSums(derivative, [torch.zeros(48, 64)], 49, 64).exact == {0}


def test_floats_are_added_to_distinct_places_only() -> None:
    """What the kernels say: a number added by each tile is one of integers, and no gradient of a query is added."""
    score = score_mod(MODS["a number"])
    derivative = differentiate(score.program, [True])
    sizes = {"width": 16, "value_width": 16, "tile": (16, 16)}
    text = backward_source.source(
        backward_source.Backward(**sizes, score=derivative, queries=False, exact=frozenset({0}))
    )
    assert "atomic_add" not in text
    assert "add_exactly(g0 " in text
    without = differentiate(score.program, [False])
    assert "atomic" not in query_source.source(Gradient(**sizes, score=without))
