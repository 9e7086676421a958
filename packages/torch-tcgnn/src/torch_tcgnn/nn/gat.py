"""Graph attention (Veličković et al., 2018): additive attention, fused; no tensor of edges × features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..functional import gat_attention
from .attending import as_messages, attended, check_weights_wanted, join_heads, node_logits, weights_out
from .features import Features, check_fits, flat, node_sizes, pair
from .linear import Linear, glorot
from .options import check_attention, read_channels, read_options, refuse_torchscript


class GATConv(torch.nn.Module):
    """PyG's ``GATConv`` on translated graphs, with fused attention.

    Args:
        in_channels: input features (one map), or ``(source, target)`` features (two maps); -1 takes the first input's.
        out_channels: output features of a head.
        heads: attention heads ``H``.
        concat: concatenate heads, else average them.
        negative_slope: of the LeakyReLU.
        dropout: on the attention weights, in training.
        add_self_loops: replace loops by one for each node that is source and target.
        edge_dim: size of edge features.
        fill_value: edge features of loops: a number, a tensor, or ``"mean"``, ``"add"``, ``"min"``, ``"max"`` or
            ``"mul"`` over the edges into the node.
        bias: learn a bias.
        residual: add a learned map of the target features.
        options: ``flow`` of PyG's ``MessagePassing``.

    Shapes:
        ``x`` ``[N, in]`` or a pair ``([K, in_0], [M, in_1] | None)``, ``edge_attr`` ``[E, edge_dim]``; output
        ``[M, H·out]`` or, without ``concat``, ``[M, out]``.

    Raises:
        NotImplementedError: an option that only PyG's layer has.
        ValueError: inputs that do not fit.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> conv = tcg.nn.GATConv(4, 2, heads=3)
        >>> conv(torch.ones(5, 4), torch.tensor([[0, 1], [1, 2]])).shape
        torch.Size([5, 6])

    Reference:
        Veličković et al., Graph attention networks, ICLR 2018.
    """

    att_edge: Parameter | None
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
        residual: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.aggr = options.pop("aggr", "add")
        self.passing = read_options(self, self.aggr, options, node_dim=0, only_sum=True)
        source, target = read_channels(self, in_channels, out_channels)
        check_attention(
            self, heads=heads, dropout=dropout, edge_dim=edge_dim, negative_slope=negative_slope, fill_value=fill_value
        )
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.negative_slope, self.dropout = concat, negative_slope, dropout
        self.add_self_loops, self.edge_dim, self.fill_value = add_self_loops, edge_dim, fill_value
        self.residual = residual

        def glorot_map(size: int, width: int = heads * out_channels) -> Linear:
            return Linear(size, width, bias=False, weight_initializer="glorot")

        self.lin = self.lin_src = self.lin_dst = None
        if isinstance(in_channels, int):
            self.lin = glorot_map(source)
        else:
            self.lin_src, self.lin_dst = glorot_map(source), glorot_map(target)
        self.att_src = Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = None if edge_dim is None else glorot_map(edge_dim)
        att_edge = None if edge_dim is None else Parameter(torch.empty(1, heads, out_channels))
        self.register_parameter("att_edge", att_edge)
        total = out_channels * (heads if concat else 1)
        self.res = glorot_map(target, total) if residual else None
        self.register_parameter("bias", Parameter(torch.empty(total)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new parameters."""
        for lin in (self.lin, self.lin_src, self.lin_dst, self.lin_edge, self.res):
            if lin is not None:
                lin.reset_parameters()
        for att in (self.att_src, self.att_dst, self.att_edge):
            glorot(att)
        if self.bias is not None:
            self.bias.data.zero_()

    def forward(
        self,
        x: Features,
        edge_index: Any,
        edge_attr: Tensor | None = None,
        size: tuple[int | None, int | None] | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """``edge_index`` is anything :func:`torch_tcgnn.as_graph` takes.

        Returns the output, or ``(output, (edge_index, alpha))`` with ``alpha`` ``[E', H]`` over the edges with loops.
        """
        flow = self.passing.flow
        source, target = pair(x, "GATConv", flow)
        flat(source, "GATConv")
        sizes = node_sizes(source, target, size, "GATConv")
        if return_attention_weights:
            check_weights_wanted(edge_index, "GATConv")
        looped, edge_attr = attended(
            edge_index, sizes, flow, edge_attr, add_self_loops=self.add_self_loops,
            fill_value=self.fill_value, edge_dim=self.edge_dim, name="GATConv",
        )  # fmt: skip
        residual = None if self.res is None or target is None else self.res(target)
        h_source, h_target = self._maps(source, target)
        if h_target is h_source:
            alpha_source, alpha_target = node_logits(h_source, self.att_src, self.att_dst)
        else:
            (alpha_source,) = node_logits(h_source, self.att_src)
            alpha_target = alpha_source.new_zeros(sizes[1], self.heads)
            if h_target is not None:
                (alpha_target,) = node_logits(h_target, self.att_dst)
        logit = None
        if edge_attr is not None and self.lin_edge is not None and self.att_edge is not None:
            edge = self.lin_edge(edge_attr).view(-1, self.heads, self.out_channels)
            (logit,) = node_logits(edge, self.att_edge)
        found = gat_attention(
            looped.graph, h_source, alpha_source, looped.pad_targets(alpha_target), edge_logit=logit,
            negative_slope=self.negative_slope, dropout=self.dropout, training=self.training,
            return_attention=bool(return_attention_weights),
        )  # fmt: skip
        out, alpha = found if return_attention_weights else (found, None)
        out = join_heads(as_messages(looped.trim(out), self.att_src), self.concat)
        if residual is not None:
            out = out + residual
        if self.bias is not None:
            out = out + self.bias
        return out if alpha is None else (out, weights_out(looped, alpha, flow))

    def _maps(self, source: Tensor, target: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """``[K, H, C]`` and ``[M, H, C]``; the same tensor for one node set under one map."""
        shape = (-1, self.heads, self.out_channels)
        maps: tuple[Any, Any] = (self.lin, self.lin) if self.lin is not None else (self.lin_src, self.lin_dst)
        map_source, map_target = maps
        check_fits(map_source, source, "GATConv", "x of the sources")
        if target is not None:
            check_fits(map_target, target, "GATConv", "x of the targets")
        h_source = map_source(source).view(shape)
        if target is source and map_target is map_source:
            return h_source, h_source
        return h_source, None if target is None else map_target(target).view(shape)

    __prepare_scriptable__ = refuse_torchscript

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, heads={self.heads})"
