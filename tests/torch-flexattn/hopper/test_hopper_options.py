"""Why Hopper's kernels do not serve, which sizes they take and which are tried: decided without such a GPU."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch_flexattn import InputError, create_block_mask, masks
from torch_flexattn.kernels.asked import asked_tiles
from torch_flexattn.kernels.hopper import attention, requirements
from torch_flexattn.kernels.passes import Pass
from torch_flexattn.options import Tile
from torch_flexattn.tune.candidates import MOST, candidates


def tensors(queries: int = 200, width: int = 64, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    return [torch.zeros(1, 2, n, width, dtype=dtype) for n in (queries, 256, 256)]


def call(width: int = 64, block: int = 128, *, backward: bool = False) -> Pass:
    q, k, v = tensors(256, width)
    mask = create_block_mask(masks.causal(), None, None, 256, 256, BLOCK_SIZE=block)
    inputs = (q, None, q, k, v, q, q[..., 0]) if backward else (q, k, v)
    options: dict[str, Any] = {"mask": mask, "score": None}
    return Pass(inputs, options, None, 0.0, 0, False, backward=backward)


def test_a_reason_is_given_exactly_where_they_do_not_serve():
    lens = torch.tensor([3])
    reasons = set()
    for queries, width, dtype, block, kv_lens, dropout_p, odd in itertools.product(
        (0, 64, 65, 200), (64, 264), (torch.bfloat16, torch.float32), (None, 64, 128), (None, lens), (0.0, 0.5), (0, 1)
    ):
        q, k, v = tensors(queries, width, dtype)
        if odd:
            k = torch.zeros(1, 2, 256, width + 1, dtype=dtype)[..., :width]
        mask = None
        if block is not None:
            mask = create_block_mask(masks.causal(), None, None, queries, 256, BLOCK_SIZE=block)
        given = (mask, kv_lens, dropout_p)
        found = requirements.why_not_forward(q, k, v, *given)
        assert (found is None) == attention.serves_forward(q, k, v, *given)
        grad = torch.zeros_like(q)
        backward = requirements.why_not_backward(grad, q, k, v, *given)
        assert (backward is None) == attention.serves_backward(grad, q, k, v, *given)
        reasons |= {found, backward}
    said = [r for r in reasons if r is not None]
    for words in (
        "16 bits",
        "256 features, got 264",
        "kv_lens",
        "dropout_p=0.5",
        "got 64 × 64",
        "16 bytes",
        "got 64",
        "got 0",
    ):
        assert any(words in reason for reason in said), words


@pytest.mark.parametrize(
    "tile, width, backward, taken",
    [
        (Tile(128, 64, None, 3), 64, False, attention.Tiles(64, 3)),
        (Tile(None, None, None, 3), 128, False, attention.Tiles(128, 3)),
        (Tile(128, None, None, None), 256, False, attention.Tiles(64, 2)),
        (Tile(128, 128, None, 1), 64, True, attention.BackwardTiles(128, 128, (1, 1))),
        (Tile(64, 64, None, None), 256, True, attention.BackwardTiles(64, 64, (2, 1), attention.REGISTERS_OF_THREE)),
    ],
)
def test_sizes_that_fit_are_taken(tile, width, backward, taken):
    assert asked_tiles(call(width, backward=backward), "hopper", tile) == taken


@pytest.mark.parametrize(
    "tile, width, backward, said",
    [
        (Tile(rows=64), 64, False, "BLOCK_M of Hopper's kernels is 128 here, got 64"),
        (Tile(keys=32), 64, False, "BLOCK_N of Hopper's kernels is 64 or 128 here, got 32"),
        (Tile(warps=8), 64, False, "num_warps is none of Hopper's kernels"),
        (Tile(keys=64), 64, True, "BLOCK_N of Hopper's kernels is 128 here, got 64"),
        (Tile(rows=128), 128, True, "BLOCK_M of Hopper's kernels is 64 here, got 128"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(tile, width, backward, said):
    with pytest.raises(InputError, match=said):
        asked_tiles(call(width, backward=backward), "hopper", tile)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("width", [64, 128, 256])
def test_candidates_begin_with_what_runs_untuned_and_are_few(width, backward):
    found = candidates(call(width, backward=backward), ("hopper", "triton"))
    own = (attention.backward_tiles if backward else attention.forward_tiles)(width)
    assert (found[0].kernel, found[0].tiles) == ("hopper", own)
    assert {c.kernel for c in found} == {"hopper", "triton"}
    assert len(set(found)) == len(found) <= MOST
    if backward:
        tiles = {(c.tiles.rows, c.tiles.stages) for c in found if c.kernel == "hopper"}
        assert ((128, (1, 1)) in tiles) == (width == 64)  # of what fits into shared memory there
        assert ((64, (3, 3)) in tiles) == (width <= 128)
