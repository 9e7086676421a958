"""Higher-order graph network, k = 1 (Morris et al., 2019, equation 5): ``W_root x_i + W_rel Σ_j w_ji x_j``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .features import Features, aggregate_then_map, check_fits, node_sizes, pair
from .linear import Linear
from .lookup import edge_weights, plain_graph
from .options import read_channels, read_options, refuse_torchscript


class GraphConv(torch.nn.Module):
    """PyG's ``GraphConv`` on translated graphs.

    Args:
        in_channels: input features, or ``(source, target)`` features; -1 takes the first input's.
        out_channels: output features.
        aggr: ``"add"``, ``"mean"``, ``"max"`` or ``"min"``.
        bias: learn a bias in ``W_rel``.
        options: ``flow`` of PyG's ``MessagePassing``, and ``precision`` of :func:`torch_tcgnn.spmm`.

    Shapes:
        ``x`` ``[..., N, in]`` or a pair ``([..., K, in_0], [..., M, in_1] | None)``, ``edge_weight`` ``[E]``; output
        ``[..., M, out_channels]``.

    Raises:
        NotImplementedError: an option that only PyG's layer has.
        ValueError: inputs that do not fit.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> conv = tcg.nn.GraphConv(4, 2)
        >>> conv(torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]]), torch.tensor([0.5, 2.0])).shape
        torch.Size([3, 2])

    Reference:
        Morris et al., Weisfeiler and Leman go neural, AAAI 2019.
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: str = "add",
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.aggr = aggr
        self.passing = read_options(self, aggr, options)
        self.in_channels, self.out_channels = in_channels, out_channels
        source, target = read_channels(self, in_channels, out_channels)
        self.lin_rel = Linear(source, out_channels, bias=bias)
        self.lin_root = Linear(target, out_channels, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new parameters."""
        self.lin_rel.reset_parameters()
        self.lin_root.reset_parameters()

    def forward(
        self,
        x: Features,
        edge_index: Any,
        edge_weight: Tensor | None = None,
        size: tuple[int | None, int | None] | None = None,
    ) -> Tensor:
        """``edge_index`` is anything :func:`torch_tcgnn.as_graph` takes; ``size`` is ``(sources, targets)``."""
        source, target = pair(x, "GraphConv", self.passing.flow)
        check_fits(self.lin_rel, source, "GraphConv", "x of the sources")
        if target is not None:
            check_fits(self.lin_root, target, "GraphConv", "x of the targets")
        graph = plain_graph(edge_index, node_sizes(source, target, size, "GraphConv"), self.passing.flow)
        weight = edge_weights(edge_weight, graph.num_edges, "GraphConv", graph.device)
        out = aggregate_then_map(graph, source, self.passing, self.lin_rel, weight)
        return out if target is None else out + self.lin_root(target)

    __prepare_scriptable__ = refuse_torchscript

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels})"
