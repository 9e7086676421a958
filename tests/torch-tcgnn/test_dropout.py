"""The hash behind dropout of attention weights: a published generator, the right share, nothing correlated."""

from __future__ import annotations

import math

import torch
from torch_tcgnn.kernels.dropout import keep_mask


def test_dropout_keeps_the_right_share_independently_over_edges_heads_and_seeds() -> None:
    edges, heads, dropout = torch.arange(20_000), 8, 0.3
    kept = keep_mask(torch.tensor([1234]), edges, heads, dropout).double()
    other = keep_mask(torch.tensor([1235]), edges, heads, dropout).double()
    spread = math.sqrt(dropout * (1 - dropout) / edges.numel())
    assert (kept.mean(0) - 0.7).abs().max() < 5 * spread
    pairs = {"heads": (kept[:, :-1], kept[:, 1:]), "edges": (kept[:-1], kept[1:]), "seeds": (kept, other)}
    for name, (a, b) in pairs.items():
        correlation = ((a - 0.7) * (b - 0.7)).mean() / (0.3 * 0.7)
        assert abs(correlation) < 5 / math.sqrt(a.numel()), name


def test_dropout_mask_is_splitmix64() -> None:
    def splitmix(state: int, n: int) -> int:
        z = (state + n * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    assert splitmix(1234567, 1) == 6457827717110365317  # first output of the published generator for this seed
    seed = 8_000_000_000_000_000_007
    edges = torch.tensor([0, 5, 2**40])
    kept = keep_mask(torch.tensor([seed]), edges, 3, 0.25)
    want = [[splitmix(seed, e * 3 + h + 1) ^ 2**63 >= 2**62 for h in range(3)] for e in edges.tolist()]
    assert kept.tolist() == want
