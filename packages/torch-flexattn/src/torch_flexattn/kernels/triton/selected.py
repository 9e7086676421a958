"""Launches the kernels of attention to selected blocks."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ..launch.kernel import Kernel
from ..launch.launch import launch
from ..selected_lists import by_block, segments
from .chunks import next_power_of_2
from .layout import last_together, ordered_like
from .precision import precision
from .tiles import Tiles

QUERIES, KEYS = (f"torch_flexattn.kernels.triton.selected_{which}_kernel" for which in ("queries", "keys"))
FORWARD, BACKWARD = (Kernel(name, module=QUERIES) for name in ("forward", "backward"))
SEGMENT_OF_KEYS, ADD_SEGMENTS = (Kernel(name, module=KEYS) for name in ("segment", "add_segments"))
LEAST = 16
"""Rows and features of a tile, at least: what a tensor core multiplies at once."""
MOST_HEADS = 64
"""Rows of a tile of one query, at most."""
SEGMENT = 512
"""Queries of a segment, at least."""
LONG = 4
"""Times the average that a list may have in one segment."""


def forward(
    q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, *, block_size: int, scale: float, causal: bool, q_offset: int
) -> tuple[Tensor, Tensor]:
    """See ``kernels.cpu.selected.forward``."""
    (batch, heads, rows, width), groups, width_v = q.shape, k.shape[1], v.shape[3]
    out = ordered_like(q, width_v)
    lse = torch.empty(batch, heads, rows, dtype=torch.float32, device=q.device)
    if not lse.numel():
        return out, lse
    q, k, v, blocks = *(last_together(t) for t in (q, k, v)), blocks.contiguous()
    tiles = query_tiles(width, width_v, q.element_size(), heads // groups, block_size)
    launch(
        FORWARD, _programs(q, groups, tiles),
        [
            q, k, v, out, lse, blocks, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
            *_sizes(q, k, block_size), scale, q_offset,
        ],
        **_constants(q, k, v, blocks, block_size, causal, tiles),
    )  # fmt: skip
    return out, lse


def backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    blocks: Tensor,
    *,
    block_size: int,
    scale: float,
    causal: bool,
    q_offset: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``kernels.cpu.selected.backward``."""
    (_, heads, _, width), groups, width_v = q.shape, k.shape[1], v.shape[3]
    grad_q = ordered_like(q, width)
    grad_k, grad_v = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (k, v))
    if not lse.numel():
        return grad_q, grad_k.zero_(), grad_v.zero_()
    grad_out, out, q, k, v = (last_together(t) for t in (grad_out, out, q, k, v))
    blocks = blocks.contiguous()
    lse, delta = lse.contiguous(), torch.empty(lse.shape, dtype=torch.float32, device=q.device)
    tiles = query_tiles(width, width_v, q.element_size(), heads // groups, block_size)
    launch(
        BACKWARD, _programs(q, groups, tiles),
        [
            q, k, v, out, grad_out, lse, None if grad_lse is None else grad_lse.contiguous(), delta, grad_q, blocks,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3], *grad_out.stride()[:3],
            *grad_q.stride()[:3], *_sizes(q, k, block_size), scale, q_offset,
        ],
        HAS_LSE=grad_lse is not None,
        **_constants(q, k, v, blocks, block_size, causal, tiles),
    )  # fmt: skip
    if grad_k.numel() or grad_v.numel():
        _of_keys(grad_out, q, k, v, lse, delta, blocks, grad_k, grad_v, block_size, scale, causal, q_offset)
    return grad_q, grad_k, grad_v


def _of_keys(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lse: Tensor,
    delta: Tensor,
    blocks: Tensor,
    grad_k: Tensor,
    grad_v: Tensor,
    block_size: int,
    scale: float,
    causal: bool,
    q_offset: int,
) -> None:
    """Fill the gradients of keys and values."""
    columns = -(-k.shape[2] // block_size)
    lists = by_block(blocks, columns)
    total = lists.begin.shape[0] - 1
    most = max(SEGMENT, LONG * lists.queries.shape[0] // total)
    first, owner = segments(lists, most)
    tiles = key_tiles(q.shape[3], v.shape[3], q.element_size(), block_size)
    constants = _constants(q, k, v, blocks, block_size, causal, tiles)
    del constants["COUNT"], constants["LISTED"]
    sums = [
        torch.empty(owner.shape[0], block_size, t.shape[3], dtype=torch.float32, device=q.device)
        for t in (grad_k, grad_v)
    ]
    launch(
        SEGMENT_OF_KEYS, (owner.shape[0], block_size // tiles.keys),
        [
            q, k, v, grad_out, lse, delta, *sums, lists.queries, lists.begin, first, owner, *q.stride()[:3],
            *k.stride()[:3], *v.stride()[:3], *grad_out.stride()[:3], *_sizes(q, k, block_size), total, scale,
            q_offset, most,
        ],
        **constants,
    )  # fmt: skip
    for parts, found in zip(sums, (grad_k, grad_v)):
        if found.numel():
            launch(
                ADD_SEGMENTS, (total, block_size // LEAST), [parts, found, first, columns, k.shape[2]],
                WIDTH=found.shape[3], PADDED=_padded(found.shape[3]), BLOCK=block_size, ROWS=LEAST, warps=2,
            )  # fmt: skip


def _programs(q: Tensor, groups: int, tiles: Tiles) -> tuple[int, int]:
    return q.shape[0] * groups * -(-(q.shape[1] // groups) // tiles.rows) * q.shape[2], 1


def _sizes(q: Tensor, k: Tensor, block_size: int) -> tuple[int, int, int, int]:
    """Heads of keys, queries, keys, blocks."""
    return k.shape[1], q.shape[2], k.shape[2], -(-k.shape[2] // block_size)


def _constants(
    q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, block_size: int, causal: bool, tiles: Tiles
) -> dict[str, Any]:
    return {
        "COUNT": blocks.shape[3], "LISTED": next_power_of_2(max(blocks.shape[3], 1)),
        "GROUP": q.shape[1] // k.shape[1], "WIDTH": q.shape[3], "PADDED": _padded(q.shape[3]),
        "VALUE_WIDTH": v.shape[3], "VALUE_PADDED": _padded(v.shape[3]), "BLOCK": block_size, "BLOCK_M": tiles.rows,
        "BLOCK_N": tiles.keys, "CAUSAL": causal, "PRECISION": precision(q), "warps": tiles.warps,
        "stages": tiles.stages,
    }  # fmt: skip


def _padded(width: int) -> int:
    return max(next_power_of_2(max(width, 1)), LEAST)


@functools.lru_cache(maxsize=256)
def query_tiles(width: int, width_v: int, element_bytes: int, group: int, block_size: int) -> Tiles:
    """Tiles of one query: the heads of its group; as many keys as fit twice."""
    rows = min(max(next_power_of_2(group), LEAST), MOST_HEADS)
    features = _padded(width) + _padded(width_v)
    small = element_bytes <= 2  # products of float32 take registers for whole rows and columns
    keys = 64 if small and features <= 256 else 32 if features * element_bytes <= 1024 else 16
    return Tiles(rows, min(keys, block_size & -block_size), 4 if rows > 16 or features > 256 else 2, 2)


@functools.lru_cache(maxsize=256)
def key_tiles(width: int, width_v: int, element_bytes: int, block_size: int) -> Tiles:
    """Tiles of a block of keys: rows are queries times heads."""
    features, small = _padded(width) + _padded(width_v), element_bytes <= 2
    side = 64 if small and features <= 256 else 32 if features * element_bytes <= 2048 else 16
    return Tiles(side, min(side, block_size & -block_size), 4, 1)
