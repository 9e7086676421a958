"""Tokens on a grid: neighbourhoods, tiles, axes. Grids are numbered row-major: the last axis is the fastest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..factory_arguments import check_per_axis
from ..mods import MaskMod, mask_mod
from ..tables import Read

Size = int | tuple[int, ...]


def natten1d(
    shape: Size, kernel: Size, dilation: Size = 1, stride: Size = 1, is_causal: bool | tuple[bool, ...] = False
) -> MaskMod:
    """The ``kernel`` tokens around a query; at the borders the window stays inside, so all see as many.

    Args:
        shape: number of tokens.
        kernel: tokens in a window.
        dilation: a query sees tokens of its own residue class modulo ``dilation``.
        stride: so many neighbouring queries share the window of the middle one.
        is_causal: a window ends with its query.

    Raises:
        InputError: a number below 1, ``kernel · dilation`` larger than ``shape``, ``stride`` larger than ``kernel``.
        KindError: no integer.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(5), torch.tensor(0)
        >>> natten1d(5, 3)(zero, zero, i[:, None], i).int()
        tensor([[1, 1, 1, 0, 0],
                [1, 1, 1, 0, 0],
                [0, 1, 1, 1, 0],
                [0, 0, 1, 1, 1],
                [0, 0, 1, 1, 1]], dtype=torch.int32)

    Reference:
        Hassani et al. 2023 (NAT), section 3.1; Hassani and Shi 2022 (DiNAT), section 3; Hassani et al. 2025
        (generalized neighborhood attention), section 3.
    """
    return _natten(1, shape, kernel, dilation, stride, is_causal)


def natten2d(
    shape: Size, kernel: Size, dilation: Size = 1, stride: Size = 1, is_causal: bool | tuple[bool, ...] = False
) -> MaskMod:
    """The window of ``kernel`` around a query on a grid of ``(height, width)``; arguments as :func:`natten1d`.

    Args:
        shape: ``(height, width)``; token ``y · width + x``.
        kernel: tokens in a window, one number for both axes or one each.
        dilation: likewise.
        stride: likewise.
        is_causal: likewise.

    Raises:
        InputError: as :func:`natten1d`, by axis.
        KindError: no integer.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(12), torch.tensor(0)
        >>> natten2d((3, 4), (3, 1))(zero, zero, torch.tensor(6), i).view(3, 4).int()
        tensor([[0, 0, 1, 0],
                [0, 0, 1, 0],
                [0, 0, 1, 0]], dtype=torch.int32)

    Reference:
        As :func:`natten1d`.
    """
    return _natten(2, shape, kernel, dilation, stride, is_causal)


def natten3d(
    shape: Size, kernel: Size, dilation: Size = 1, stride: Size = 1, is_causal: bool | tuple[bool, ...] = False
) -> MaskMod:
    """The window of ``kernel`` around a query on a grid of ``(depth, height, width)``; arguments as :func:`natten1d`.

    Args:
        shape: ``(depth, height, width)``; token ``(z · height + y) · width + x``.
        kernel: tokens in a window, one number for all axes or one each.
        dilation: likewise.
        stride: likewise.
        is_causal: likewise; ``(True, False, False)`` for video.

    Raises:
        InputError: as :func:`natten1d`, by axis.
        KindError: no integer.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(60), torch.tensor(0)
        >>> natten3d((3, 4, 5), (3, 3, 3))(zero, zero, i[:, None], i).sum(1).unique()
        tensor([27])

    Reference:
        As :func:`natten1d`.
    """
    return _natten(3, shape, kernel, dilation, stride, is_causal)


def sliding_tile(shape: Size, tile: Size, kernel: Size) -> MaskMod:
    """A neighbourhood of whole tiles: the queries of a tile see the tiles of a window around it.

    Tokens are in the order of :func:`tile_order`: those of a tile are neighbours, so that visible blocks are dense.

    Args:
        shape: of the grid, ``(height, width)`` or any number of axes.
        tile: tokens of a tile, one number an axis; divides ``shape``.
        kernel: tokens of a window, one number an axis; a multiple of ``tile``.

    Raises:
        InputError: numbers that are below 1, do not divide each other, or a window larger than the grid.
        KindError: no integer.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(6), torch.tensor(0)
        >>> sliding_tile((2, 3), (2, 1), (2, 1))(zero, zero, torch.tensor(2), i).int()
        tensor([0, 0, 1, 1, 0, 0], dtype=torch.int32)

    Reference:
        Zhang et al. 2025 (Sliding Tile Attention), section 3.
    """
    sizes, tiles, tokens = _tiling(shape, tile)
    axes = len(sizes)
    windows = []
    for size, one, width in zip(sizes, tiles, check_per_axis("kernel", kernel, axes)):
        if width % one or width > size:
            raise InputError(f"kernel must be a multiple of tile and not exceed shape, got {width}, {one} and {size}")
        windows.append(width // one)
    counts = tuple(size // one for size, one in zip(sizes, tiles))
    inner = _grid_windows(counts, tuple(windows), (1,) * axes, (1,) * axes, (False,) * axes)
    mask = mask_mod(lambda b, h, q_idx, kv_idx: inner(q_idx // tokens, kv_idx // tokens))
    return _of_tokens(math.prod(sizes), mask)


def tile_order(shape: Size, tile: Size) -> Tensor:
    """The row-major numbers of a grid's tokens, tile by tile: ``x[:, :, tile_order(shape, tile)]`` is ordered so.

    Args:
        shape: of the grid.
        tile: tokens of a tile, one number an axis; divides ``shape``.

    Returns:
        int64 ``[tokens]``; its ``argsort()`` undoes it.

    Raises:
        InputError: numbers that are below 1 or do not divide each other.
        KindError: no integer.

    Example:
        >>> tile_order((2, 4), (2, 2))
        tensor([0, 1, 4, 5, 2, 3, 6, 7])

    Reference:
        Zhang et al. 2025 (Sliding Tile Attention), section 3.
    """
    sizes, tiles, _ = _tiling(shape, tile)
    split = [n for size, one in zip(sizes, tiles) for n in (size // one, one)]
    axes = range(len(sizes))
    order = [*(2 * axis for axis in axes), *(2 * axis + 1 for axis in axes)]
    return torch.arange(math.prod(sizes)).view(split).permute(order).reshape(-1)


def axial(shape: Size, dim: int) -> MaskMod:
    """A query sees the tokens on its line along one axis: all other coordinates are equal.

    Args:
        shape: of the grid, ``(height, width)`` or any number of axes.
        dim: the axis of the line; negative ones count from the last.

    Raises:
        InputError: a size below 1, an axis that the grid has not.
        KindError: no integer.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(6), torch.tensor(0)
        >>> axial((2, 3), 0)(zero, zero, torch.tensor(1), i).int()
        tensor([0, 1, 0, 0, 1, 0], dtype=torch.int32)

    Reference:
        Ho et al. 2019 (Axial attention), section 3.
    """
    sizes = check_per_axis("shape", shape, len(shape) if isinstance(shape, tuple | list) else 1)
    if isinstance(dim, bool) or not isinstance(dim, int) or not -len(sizes) <= dim < len(sizes):
        raise InputError(f"dim must be an axis of shape {sizes}, got {dim!r}")
    inner = math.prod(sizes[dim % len(sizes) + 1 :])  # tokens from one on the line to the next
    line = inner * sizes[dim]
    if inner == 1:
        return mask_mod(lambda b, h, q_idx, kv_idx: q_idx // line == kv_idx // line)
    return mask_mod(lambda b, h, q_idx, kv_idx: (q_idx // line == kv_idx // line) & (q_idx % inner == kv_idx % inner))


def _natten(
    axes: int, shape: Size, kernel: Size, dilation: Size, stride: Size, is_causal: bool | tuple[bool, ...]
) -> MaskMod:
    sizes, kernels = check_per_axis("shape", shape, axes), check_per_axis("kernel", kernel, axes)
    dilations, strides = check_per_axis("dilation", dilation, axes), check_per_axis("stride", stride, axes)
    causal = tuple(is_causal) if isinstance(is_causal, tuple | list) else (is_causal,) * axes
    if len(causal) != axes or not all(isinstance(c, bool) for c in causal):
        raise InputError(f"is_causal must be a bool or {axes} of them, got {is_causal!r}")
    for size, width, step, group in zip(sizes, kernels, dilations, strides):
        if width * step > size:
            raise InputError(f"kernel · dilation must not exceed shape, got {width} · {step} > {size}")
        if group > width:
            raise InputError(f"stride must not exceed kernel, got {group} > {width}")
    inner = _grid_windows(sizes, kernels, dilations, strides, causal)
    return _of_tokens(math.prod(sizes), mask_mod(lambda b, h, q_idx, kv_idx: inner(q_idx, kv_idx)))


def _of_tokens(tokens: int, mask: MaskMod) -> MaskMod:
    """The mask with the number of its tokens; in compiled code, where it is not recorded yet, without."""
    return replace(mask, tokens=tokens) if isinstance(mask, MaskMod) else mask


def _grid_windows(
    sizes: tuple[int, ...],
    kernels: tuple[int, ...],
    dilations: tuple[int, ...],
    strides: tuple[int, ...],
    causal: tuple[bool, ...],
) -> Read:
    """``(i, j) -> bool``: whether token ``j`` is in the window of ``i`` on every axis."""
    windows = tuple(_window(*of_axis) for of_axis in zip(sizes, kernels, dilations, strides, causal))

    def seen(i: Any, j: Any) -> Any:
        on_axes = [window(x, y) for window, x, y in zip(windows, _coordinates(i, sizes), _coordinates(j, sizes))]
        result = on_axes[0]
        for other in on_axes[1:]:
            result = result & other
        return result

    return seen


def _coordinates(token: Any, sizes: Sequence[Any]) -> list[Any]:
    """Of a token of a row-major grid, one an axis. Numbers after the grid go on along the first axis."""
    found = []
    for size in sizes[:0:-1]:
        found.append(token % size)
        token = token // size
    return [token, *found[::-1]]


def _window(size: int, kernel: int, dilation: int, stride: int, causal: bool) -> Read:
    """``(x, y) -> bool`` on one axis: whether ``y`` is in the window of ``x``."""
    within = _causal_window(kernel, stride) if causal else _centred_window(kernel, stride)
    if dilation == 1:
        return lambda x, y: within(x, y, size)

    def seen(x: Any, y: Any) -> Any:
        residue = x % dilation
        members = (size - residue + (dilation - 1)) // dilation
        return (y % dilation == residue) & within(x // dilation, y // dilation, members)

    return seen


def _centred_window(kernel: int, stride: int) -> Read:
    """``(x, y, size) -> bool``: ``kernel`` places around the leader of ``x``, moved inside the axis."""
    half, leader = kernel // 2, _leader(stride, stride // 2)

    def seen(x: Any, y: Any, size: Any) -> Any:
        start = (leader(x, size) - half).clamp(min=0).clamp(max=size - kernel)
        return (y >= start) & (y < start + kernel)

    return seen


def _causal_window(kernel: int, stride: int) -> Read:
    """``(x, y, size) -> bool``: ``kernel`` places that end with the leader of ``x``, but none after ``x``."""
    leader = _leader(stride, stride - 1)
    return lambda x, y, size: (y <= x) & (y > leader(x, size) - kernel)


def _leader(stride: int, place: int) -> Read:
    """``(x, size)``: the query whose window that of ``x`` is, at ``place`` in its group of ``stride``."""
    if stride == 1:
        return lambda x, size: x
    return lambda x, size: (x // stride * stride + place).clamp(max=size - 1)


def _tiling(shape: Size, tile: Size) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Sizes and tile of each axis, and how many tokens a tile has."""
    axes = len(shape) if isinstance(shape, tuple | list) else 1
    sizes, tiles = check_per_axis("shape", shape, axes), check_per_axis("tile", tile, axes)
    for size, one in zip(sizes, tiles):
        if size % one:
            raise InputError(f"tile must divide shape, got {tiles} and {sizes}")
    return sizes, tiles, math.prod(tiles)
