"""Biases that are read from a table: by distance, by place in a window, by pair."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..default_device import made_on
from ..errors import InputError
from ..factory_arguments import (
    check_count,
    check_float_table,
    check_int_table,
    check_per_axis,
    check_range,
)
from ..mods import ScoreMod, score_mod
from ..tables import by_position


def relative_bias(table: Tensor) -> ScoreMod:
    """A learned bias for every distance: ``s + table[h, i - j + S - 1]``.

    Args:
        table: ``[H, 2S - 1]``, for distances from ``-(S - 1)`` to ``S - 1``. Gradients reach it.

    Raises:
        InputError: a wrong shape, an even number of distances.
        KindError: no floating-point tensor.

    Example:
        >>> import torch
        >>> j, zero = torch.arange(2), torch.tensor(0)
        >>> relative_bias(torch.tensor([[1.0, 2.0, 3.0]]))(torch.zeros(2), zero, zero, torch.tensor(1), j)
        tensor([3., 2.])

    Reference:
        Shaw et al. 2018, section 3.1; Raffel et al. 2020 (T5), section 2.1, for one number a head.
    """
    check_float_table("table", table, "[H, 2S - 1]", [2])
    if table.shape[1] % 2 == 0:
        raise InputError(f"table must have the shape [H, 2S - 1], got {list(table.shape)}")
    middle = table.shape[1] // 2
    return score_mod(lambda score, b, h, q_idx, kv_idx: score + table[h, q_idx - kv_idx + middle])


def t5_bias(table: Tensor, *, bidirectional: bool = True, max_distance: int = 128) -> ScoreMod:
    """A learned bias for distances in buckets, which widen with the distance: ``s + table[bucket(j - i), h]``.

    Args:
        table: ``[buckets, H]``, the weight of T5's ``relative_attention_bias``. Gradients reach it.
        bidirectional: keys after the query have half of the buckets; otherwise they are taken to be at it.
        max_distance: from here on there is one bucket.

    Raises:
        InputError: a wrong shape, too few buckets, ``max_distance`` not beyond the exact buckets.
        KindError: no floating-point tensor, no integer.

    Example:
        >>> import torch
        >>> table = torch.arange(32.0).unsqueeze(1)
        >>> j, zero = torch.tensor([0, 136, 199, 200, 207, 400]), torch.tensor(0)
        >>> t5_bias(table)(torch.zeros(6), zero, zero, torch.tensor(200), j)
        tensor([15., 14.,  1.,  0., 23., 31.])

    Reference:
        Raffel et al. 2020 (T5), section 2.1 and the authors' code.
    """
    check_float_table("table", table, "[buckets, H]", [2])
    with made_on(table.device):
        bucket = t5_buckets(table.shape[0], bidirectional=bidirectional, max_distance=max_distance).to(table.device)
    return in_buckets(table, bucket, bidirectional=bidirectional)


def in_buckets(table: Tensor, bucket: Tensor, *, bidirectional: bool) -> ScoreMod:
    """:func:`t5_bias` with the bucket of every distance, as :func:`t5_buckets` gives them.

    Args:
        table: ``[buckets, H]``.
        bucket: int32 ``[max_distance + 1]``.
        bidirectional: as of :func:`t5_bias`.

    Example:
        >>> import torch
        >>> mod = in_buckets(torch.ones(4, 1), torch.tensor([0, 1]), bidirectional=True)
        >>> zero = torch.tensor(0)
        >>> mod(torch.tensor(2.0), zero, zero, zero, zero)
        tensor(3.)
    """
    last, ahead = bucket.shape[0] - 1, table.shape[0] // 2
    if not bidirectional:
        return score_mod(
            lambda score, b, h, q_idx, kv_idx: score + table[bucket[(q_idx - kv_idx).clamp(min=0).clamp(max=last)], h]
        )

    def mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        place = bucket[(q_idx - kv_idx).abs().clamp(max=last)]
        return score + table[torch.where(kv_idx > q_idx, place + ahead, place), h]

    return score_mod(mod)


def t5_buckets(buckets: int = 32, *, bidirectional: bool = True, max_distance: int = 128) -> Tensor:
    """The bucket of every distance ``0 … max_distance`` to keys before the query; farther ones are in the last.

    The first half has one distance each; the others widen as the logarithm of the distance, in exact arithmetic.

    Args:
        buckets: number of buckets; of both directions together, if ``bidirectional``.
        bidirectional: half of them are for keys after the query.
        max_distance: from here on there is one bucket.

    Returns:
        int32 ``[max_distance + 1]``.

    Raises:
        InputError: too few buckets, an odd number for two directions, ``max_distance`` not beyond the exact buckets.
        KindError: no integer.

    Example:
        >>> t5_buckets(8, bidirectional=False, max_distance=12)
        tensor([0, 1, 2, 3, 4, 4, 5, 6, 6, 6, 7, 7, 7], dtype=torch.int32)

    Reference:
        As :func:`t5_bias`.
    """
    directions = 2 if bidirectional else 1
    check_count("buckets", buckets, 2 * directions)
    if buckets % (2 * directions):
        raise InputError(f"buckets must be a multiple of {2 * directions}, got {buckets}")
    half = buckets // directions
    exact = half // 2
    check_count("max_distance", max_distance, exact + 1)
    wide = half - exact

    def bucket(distance: int) -> int:
        if distance < exact:
            return distance
        # exact + the largest n with exact · (max_distance / exact)^(n / wide) ≤ distance
        reached = sum(distance**wide * exact**n >= max_distance**n * exact**wide for n in range(1, wide))
        return exact + reached

    return torch.tensor([bucket(d) for d in range(max_distance + 1)], dtype=torch.int32)


def swin_bias(table: Tensor, window: int | Sequence[int]) -> ScoreMod:
    """A learned bias for every offset in a window: ``s + table[(yi - yj + H - 1) · (2W - 1) + xi - xj + W - 1, h]``.

    Args:
        table: ``[(2H - 1) · (2W - 1), heads]``, Swin's ``relative_position_bias_table``. Gradients reach it.
        window: ``(H, W)``, height and width; token ``y · W + x``.

    Raises:
        InputError: a wrong shape, a window below 1.
        KindError: no floating-point tensor, no integer.

    Example:
        >>> import torch
        >>> table = torch.arange(9.0).unsqueeze(1)
        >>> j, zero = torch.arange(4), torch.tensor(0)
        >>> swin_bias(table, 2)(torch.zeros(4), zero, zero, torch.tensor(0), j)
        tensor([4., 3., 1., 0.])

    Reference:
        Liu et al. 2021 (Swin Transformer), section 3.2.
    """
    check_float_table("table", table, "[(2H - 1) · (2W - 1), heads]", [2])
    height, width = check_per_axis("window", tuple(window) if isinstance(window, Sequence) else window, 2)
    if table.shape[0] != (2 * height - 1) * (2 * width - 1):
        wanted = f"[{(2 * height - 1) * (2 * width - 1)}, heads] for a window of {(height, width)}"
        raise InputError(f"table must have the shape {wanted}, got {list(table.shape)}")
    line, last_row, last_column = 2 * width - 1, height - 1, width - 1

    def mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        down = q_idx // width - kv_idx // width + last_row
        right = q_idx % width - kv_idx % width + last_column
        return score + table[down * line + right, h]

    return score_mod(mod)


def pair_bias(bias: Tensor) -> ScoreMod:
    """A bias for every pair: ``s + bias[b, h, i, j]``.

    Args:
        bias: ``[B, H, L, S]``; ``B`` and ``H`` may be 1, for all. Gradients reach it.

    Raises:
        InputError: a wrong shape.
        KindError: no floating-point tensor.

    Example:
        >>> import torch
        >>> j, zero = torch.arange(2), torch.tensor(0)
        >>> pair_bias(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]))(torch.zeros(2), zero, zero, torch.tensor(1), j)
        tensor([3., 4.])

    Reference:
        Jumper et al. 2021 (AlphaFold 2), supplement, algorithm 13.
    """
    return _added("bias", bias, "[B, H, L, S]", [4])


def add_mask(mask: Tensor) -> ScoreMod:
    """What is added to scores, as SDPA's floating-point ``attn_mask``: ``s + mask[b, h, i, j]``; −inf hides a key.

    Args:
        mask: ``[L, S]``, ``[H, L, S]`` or ``[B, H, L, S]``; a dimension of size 1 stands for any size. Gradients reach
            it.

    Raises:
        InputError: a wrong shape.
        KindError: no floating-point tensor.

    Example:
        >>> import torch
        >>> j, zero = torch.arange(2), torch.tensor(0)
        >>> add_mask(torch.tensor([[1.0, -torch.inf]]))(torch.zeros(2), zero, zero, zero, j)
        tensor([1., -inf])

    Reference:
        ``attn_mask`` of ``torch.nn.functional.scaled_dot_product_attention``.
    """
    return _added("mask", mask, "[L, S], [H, L, S] or [B, H, L, S]", [2, 3, 4])


def _added(name: str, table: Tensor, shapes: str, dims: Sequence[int]) -> ScoreMod:
    check_float_table(name, table, shapes, dims)
    if table.numel() == 0:
        raise InputError(f"{name} must not be empty, got {list(table.shape)}")
    read = by_position(table)
    return score_mod(lambda score, b, h, q_idx, kv_idx: score + read(b, h, q_idx, kv_idx))


def graphormer(table: Tensor, dist: Tensor) -> ScoreMod:
    """A learned bias for the distance of two nodes in a graph: ``s + table[dist[b, i, j], h]``.

    Args:
        table: ``[distances, H]``, one more number a head for every distance. Gradients reach it.
        dist: integers ``[N, N]`` or ``[B, N, N]``, numbers of rows of ``table``: the length of the shortest path, and a
            row of its own for nodes that no path connects.

    Raises:
        InputError: a wrong shape, numbers of rows that are not there (checked on the CPU only).
        KindError: no floating-point tensor, no integers.

    Example:
        >>> import torch
        >>> j, zero = torch.arange(2), torch.tensor(0)
        >>> mod = graphormer(torch.tensor([[5.0], [7.0]]), torch.tensor([[0, 1], [1, 0]]))
        >>> mod(torch.zeros(2), zero, zero, torch.tensor(1), j)
        tensor([7., 5.])

    Reference:
        Ying et al. 2021 (Graphormer), section 3.1.2.
    """
    check_float_table("table", table, "[distances, H]", [2])
    steps = check_int_table("dist", dist, "[N, N] or [B, N, N]", [2, 3])
    check_range("dist", steps, 0, table.shape[0] - 1)
    if steps.dim() == 2:
        return score_mod(lambda score, b, h, q_idx, kv_idx: score + table[steps[q_idx, kv_idx], h])
    return score_mod(lambda score, b, h, q_idx, kv_idx: score + table[steps[b, q_idx, kv_idx], h])
