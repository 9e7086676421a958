"""Every layer of torch-flexattn with inputs, for the conformance suite; `conformance_cases.py` hands them over."""

from __future__ import annotations

import torch
import torch_flexattn.nn as fnn
from torch_flexattn import masks, scores

from tests.conformance.cases import ModuleCase

BATCH, LENGTH, WIDTH = 2, 7, 12


def modules() -> list[ModuleCase]:
    """Layers as they are, and with their options."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, LENGTH, WIDTH, generator=rng)
    grid = torch.randn(BATCH, 3, 5, WIDTH, generator=rng)
    volume = torch.randn(1, 3, 4, 3, WIDTH, generator=rng)
    long = torch.randn(1, 71, WIDTH, generator=rng)
    hidden = torch.randn(BATCH * 3, LENGTH, LENGTH, generator=rng).masked_fill(
        torch.ones(LENGTH, LENGTH).triu(2) > 0, -torch.inf
    )

    def case(label: str, make, *inputs) -> ModuleCase:
        return ModuleCase(label, make, inputs)

    return [
        case("FlexMultiheadAttention", lambda: fnn.FlexMultiheadAttention(WIDTH, 3), x, x, x, None, False),
        case(
            "FlexMultiheadAttention, mods and masks",
            lambda: fnn.FlexMultiheadAttention(
                WIDTH, 3, add_bias_kv=True, batch_first=True, mask_mod=masks.sliding_window(5),
                score_mod=scores.alibi(3),
            ),
            x, x, x, torch.arange(LENGTH) > torch.tensor([[LENGTH], [4]]), False, hidden,
        ),
        case("FlexMultiheadAttention, weights", lambda: fnn.FlexMultiheadAttention(WIDTH, 3, kdim=WIDTH), x, x, x),
        case("GroupedQueryAttention", lambda: fnn.GroupedQueryAttention(WIDTH, 6), x),
        case(
            "GroupedQueryAttention, all options",
            lambda: fnn.GroupedQueryAttention(
                WIDTH, 6, 2, 4, bias=True, rope_scaling=fnn.RopeScaling("llama3", 8.0), qk_norm=True, window=3,
                sinks=True, score_mod=scores.softcap(5.0), mask_mod=masks.streaming(1, 2),
            ),
            x,
        ),
        case(
            "MultiheadLatentAttention",
            lambda: fnn.MultiheadLatentAttention(
                WIDTH, 3, 8, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5, q_lora_rank=7
            ),
            x,
        ),
        case("NativeSparseAttention", lambda: fnn.NativeSparseAttention(WIDTH, 3), x),
        case(
            "NativeSparseAttention, small blocks",
            lambda: fnn.NativeSparseAttention(
                WIDTH, 6, 2, 4, compression="mean", compress_block=4, compress_stride=2, select_block=16,
                num_selected=3, window=5, bias=True, rope_scaling=fnn.RopeScaling("linear", 2.0), qk_norm=True,
            ),
            long,
        ),
        case("NeighborhoodAttention1d", lambda: fnn.NeighborhoodAttention1d(WIDTH, 3, 3, dilation=2), x),
        case("NeighborhoodAttention2d", lambda: fnn.NeighborhoodAttention2d(WIDTH, 3, (3, 5), (1, 1)), grid),
        case("NeighborhoodAttention3d", lambda: fnn.NeighborhoodAttention3d(WIDTH, 3, 3, stride=2), volume),
        case("T5RelativeBias", lambda: fnn.T5RelativeBias(8, 3, max_distance=20), 5, 30),
    ]  # fmt: skip
