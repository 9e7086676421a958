"""Simplified graph convolution (Wu et al., 2019, equation 8): ``(D^-1/2 (A + I) D^-1/2)^K X W + b``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..graph_arguments import check_count
from .features import aggregate, check_fits, commutes, single
from .linear import Linear
from .loops import gcn_graph
from .options import read_channels, read_options, refuse_torchscript


class SGConv(torch.nn.Module):
    """PyG's ``SGConv`` on translated graphs.

    Args:
        in_channels: input features, or -1 to take the first input's.
        out_channels: output features.
        K: hops.
        cached: keep the first call's propagated features for all later calls.
        add_self_loops: add ``I``.
        bias: learn ``b``.
        options: ``aggr``, ``flow`` of PyG's ``MessagePassing``, and ``precision`` of :func:`torch_tcgnn.spmm`.

    Shapes:
        ``x`` ``[..., N, in_channels]``, ``edge_weight`` ``[E]``; output ``[..., N, out_channels]``.

    Raises:
        NotImplementedError: an option that only PyG's layer has.
        ValueError: inputs that do not fit.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> tcg.nn.SGConv(4, 2, K=2)(torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]])).shape
        torch.Size([3, 2])

    Reference:
        Wu et al., Simplifying graph convolutional networks, ICML 2019.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        K: int = 1,
        cached: bool = False,
        add_self_loops: bool = True,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.aggr = options.pop("aggr", "add")
        self.passing = read_options(self, self.aggr, options)
        read_channels(self, in_channels, out_channels, pairs=False)
        check_count("SGConv: K", K, least=0)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.K, self.cached, self.add_self_loops = K, cached, add_self_loops
        self.lin = Linear(in_channels, out_channels, bias=bias)
        self._cached_x: Tensor | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new parameters; forget ``cached`` features."""
        self.lin.reset_parameters()
        self._cached_x = None

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """``edge_index`` is anything :func:`torch_tcgnn.as_graph` takes."""
        if self._cached_x is not None:
            return self.lin(self._cached_x.detach())
        x = single(x, "SGConv")
        check_fits(self.lin, x, "SGConv")
        looped, weight = gcn_graph(
            edge_index,
            edge_weight,
            x.shape[-2],
            self.passing.flow,
            improved=False,
            add_self_loops=self.add_self_loops,
            dtype=x.dtype,
            name="SGConv",
        )
        narrow_first = not self.cached and commutes(self.lin, self.passing)
        if narrow_first and self.lin.weight.shape[0] < self.lin.weight.shape[1]:
            out = self._hops(linear(x, self.lin.weight), looped, weight)
            return out if self.lin.bias is None else out + self.lin.bias.to(out.dtype)  # under autocast it is wider
        x = self._hops(x, looped, weight)
        if self.cached:
            self._cached_x = x
        return self.lin(x)

    def _hops(self, x: Tensor, looped: Any, weight: Tensor) -> Tensor:
        for _ in range(self.K):
            x = looped.trim(aggregate(looped.graph, x, self.passing, weight), -2)
        return x

    __prepare_scriptable__ = refuse_torchscript

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, K={self.K})"
