"""Fixtures that several files of this package's tests use."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch_flexattn.mods import MaskMod, ScoreMod, mask_mod, score_mod


@pytest.fixture(scope="session")
def brute_block_mask() -> Callable[..., SimpleNamespace]:
    """Makes what a BlockMask is, element by element: ``(mod, shape, block)``, or of ``(mod, kinds)`` given by hand."""

    def make(mod: MaskMod | None, shape: tuple[int, int, int, int], block=(32, 32), kinds: Tensor | None = None):
        batch, heads, q_len, kv_len = shape
        rows, columns = -(-q_len // block[0]), -(-kv_len // block[1])
        if kinds is None:
            index = torch.meshgrid(*(torch.arange(n, dtype=torch.int32) for n in shape), indexing="ij")
            seen = mod(*index)
            kinds = torch.zeros(batch, heads, rows, columns, dtype=torch.long)
            for r in range(rows):
                for c in range(columns):
                    tile = seen[..., r * block[0] : (r + 1) * block[0], c * block[1] : (c + 1) * block[1]].flatten(2)
                    kinds[:, :, r, c] = tile.any(-1).long() + tile.all(-1)
        ptr, runs = [0], []
        for row in kinds.reshape(-1, columns).tolist():
            start = 0
            for c in range(1, columns + 1):
                if c == columns or row[c] != row[start]:
                    if row[start]:
                        runs.append((start, c << 1 | (row[start] == 2)))
                    start = c
            ptr.append(len(runs))
        return SimpleNamespace(
            row_ptr=torch.tensor(ptr, dtype=torch.int32),
            runs=torch.tensor(runs, dtype=torch.int32).view(-1, 2),
            shape=shape,
            block=block,
            mod=mod,
        )

    return make


@pytest.fixture(scope="session")
def mask_named() -> Callable[[str], MaskMod | None]:
    """Masks by name, for 4 heads, 2 batch entries and up to 200 positions."""
    documents = torch.arange(200) // 23
    window_of_head = torch.tensor([1, 40, 7, 150])
    length_of_entry = torch.tensor([70, 33])
    masks = {
        "causal": lambda b, h, q, kv: q >= kv,
        "window": lambda b, h, q, kv: (q >= kv) & (q - kv < 19),
        "documents": lambda b, h, q, kv: documents[q] == documents[kv],
        "prefix": lambda b, h, q, kv: (kv < 37) | (q >= kv),
        "head": lambda b, h, q, kv: (q - kv).abs() < window_of_head[h],
        "batch": lambda b, h, q, kv: kv < length_of_entry[b],
        "batch and head": lambda b, h, q, kv: (kv < length_of_entry[b]) & ((q - kv).abs() < window_of_head[h]),
        "empty rows": lambda b, h, q, kv: (q > kv) & (q % 3 != 1),
        "strict": lambda b, h, q, kv: q > kv,
        "nothing": lambda b, h, q, kv: q < -kv - 1,
        "scattered": lambda b, h, q, kv: ((q // 16 * 7 + kv // 16 * 5) % 4 == 0) & ((q + kv) % 3 != 0),
        "streaming": lambda b, h, q, kv: (q >= kv) & ((q - kv < 20) | (kv < 3)),
    }
    return lambda name: None if name == "none" else mask_mod(masks[name])


@pytest.fixture
def score_named() -> Callable[..., ScoreMod | None]:
    """Score modifications by name, for 4 heads, 2 batch entries, up to 200 positions; their captures need gradients."""

    def make(name: str, dtype: torch.dtype = torch.float64, size: int = 200) -> ScoreMod | None:
        def learnt(*shape: int) -> Tensor:
            generator = torch.Generator().manual_seed(len(shape))
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

        table, of_head, of_key, of_query = learnt(4, 2 * size), learnt(4), learnt(size), learnt(4, size)
        pairs, two, one, buckets = learnt(2, 4, size, size), learnt(size, 3), learnt(), learnt(9, 4)
        square, cube = learnt(size, size), learnt(*[size if name == "cube" else 1] * 3)
        slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
        mods = {
            "alibi": lambda s, b, h, q, kv: s - slopes[h] * (q - kv),
            "softcap": lambda s, b, h, q, kv: 2 * torch.tanh(s / 2),
            "exp": lambda s, b, h, q, kv: torch.exp(s / 4),
            "relative": lambda s, b, h, q, kv: s + table[h, q - kv + size],
            "relative of one head": lambda s, b, h, q, kv: s * table[1, kv - q],  # negative indices wrap
            "buckets": lambda s, b, h, q, kv: s + buckets[torch.clamp((q - kv).abs() // 5, max=8), h],
            "head": lambda s, b, h, q, kv: s * of_head[h],
            "scalar": lambda s, b, h, q, kv: s * one + one * one,
            "key": lambda s, b, h, q, kv: s + torch.sin(of_key[kv]),
            "query": lambda s, b, h, q, kv: torch.where(kv % 2 == 0, s * of_query[h, q], s),
            "pairs": lambda s, b, h, q, kv: s + pairs[b, h, q, kv],
            "coarse pairs": lambda s, b, h, q, kv: s + square[q // 3, kv // 4],
            "square": lambda s, b, h, q, kv: s * square[q, q] + square[kv, kv],
            "cube": lambda s, b, h, q, kv: s + cube[q, kv, q],
            "twice": lambda s, b, h, q, kv: s + two[q, 0] * two[kv, 1] + two[kv, (q + kv) % 3],
            "hashed": lambda s, b, h, q, kv: s + of_key[(q * 31 + kv * 17) % size],
            "independent": lambda s, b, h, q, kv: of_key[kv] * of_head[h],
            "minus infinity": lambda s, b, h, q, kv: torch.where((q >= kv) & (q != 5), s, float("-inf")),
            "log": lambda s, b, h, q, kv: s + torch.log(torch.relu((q - kv).float())) * of_head[h],
        }
        return None if name == "none" else score_mod(mods[name])

    return make


@pytest.fixture(scope="session")
def dense() -> Callable[..., Tensor]:
    """A mask at every position: ``(mask, q_len, kv_len, batch, heads) -> [batch, heads, q_len, kv_len]``, or ``[q_len,
    kv_len]`` of one batch and head."""

    def evaluate(mask: MaskMod, q_len: int, kv_len: int | None = None, batch: int = 1, heads: int = 1) -> Tensor:
        sizes = (batch, heads, q_len, q_len if kv_len is None else kv_len)
        index = [
            torch.arange(n, dtype=torch.int32).view([-1 if d == own else 1 for d in range(4)])
            for own, n in enumerate(sizes)
        ]
        seen = mask(*index).expand(sizes)
        return seen[0, 0] if batch == heads == 1 else seen

    return evaluate


@pytest.fixture(scope="session")
def looped() -> Callable[..., Tensor]:
    """A formula in plain Python at every position: ``(formula, q_len, kv_len, batch, heads)``, shaped as ``dense``."""

    def evaluate(formula: Callable, q_len: int, kv_len: int | None = None, batch: int = 1, heads: int = 1) -> Tensor:
        columns = range(q_len if kv_len is None else kv_len)
        seen = torch.tensor(
            [
                [[[bool(formula(b, h, i, j)) for j in columns] for i in range(q_len)] for h in range(heads)]
                for b in range(batch)
            ]
        )
        return seen[0, 0] if batch == heads == 1 else seen

    return evaluate
