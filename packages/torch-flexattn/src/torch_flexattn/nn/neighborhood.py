"""Neighbourhood attention: every token of a grid sees the window around it."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..factory_arguments import check_per_axis
from ..functional import flex_attention
from ..masks import natten1d, natten2d, natten3d
from ..mods import MaskMod
from .arguments import check_share, check_sizes

Size = int | tuple[int, ...]
FACTORIES: dict[int, Callable[..., MaskMod]] = {1: natten1d, 2: natten2d, 3: natten3d}


@functools.lru_cache(maxsize=64)
def mask_of(shape: tuple[int, ...], kernel: Size, dilation: Size, stride: Size, is_causal: object) -> MaskMod:
    """The mask of a grid, made once for each shape."""
    return FACTORIES[len(shape)](shape, kernel, dilation, stride, is_causal)


class _Neighborhood(nn.Module):
    """What the three share."""

    axes: ClassVar[int]

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        kernel_size: Size,
        dilation: Size = 1,
        stride: Size = 1,
        is_causal: bool | tuple[bool, ...] = False,
        *,
        bias: bool = True,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(embed_dim=embed_dim, num_heads=num_heads)
        check_share("dropout", dropout)
        if embed_dim % num_heads:
            raise InputError(f"embed_dim must be a multiple of num_heads, got {embed_dim} and {num_heads}")
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.kernel_size, self.dilation, self.stride, self.is_causal = (
            tuple(of) if isinstance(of, list) else of for of in (kernel_size, dilation, stride, is_causal)
        )
        kernels = check_per_axis("kernel_size", self.kernel_size, self.axes)
        steps = check_per_axis("dilation", self.dilation, self.axes)
        smallest = tuple(width * step for width, step in zip(kernels, steps))
        mask_of(smallest, self.kernel_size, self.dilation, self.stride, self.is_causal)  # checks the options
        made = {"device": device, "dtype": dtype}
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=bias, **made)
        self.proj = nn.Linear(embed_dim, embed_dim, bias=bias, **made)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != self.axes + 2 or x.shape[-1] != self.embed_dim:
            names = ", ".join(("depth", "height", "width")[-self.axes :]) if self.axes > 1 else "length"
            raise InputError(f"x must have the shape [B, {names}, {self.embed_dim}], got {tuple(x.shape)}")
        options = self.kernel_size, self.dilation, self.stride, self.is_causal
        if torch.compiler.is_dynamo_compiling():  # sizes may be open there
            mask = FACTORIES[self.axes](tuple(x.shape[1:-1]), *options)
        else:
            mask = mask_of(tuple(operator.index(n) for n in x.shape[1:-1]), *options)
        made = self.qkv(x.flatten(1, -2)).unflatten(2, (3, self.num_heads, -1))
        q, k, v = made.permute(2, 0, 3, 1, 4).unbind(0)
        out = flex_attention(q, k, v, mask_mod=mask, dropout_p=self.dropout if self.training else 0.0)
        return self.proj(out.transpose(1, 2).flatten(2)).view(x.shape)

    def extra_repr(self) -> str:
        """Sizes and options."""
        return (
            f"{self.embed_dim}, {self.num_heads}, kernel_size={self.kernel_size}, dilation={self.dilation}, "
            f"stride={self.stride}, is_causal={self.is_causal}"
        )


class NeighborhoodAttention1d(_Neighborhood):
    """Self-attention of tokens in a row, each with the ``kernel_size`` tokens around it.

    Args:
        embed_dim: width of inputs and outputs.
        num_heads: divides ``embed_dim``.
        kernel_size: tokens in a window.
        dilation: a query sees tokens of its own residue class modulo ``dilation``.
        stride: so many neighbouring queries share the window of the middle one.
        is_causal: a window ends with its query.
        bias: of the projections.
        dropout: share of the softmax that is dropped in training.
        device: of the parameters.
        dtype: of the parameters.

    Shapes:
        ``x`` ``[B, length, embed_dim]`` gives the same shape.

    Raises:
        InputError: numbers that do not fit; a row shorter than ``kernel_size · dilation``.
        KindError: no integer.

    Example:
        >>> import torch
        >>> from torch_flexattn.nn import NeighborhoodAttention1d
        >>> NeighborhoodAttention1d(8, 2, kernel_size=3)(torch.randn(1, 10, 8)).shape
        torch.Size([1, 10, 8])

    Reference:
        Hassani et al. 2023 (NAT), section 3.1; Hassani and Shi 2022 (DiNAT), section 3.
    """

    axes = 1


class NeighborhoodAttention2d(_Neighborhood):
    """Self-attention of tokens on a grid, each with the window around it; as :class:`NeighborhoodAttention1d`.

    ``kernel_size``, ``dilation``, ``stride`` and ``is_causal`` are one for both axes or ``(height, width)``.

    Shapes:
        ``x`` ``[B, height, width, embed_dim]`` gives the same shape.

    Raises:
        InputError: as :class:`NeighborhoodAttention1d`, by axis.
        KindError: no integer.

    Example:
        >>> import torch
        >>> from torch_flexattn.nn import NeighborhoodAttention2d
        >>> NeighborhoodAttention2d(8, 2, kernel_size=(3, 5))(torch.randn(1, 4, 6, 8)).shape
        torch.Size([1, 4, 6, 8])

    Reference:
        As :class:`NeighborhoodAttention1d`.
    """

    axes = 2


class NeighborhoodAttention3d(_Neighborhood):
    """Self-attention of tokens in a volume, each with the window around it; as :class:`NeighborhoodAttention1d`.

    ``kernel_size``, ``dilation``, ``stride`` and ``is_causal`` are one for all axes or ``(depth, height, width)``; of a
    video ``is_causal=(True, False, False)``.

    Shapes:
        ``x`` ``[B, depth, height, width, embed_dim]`` gives the same shape.

    Raises:
        InputError: as :class:`NeighborhoodAttention1d`, by axis.
        KindError: no integer.

    Example:
        >>> import torch
        >>> from torch_flexattn.nn import NeighborhoodAttention3d
        >>> NeighborhoodAttention3d(8, 2, kernel_size=3)(torch.randn(1, 3, 4, 5, 8)).shape
        torch.Size([1, 3, 4, 5, 8])

    Reference:
        As :class:`NeighborhoodAttention1d`.
    """

    axes = 3
