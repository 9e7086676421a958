"""Dynamic graph attention (Brody et al., 2022): the LeakyReLU comes before the attention vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..functional import gatv2_attention
from .attending import as_messages, attended, check_weights_wanted, join_heads, weights_out
from .features import Features, check_fits, flat, node_sizes, pair
from .linear import Linear, glorot
from .options import check_attention, read_channels, read_options, refuse_torchscript


class GATv2Conv(torch.nn.Module):
    """PyG's ``GATv2Conv`` on translated graphs, with fused attention.

    Args:
        in_channels: input features, or ``(source, target)`` features; -1 takes the first input's.
        out_channels: output features of a head.
        heads: attention heads ``H``.
        concat: concatenate heads, else average them.
        negative_slope: of the LeakyReLU.
        dropout: on the attention weights, in training.
        add_self_loops: replace loops by one for each node that is source and target.
        edge_dim: size of edge features.
        fill_value: edge features of loops, as :class:`GATConv`.
        bias: learn biases.
        share_weights: one map for sources and targets.
        residual: add a learned map of the target features.
        options: ``flow`` of PyG's ``MessagePassing``.

    Shapes:
        ``x`` ``[N, in]`` or a pair ``([K, in_0], [M, in_1])``, ``edge_attr`` ``[E, edge_dim]``; output
        ``[M, H·out]`` or, without ``concat``, ``[M, out]``.

    Raises:
        NotImplementedError: an option that only PyG's layer has.
        ValueError: inputs that do not fit; ``edge_attr`` without ``edge_dim``.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> conv = tcg.nn.GATv2Conv(4, 2, heads=3, concat=False)
        >>> conv(torch.ones(5, 4), torch.tensor([[0, 1], [1, 2]])).shape
        torch.Size([5, 2])

    Reference:
        Brody et al., How attentive are graph attention networks?, ICLR 2022.
    """

    bias: Parameter | None

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: float | Tensor | str = "mean",
        bias: bool = True,
        share_weights: bool = False,
        residual: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.aggr = options.pop("aggr", "sum")
        self.passing = read_options(self, self.aggr, options, node_dim=0, only_sum=True)
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.negative_slope, self.dropout = concat, negative_slope, dropout
        self.add_self_loops, self.edge_dim, self.fill_value = add_self_loops, edge_dim, fill_value
        self.share_weights, self.residual = share_weights, residual
        source, target = read_channels(self, in_channels, out_channels)
        check_attention(
            self, heads=heads, dropout=dropout, edge_dim=edge_dim, negative_slope=negative_slope, fill_value=fill_value
        )
        width, total = heads * out_channels, out_channels * (heads if concat else 1)

        def glorot_map(size: int, width: int, bias: bool) -> Linear:
            return Linear(size, width, bias=bias, weight_initializer="glorot")

        self.lin_l = glorot_map(source, width, bias)
        self.lin_r = self.lin_l if share_weights else glorot_map(target, width, bias)
        self.att = Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = None if edge_dim is None else glorot_map(edge_dim, width, False)
        self.res = glorot_map(target, total, False) if residual else None
        self.register_parameter("bias", Parameter(torch.empty(total)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new parameters."""
        for lin in (self.lin_l, self.lin_r, self.lin_edge, self.res):
            if lin is not None:
                lin.reset_parameters()
        glorot(self.att)
        if self.bias is not None:
            self.bias.data.zero_()

    def forward(
        self,
        x: Features,
        edge_index: Any,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """``edge_index`` is anything :func:`torch_tcgnn.as_graph` takes.

        Returns the output, or ``(output, (edge_index, alpha))`` with ``alpha`` ``[E', H]`` over the edges with loops.
        """
        flow = self.passing.flow
        source, target = pair(x, "GATv2Conv", flow)
        flat(source, "GATv2Conv")
        if target is None:
            raise ValueError("GATv2Conv: x must hold target features, got (source, None)")
        check_fits(self.lin_l, source, "GATv2Conv", "x of the sources")
        check_fits(self.lin_r, target, "GATv2Conv", "x of the targets")
        if edge_attr is not None and self.lin_edge is None:
            raise ValueError(f"GATv2Conv: edge_attr of shape {tuple(edge_attr.shape)} needs edge_dim, which is None")
        if return_attention_weights:
            check_weights_wanted(edge_index, "GATv2Conv")
        looped, edge_attr = attended(
            edge_index, node_sizes(source, target, None, "GATv2Conv"), flow, edge_attr,
            add_self_loops=self.add_self_loops, fill_value=self.fill_value, edge_dim=self.edge_dim, name="GATv2Conv",
        )  # fmt: skip
        shape = (-1, self.heads, self.out_channels)
        left = self.lin_l(source).view(shape)
        right = left if self.share_weights and target is source else self.lin_r(target).view(shape)
        edge = self.lin_edge(edge_attr).view(shape) if edge_attr is not None and self.lin_edge is not None else None
        found = gatv2_attention(
            looped.graph, left, looped.pad_targets(right), self.att[0], edge=edge,
            negative_slope=self.negative_slope, dropout=self.dropout, training=self.training,
            return_attention=bool(return_attention_weights),
        )  # fmt: skip
        out, alpha = found if return_attention_weights else (found, None)
        out = join_heads(as_messages(looped.trim(out), self.att), self.concat)
        if self.res is not None:
            out = out + self.res(target)
        if self.bias is not None:
            out = out + self.bias
        return out if alpha is None else (out, weights_out(looped, alpha, flow))

    __prepare_scriptable__ = refuse_torchscript

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, heads={self.heads})"
