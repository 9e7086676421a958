"""Graph convolution (Kipf & Welling, 2017, equation 2): ``D^-1/2 (A + I) D^-1/2 X W + b``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .features import aggregate, check_fits, commutes, message_dtype, single
from .linear import Linear
from .lookup import edge_weights, plain_graph
from .loops import gcn_graph
from .options import read_channels, read_options, refuse_torchscript


class GCNConv(torch.nn.Module):
    """PyG's ``GCNConv`` on translated graphs; the normalised graph is computed once for each ``edge_index``.

    Args:
        in_channels: input features, or -1 to take the first input's.
        out_channels: output features.
        improved: loops of weight 2; as in PyG 2.8.1 this acts only where edges carry weights.
        cached: keep the first call's normalised graph for all later calls.
        add_self_loops: default: ``normalize``.
        normalize: apply ``D^-1/2 · D^-1/2``.
        bias: learn ``b``.
        options: ``aggr``, ``flow`` of PyG's ``MessagePassing``, and ``precision`` of :func:`torch_tcgnn.spmm`.

    Shapes:
        ``x`` ``[..., N, in_channels]`` floating point, ``edge_weight`` ``[E]``; output ``[..., N, out_channels]``.

    Raises:
        NotImplementedError: an option that only PyG's layer has.
        ValueError: ``add_self_loops`` without ``normalize``; inputs that do not fit.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> conv = tcg.nn.GCNConv(4, 2)
        >>> conv(torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]])).shape
        torch.Size([3, 2])

    Reference:
        Kipf & Welling, Semi-supervised classification with graph convolutional networks, ICLR 2017.
    """

    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        improved: bool = False,
        cached: bool = False,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.aggr = options.pop("aggr", "add")
        self.passing = read_options(self, self.aggr, options)
        read_channels(self, in_channels, out_channels, pairs=False)
        add_self_loops = normalize if add_self_loops is None else add_self_loops
        if add_self_loops and not normalize:
            raise ValueError("GCNConv: add_self_loops=True needs normalize=True, got normalize=False")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.improved, self.cached = improved, cached
        self.add_self_loops, self.normalize = add_self_loops, normalize
        self.lin = Linear(in_channels, out_channels, bias=False, weight_initializer="glorot")
        self.register_parameter("bias", Parameter(torch.empty(out_channels)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new parameters; forget a ``cached`` graph."""
        self.lin.reset_parameters()
        if self.bias is not None:
            self.bias.data.zero_()
        self._first_graph = None

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """``edge_index`` is anything :func:`torch_tcgnn.as_graph` takes."""
        x = single(x, "GCNConv")
        check_fits(self.lin, x, "GCNConv")
        num_nodes = x.shape[-2]
        if not self.normalize:
            graph = plain_graph(edge_index, (num_nodes, num_nodes), self.passing.flow)
            weight = edge_weights(edge_weight, graph.num_edges, "GCNConv", graph.device)
            carried = graph.weight if weight is None else weight
            out = self._propagate(x, graph, weight, None if carried is None else carried.dtype)
        else:
            looped, weight = self._first_graph or gcn_graph(
                edge_index,
                edge_weight,
                num_nodes,
                self.passing.flow,
                improved=self.improved,
                add_self_loops=self.add_self_loops,
                dtype=x.dtype,
                name="GCNConv",
            )
            if self.cached:
                self._first_graph = (looped, weight)
            given = looped.weight if edge_weight is None else edge_weight
            dtype = x.dtype if given is None else given.dtype  # of PyG's normalised weights; ours are never 16-bit
            out = looped.trim(self._propagate(x, looped.graph, weight, dtype), -2)
        return out if self.bias is None else out + self.bias

    def _propagate(self, x: Tensor, graph: Any, weight: Tensor | None, weight_dtype: torch.dtype | None) -> Tensor:
        if commutes(self.lin, self.passing) and self.lin.weight.shape[0] >= self.lin.weight.shape[1]:
            out = self.lin(aggregate(graph, x, self.passing, weight))
            return out.to(message_dtype(out.dtype, weight_dtype))
        x = self.lin(x)
        return aggregate(graph, x, self.passing, weight, message_dtype(x.dtype, weight_dtype))

    __prepare_scriptable__ = refuse_torchscript

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels})"
