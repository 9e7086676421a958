"""Graph isomorphism network (Xu et al., 2019, equation 4.1): ``nn((1 + ε) x_i + Σ_j x_j)``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..graph_arguments import check_finite
from .features import Features, aggregate, node_sizes, pair
from .linear import reset
from .lookup import plain_graph
from .options import read_options, refuse_torchscript


class GINConv(torch.nn.Module):
    """PyG's ``GINConv`` on translated graphs.

    Args:
        nn: module from ``[..., in]`` to ``[..., out]``.
        eps: initial ε.
        train_eps: learn ε (else it is a buffer).
        options: ``aggr``, ``flow`` of PyG's ``MessagePassing``, and ``precision`` of :func:`torch_tcgnn.spmm`.

    Shapes:
        ``x`` ``[..., N, in]`` or a pair ``([..., K, in], [..., M, in] | None)``; output ``[..., M, out]``.

    Raises:
        NotImplementedError: an option that only PyG's layer has.
        ValueError: inputs that do not fit.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> conv = tcg.nn.GINConv(torch.nn.Identity())
        >>> conv(torch.tensor([[1.0], [2.0]]), torch.tensor([[0], [1]]))
        tensor([[1.],
                [3.]])

    Reference:
        Xu et al., How powerful are graph neural networks?, ICLR 2019.
    """

    eps: Tensor

    def __init__(self, nn: torch.nn.Module, eps: float = 0.0, train_eps: bool = False, **options: Any) -> None:
        super().__init__()
        self.aggr = options.pop("aggr", "add")
        self.passing = read_options(self, self.aggr, options)
        if not callable(nn):
            raise TypeError(f"GINConv: nn must be a module, got {type(nn).__name__}")
        check_finite("GINConv: eps", eps)
        self.nn = nn
        self.initial_eps = eps
        set_eps(self, train_eps)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new parameters of ``nn``; set ε to its initial value."""
        reset(self.nn)
        self.eps.data.fill_(self.initial_eps)

    def forward(self, x: Features, edge_index: Any, size: tuple[int | None, int | None] | None = None) -> Tensor:
        """``edge_index`` is anything :func:`torch_tcgnn.as_graph` takes; ``size`` is ``(sources, targets)``."""
        source, target = pair(x, "GINConv", self.passing.flow)
        graph = plain_graph(edge_index, node_sizes(source, target, size, "GINConv"), self.passing.flow)
        out = aggregate(graph, source, self.passing)
        if target is not None:
            out = out + (1 + self.eps) * target
        return self.nn(out)

    __prepare_scriptable__ = refuse_torchscript

    def __repr__(self) -> str:
        return f"{type(self).__name__}(nn={self.nn})"


def set_eps(layer: torch.nn.Module, train_eps: bool) -> None:
    """Register ``eps`` ``[1]`` as a parameter, or as a buffer."""
    if train_eps:
        layer.eps = Parameter(torch.empty(1))
    else:
        layer.register_buffer("eps", torch.empty(1))
