"""Kernels whose results for one batch entry do not depend on the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_flexattn import mask_mod, masks, reference, score_mod, scores
from torch_flexattn.kernels.triton import attention, decode
from torch_flexattn.kernels.triton.tiles import Tiles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TINY = Tiles(16, 16, 4, 1)
LENGTHS = torch.tensor([97, 64, 0, 33])
SINKS = torch.tensor([0.3, -1.0, float("-inf"), 2.0])
CASES: dict[str, dict[str, Any]] = {
    "everything": {},
    "a window": {"mask": masks.sliding_window(50)},
    "blocks with gaps": {"mask": mask_mod(lambda b, h, i, j: (j // 20) % 3 != 1), "score": scores.softcap(2.0)},
    "sinks": {"sinks": SINKS.to(DEVICE)},
}


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.fixture(autouse=True)
def short_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 32 keys, so that short sequences have several."""
    monkeypatch.setattr(decode, "SPLIT", 32)
    monkeypatch.setattr("torch_flexattn.kernels.triton.row_blocks.BLOCK", 16)


def step(entries: list[int], keys: int, mask: Any = None, score: Any = None, sinks: Tensor | None = None) -> Any:
    """Of entries whose keys are ``keys`` at most."""
    q, k, v = drawn(4, 4, 2, 16, seed=0), drawn(4, 2, 97, 16, seed=1), drawn(4, 2, 97, 24, seed=2)
    lens = LENGTHS[entries].to(DEVICE)
    return decode.decode(
        q[entries], k[entries, :, :keys], v[entries, :, :keys], mask=mask, score=score, scale=0.3, sinks=sinks,
        kv_lens=lens, q_offset=(lens - 2).clamp(min=0), batch_invariant=True, tiles=TINY,
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_shares_of_one_size(name: str) -> None:
    """Right, and the same for an entry alone, whose longest sequence is its own."""
    case = CASES[name]
    whole = step([0, 1, 2, 3], 97, **case)
    q, k, v = drawn(4, 4, 2, 16, seed=0), drawn(4, 2, 97, 16, seed=1), drawn(4, 2, 97, 24, seed=2)
    right = reference.attention(
        *(t.cpu() for t in (q, k, v)), scale=0.3, kv_lens=LENGTHS, q_offset=(LENGTHS - 2).clamp(min=0),
        mask_mod=case.get("mask"), score_mod=case.get("score"), sinks=SINKS if "sinks" in case else None,
    )  # fmt: skip
    for found, expected in zip(whole, right, strict=True):
        torch.testing.assert_close(found.cpu().double(), expected, rtol=2e-5, atol=2e-5)
    for number in (0, 1, 3):
        alone = step([number], int(LENGTHS[number]), **case)
        assert all(torch.equal(one[number], other[0]) for one, other in zip(whole, alone, strict=True))


@pytest.mark.parametrize("queries", [2, 20])
def test_8_bits_with_factors_of_each_entry(queries: int) -> None:
    """Few queries by shares, more by blocks of rows: right, and the same for an entry alone."""
    q, k, v = (drawn(3, 2, n, 16, seed=n).to(torch.float8_e4m3fn) for n in (queries, 97, 98))
    v, factors = v[:, :, :97], drawn(2, 3, 2, seed=5).abs() + 0.2
    options: dict[str, Any] = {"mask": None, "score": scores.softcap(3.0), "scale": 0.3, "tiles": TINY}
    run = decode.decode if queries == 2 else attention.forward
    whole = run(q, k, v, descales=factors, batch_invariant=True, **options)
    of_products, of_values = factors.cpu()[..., None, None]
    right = reference.attention(
        q.cpu().double() * of_products, *(t.cpu().double() for t in (k, v)), scale=0.3, score_mod=options["score"]
    )  # fmt: skip
    torch.testing.assert_close(whole[0].cpu().double(), right[0] * of_values, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(whole[1].cpu().double(), right[1], rtol=1e-3, atol=1e-3)
    for n in range(3):
        alone = run(*(t[n : n + 1] for t in (q, k, v)), descales=factors[:, n : n + 1], batch_invariant=True, **options)
        assert all(torch.equal(one[n], other[0]) for one, other in zip(whole, alone, strict=True))


def test_many_shares_are_merged_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of three shares beside one of forty, which takes two rounds."""
    monkeypatch.setattr(decode, "SPLIT", 16)
    q, k, v = (drawn(2, 1, n, 16, seed=n) for n in (1, 640, 640))
    lens = torch.tensor([45, 640]).to(DEVICE)
    options: dict[str, Any] = {"mask": None, "score": None, "scale": 0.3, "batch_invariant": True, "tiles": TINY}
    whole = decode.decode(q, k, v, kv_lens=lens, **options)
    alone = decode.decode(q[:1], k[:1, :, :45], v[:1, :, :45], **options)
    assert all(torch.equal(one[:1], other) for one, other in zip(whole, alone, strict=True))
    right = reference.attention(*(t.cpu() for t in (q, k, v)), scale=0.3, kv_lens=lens.cpu())
    for found, expected in zip(whole, right, strict=True):
        torch.testing.assert_close(found.cpu().double(), expected, rtol=2e-5, atol=2e-5)


def test_one_source_serves_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of blocks of rows: nothing that is compiled in says that lengths are multiples of tiles."""
    said: list[dict[str, Any]] = []

    monkeypatch.setattr(attention, "launch", lambda kernel, grid, arguments, **constants: said.append(constants))
    table = torch.zeros(127, device=DEVICE)
    score = score_mod(lambda s, b, h, i, j: s + table[i - j + 63])
    for length in (64, 65):
        q = drawn(1, 1, length, 16, seed=0)
        for on in (True, False):
            attention.forward(q, q, q, mask=None, score=score, scale=1.0, tiles=TINY, batch_invariant=on)
    assert said[0] == said[2]
    assert {name for name in said[1] if said[1][name] != said[3][name]} == {"WHOLE_M", "WHOLE_N", "INSIDE"}
