"""The generated kernels against those of the CPU, on sizes that are no multiple of anything."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_flexattn import create_block_mask, masks, score_mod, scores
from torch_flexattn.kernels import cpu
from torch_flexattn.kernels.triton import attention as triton_attention
from torch_flexattn.kernels.triton.attention import Tiles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TINY = Tiles(16, 16, 4, 1)
TABLE = torch.randn(4, 120, generator=torch.Generator().manual_seed(0)).requires_grad_()
PAIRS = torch.randn(40, 50, generator=torch.Generator().manual_seed(1)).requires_grad_()
PER_HEAD = torch.randn(4, generator=torch.Generator().manual_seed(2)).requires_grad_()
NUMBER = torch.tensor(0.7, requires_grad=True)
ROWS = torch.randn(60, generator=torch.Generator().manual_seed(3)).requires_grad_()
DOUBLES, HALVES = ROWS.detach().double().requires_grad_(), ROWS.detach().half().requires_grad_()
SINKS = torch.tensor([0.3, -1.0, float("-inf"), 2.0])
DOCUMENTS = torch.tensor([0, 11, 30, 37])


def relative(s, b, h, i, j):
    return s + TABLE[h, i - j + 60]


def everything(s, b, h, i, j):
    return torch.tanh(s * NUMBER) * PER_HEAD[h] + ROWS[i] + ROWS[j] + TABLE[h, (i * j) % 7]


CASES = {
    "nothing": {},
    "causal": {"mask": masks.causal(), "sizes": (1, 2, 2, 37, 37, 8, 24)},
    "window and table": {"mask": masks.sliding_window(9), "score": relative, "sizes": (1, 4, 1, 40, 50, 20, 16)},
    "head scale and sinks": {"mask": masks.causal(), "score": lambda s, b, h, i, j: s * PER_HEAD[h], "sinks": SINKS},
    "offsets and lengths": {
        "mask": masks.causal(),
        "sizes": (3, 4, 2, 33, 48, 16, 16),
        "q_offset": torch.tensor([0, 5, 15]),
        "kv_lens": torch.tensor([20, 48, 0]),
    },
    "lengths alone": {"sizes": (3, 2, 2, 20, 48, 16, 16), "kv_lens": torch.tensor([17, 16, 0])},
    "dropout": {
        "score": relative,
        "dropout_p": 0.3,
        "seed": 12345678901,
        "sinks": SINKS,
        "sizes": (1, 4, 2, 33, 33, 16, 16),
    },
    "dropout, its seed in memory": {
        "mask": masks.causal(),
        "dropout_p": 0.3,
        "seed": torch.tensor([-12345678901]),
        "sizes": (1, 4, 2, 33, 33, 16, 16),
    },
    "dropout under a mask": {"mask": masks.sliding_window(20), "dropout_p": 0.5, "seed": 4},
    "batch and head, shared keys": {
        "mask": lambda b, h, i, j: (i + b) // 3 >= j // (h + 1),
        "sizes": (3, 4, 2, 33, 48, 16, 16),
        "kv_batch": 1,
    },
    "pairs": {"score": lambda s, b, h, i, j: s + PAIRS[i, j], "sizes": (1, 2, 2, 40, 50, 16, 16)},
    "everything": {"mask": masks.prefix_lm(12), "score": everything},
    "documents": {"mask": masks.document(DOCUMENTS), "score": scores.alibi(4)},
    "rows that see nothing": {"mask": lambda b, h, i, j: (i - 9) // 5 > j, "sinks": SINKS},
    "only a score's infinity": {"score": lambda s, b, h, i, j: torch.where(i >= j + 3, s, float("-inf"))},
    "one query": {"mask": masks.sliding_window(40), "q_offset": 49, "sizes": (2, 4, 2, 1, 50, 16, 16)},
    "one key": {"sizes": (1, 4, 2, 5, 1, 16, 16)},
    "no score read": {"score": lambda s, b, h, i, j: ROWS[i] * ROWS[j]},
    "a score of the query alone": {"score": lambda s, b, h, i, j: ROWS[i]},
    "a score of the key alone": {"score": lambda s, b, h, i, j: ROWS[j], "mask": masks.causal()},
    "a score of the head alone": {"score": lambda s, b, h, i, j: PER_HEAD[h] + 0.0},
    "a constant score": {"score": lambda s, b, h, i, j: 2.5, "mask": masks.causal()},
    "a table of doubles": {"score": lambda s, b, h, i, j: s + DOUBLES[i]},
    "a table of halves": {"score": lambda s, b, h, i, j: torch.tanh(HALVES[j]) + 0.0 * s},
    "a score of halves": {"score": lambda s, b, h, i, j: HALVES[j] * HALVES[i]},
    "a mask of the query alone": {"mask": lambda b, h, i, j: i > 4},
    "a mask of the head alone": {"mask": lambda b, h, i, j: h != 2},
    "the key alone, in whole tiles": {"score": lambda s, b, h, i, j: ROWS[j], "sizes": (1, 2, 2, 32, 48, 16, 16)},
    "the query alone, in whole tiles": {"score": lambda s, b, h, i, j: ROWS[i], "sizes": (1, 2, 2, 32, 48, 16, 16)},
    "wide blocks": {"mask": masks.causal(), "block": (32, 64), "sizes": (1, 2, 2, 70, 90, 16, 16)},
}


def close(a: Tensor, b: Tensor, slack: float = 2e-5) -> None:
    torch.testing.assert_close(a.cpu().float(), b.float(), rtol=slack, atol=slack)


def run(case: dict, dtype: torch.dtype = torch.float32, tiles: Tiles | None = TINY) -> None:
    case = dict(case)
    batch, heads, kv_heads, rows, keys, width, width_v = case.pop("sizes", (1, 4, 2, 37, 50, 16, 16))
    kv_batch, block = case.pop("kv_batch", batch), case.pop("block", 16)
    generator = torch.Generator().manual_seed(7)
    shapes = (batch, heads, rows, width), (kv_batch, kv_heads, keys, width), (kv_batch, kv_heads, keys, width_v)
    q, k, v = (torch.randn(s, generator=generator).to(dtype) for s in shapes)
    mask, score = case.pop("mask", None), case.pop("score", None)
    blocks = None if mask is None else create_block_mask(mask, batch, heads, rows, keys, BLOCK_SIZE=block)
    # The block mask is of positions; q_offset shifts what its mod sees.
    if mask is not None and "q_offset" in case:
        from torch_flexattn.masks_of_calls import block_mask_of
        from torch_flexattn.mods import mask_mod

        blocks = block_mask_of(
            mask_mod(mask), (batch, heads, rows, keys), (block, block), torch.device("cpu"), case["q_offset"]
        )
    options = {"mask": blocks, "score": None if score is None else score_mod(score), "scale": 0.3, **case}
    there = {name: _moved(value) for name, value in options.items()}
    expected = cpu.forward(q, k, v, **options)
    found = triton_attention.forward(*(t.to(DEVICE) for t in (q, k, v)), tiles=tiles, **there)
    slack = 2e-5 if dtype == torch.float32 else 2e-2
    for a, b in zip(found, expected, strict=True):
        close(a, b, slack)
    out, lse, _ = expected
    grad_out, grad_lse = (
        torch.randn(out.shape, generator=generator).to(dtype),
        torch.randn(lse.shape, generator=generator),
    )
    for of_lse in (grad_lse, None) if not options["score"] and blocks is None else (grad_lse,):
        given = (grad_out, of_lse, q, k, v, out, lse)
        wanted = cpu.backward(*given, **options)
        got = triton_attention.backward(*(None if t is None else t.to(DEVICE) for t in given), tiles=tiles, **there)
        for a, b in zip((*got[:3], *got[3], got[4]), (*wanted[:3], *wanted[3], wanted[4]), strict=True):
            assert (a is None) == (b is None)
            if b is not None:
                own = max(slack, 1e-3) if b.dtype == torch.float16 else slack  # stored in 16 bits
                close(a / b.abs().max().clamp(min=1).item(), b / b.abs().max().clamp(min=1), own)


def _moved(value: object) -> object:
    return value.to(DEVICE) if hasattr(value, "to") else value


@pytest.mark.parametrize("name", CASES)
def test_kernels_agree_with_those_of_the_cpu(name: str) -> None:
    run(CASES[name])


@pytest.mark.parametrize("name", ["window and table", "everything"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits(name: str, dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("NumPy, which the interpreter computes with, has no bfloat16")
    run(CASES[name], dtype)


@pytest.mark.parametrize("tiles", [Tiles(32, 16, 4, 1), Tiles(16, 64, 4, 1), None])
def test_tiles_do_not_matter(tiles: Tiles | None) -> None:
    case = {"mask": masks.causal(), "score": relative, "block": (64, 64), "sizes": (1, 4, 2, 50, 70, 16, 16)}
    run(case, tiles=tiles)


@pytest.mark.parametrize(("rows", "keys"), [(0, 5), (5, 0)])
def test_empty(rows: int, keys: int) -> None:
    q, k, v = torch.randn(1, 4, rows, 16), torch.randn(1, 2, keys, 16), torch.randn(1, 2, keys, 8)
    q, k, v = (t.to(DEVICE) for t in (q, k, v))
    out, lse, largest = triton_attention.forward(q, k, v, mask=None, score=None, scale=1.0)
    assert out.shape == (1, 4, rows, 8)
    assert not out.any()
    assert torch.equal(lse, torch.full_like(lse, float("-inf")))
    assert torch.equal(largest, lse)
    grads = triton_attention.backward(out, None, q, k, v, out, lse, mask=None, score=None, scale=1.0)
    assert [tuple(g.shape) for g in grads[:3]] == [tuple(t.shape) for t in (q, k, v)]
    assert not any(bool(g.any()) for g in grads[:3])


def test_numbers_that_change_compile_nothing_new() -> None:
    from torch_flexattn.stats import stats

    q = torch.randn(1, 2, 20, 24, device=DEVICE)  # of a width that no other test has
    before = stats().kernels_loaded
    for window in (3, 5, 17):
        mask = create_block_mask(masks.sliding_window(window), None, None, 20, 20, BLOCK_SIZE=16)
        expected, *_ = cpu.forward(q.cpu(), q.cpu(), q.cpu(), mask=mask, score=None, scale=0.25)
        found, *_ = triton_attention.forward(q, q, q, mask=mask.to(DEVICE), score=None, scale=0.25, tiles=TINY)
        close(found, expected)
    assert stats().kernels_loaded == before + 1


def test_strided_inputs() -> None:
    whole = torch.randn(2, 21, 3 * 4 * 16, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    q, k, v = (part.view(2, 21, 4, 16).transpose(1, 2) for part in whole.chunk(3, -1))
    found, *_ = triton_attention.forward(q, k, v, mask=None, score=None, scale=0.25, tiles=TINY)
    expected, *_ = cpu.forward(q.cpu(), k.cpu(), v.cpu(), mask=None, score=None, scale=0.25)
    close(found, expected)
    assert found.stride() == expected.stride()


def test_numbers_behind_the_keys_are_not_read() -> None:
    q, k, v = (torch.randn(2, 2, 20, 16, generator=torch.Generator().manual_seed(0)) for _ in range(3))
    lens = torch.tensor([7, 20])
    expected, *_ = cpu.forward(q, k, v, mask=None, score=None, scale=0.25, kv_lens=lens)
    k[0, :, 7:], v[0, :, 7:] = float("nan"), float("inf")
    q, k, v, lens = (t.to(DEVICE) for t in (q, k, v, lens))
    found, lse, _ = triton_attention.forward(q, k, v, mask=None, score=None, scale=0.25, kv_lens=lens, tiles=TINY)
    close(found, expected)
    grads = triton_attention.backward(
        found, None, q, k, v, found, lse, mask=None, score=None, scale=0.25, kv_lens=lens, tiles=TINY
    )
    assert all(bool(g.isfinite().all()) for g in grads[:3])
