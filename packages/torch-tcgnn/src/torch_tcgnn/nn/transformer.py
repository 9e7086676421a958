"""Graph transformer (Shi et al., 2021, equations 3 to 5): dot-product attention over neighbours, gated skip."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..functional import dot_attention
from .attending import as_messages, attended, check_weights_wanted, join_heads, weights_out
from .features import Features, check_fits, flat, node_sizes, pair
from .linear import Linear
from .options import check_attention, read_channels, read_options, refuse_torchscript, unsupported


class TransformerConv(torch.nn.Module):
    """PyG's ``TransformerConv`` on translated graphs, with fused attention.

    Args:
        in_channels: input features, or ``(source, target)`` features; -1 takes the first input's.
        out_channels: output features of a head.
        heads: attention heads ``H``.
        concat: concatenate heads, else average them.
        beta: gate between the skip map and the attention; needs ``root_weight``.
        dropout: on the attention weights, in training.
        edge_dim: size of edge features, mapped and added to keys and values.
        bias: learn biases.
        root_weight: add the skip map of the target features.
        options: ``flow`` of PyG's ``MessagePassing``.

    Shapes:
        ``x`` ``[N, in]`` or a pair ``([K, in_0], [M, in_1])``, ``edge_attr`` ``[E, edge_dim]``; output
        ``[M, H·out]`` or, without ``concat``, ``[M, out]``.

    Raises:
        NotImplementedError: an option that only PyG's layer has; ``edge_attr`` without ``edge_dim``.
        ValueError: inputs that do not fit; ``edge_dim`` without ``edge_attr``.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> conv = tcg.nn.TransformerConv(4, 2, heads=3, beta=True)
        >>> conv(torch.ones(5, 4), torch.tensor([[0, 1], [1, 2]])).shape
        torch.Size([5, 6])

    Reference:
        Shi et al., Masked label prediction: unified message passing model, IJCAI 2021.
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        beta: bool = False,
        dropout: float = 0.0,
        edge_dim: int | None = None,
        bias: bool = True,
        root_weight: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.aggr = options.pop("aggr", "add")
        self.passing = read_options(self, self.aggr, options, node_dim=0, only_sum=True)
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.beta, self.root_weight = concat, beta and root_weight, root_weight
        self.dropout, self.edge_dim = dropout, edge_dim
        source, target = read_channels(self, in_channels, out_channels)
        check_attention(self, heads=heads, dropout=dropout, edge_dim=edge_dim)
        width, total = heads * out_channels, out_channels * (heads if concat else 1)
        self.lin_key = Linear(source, width, bias=bias)
        self.lin_query = Linear(target, width, bias=bias)
        self.lin_value = Linear(source, width, bias=bias)
        self.lin_edge = None if edge_dim is None else Linear(edge_dim, width, bias=False)
        self.lin_skip = Linear(target, total, bias=bias)
        self.lin_beta = Linear(3 * total, 1, bias=False) if self.beta else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new parameters."""
        for lin in (self.lin_key, self.lin_query, self.lin_value, self.lin_edge, self.lin_skip, self.lin_beta):
            if lin is not None:
                lin.reset_parameters()

    def forward(
        self,
        x: Features,
        edge_index: Any,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """``edge_index`` is anything :func:`torch_tcgnn.as_graph` takes.

        Returns the output or, where ``return_attention_weights`` is a bool (either one, as in PyG),
        ``(output, (edge_index, alpha))`` with ``alpha`` ``[E, H]`` before dropout.
        """
        name, flow = "TransformerConv", self.passing.flow
        source, target = pair(x, name, flow)
        flat(source, name)
        if target is None:
            raise ValueError(f"{name}: x must hold target features, got (source, None)")
        check_fits(self.lin_key, source, name, "x of the sources")
        check_fits(self.lin_query, target, name, "x of the targets")
        if edge_attr is not None and self.lin_edge is None:
            raise unsupported(name, "edge_dim", None)
        if return_attention_weights is not None:
            check_weights_wanted(edge_index, name)
        looped, edge_attr = attended(
            edge_index, node_sizes(source, target, None, name), flow, edge_attr,
            add_self_loops=False, fill_value=0.0, edge_dim=self.edge_dim, name=name,
        )  # fmt: skip
        if self.lin_edge is not None and edge_attr is None:
            raise ValueError(f"{name}: edge_attr must be given where edge_dim={self.edge_dim}, got None")
        shape = (-1, self.heads, self.out_channels)
        query, key, value = (
            lin(t).view(shape)
            for lin, t in ((self.lin_query, target), (self.lin_key, source), (self.lin_value, source))
        )
        edge = self.lin_edge(edge_attr).view(shape) if self.lin_edge is not None else None
        out = dot_attention(looped.graph, query, key, value, edge=edge, dropout=self.dropout, training=self.training)
        out = join_heads(as_messages(out), self.concat)
        if self.root_weight:
            skip = self.lin_skip(target)
            if self.lin_beta is None:
                out = out + skip
            else:
                gate = self.lin_beta(torch.cat([out, skip, out - skip], dim=-1)).sigmoid()
                out = gate * skip + (1 - gate) * out
        if return_attention_weights is None:
            return out
        _, alpha = dot_attention(looped.graph, query, key, value, edge=edge, return_attention=True)
        return out, weights_out(looped, as_messages(alpha), flow)

    __prepare_scriptable__ = refuse_torchscript

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, heads={self.heads})"
