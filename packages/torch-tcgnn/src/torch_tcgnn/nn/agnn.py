"""Attention-based graph neural network (Thekumparampil et al., 2018): ``Σ_j softmax(β cos(x_i, x_j)) x_j``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import normalize

from ..functional import dot_attention
from .features import flat, single
from .loops import looped_graph
from .options import read_options, refuse_torchscript


class AGNNConv(torch.nn.Module):
    """PyG's ``AGNNConv`` on translated graphs, with fused attention.

    Args:
        requires_grad: learn β (else it is a buffer).
        add_self_loops: replace loops by one for each node.
        options: ``flow`` of PyG's ``MessagePassing``.

    Shapes:
        ``x`` ``[N, F]`` to ``[N, F]``.

    Raises:
        NotImplementedError: an option that only PyG's layer has.
        ValueError: inputs that do not fit.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> x = torch.tensor([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0], [0.0, 0.0]])
        >>> tcg.nn.AGNNConv(requires_grad=False)(x, torch.tensor([[1, 2, 3], [0, 0, 1]]))
        tensor([[1.4746, 2.2649],
                [0.0000, 1.4621],
                [1.0000, 0.0000],
                [0.0000, 0.0000]])

    Reference:
        Thekumparampil et al., Attention-based graph neural network for semi-supervised learning, 2018 (TC-GNN's third
        model, there without softmax).
    """

    def __init__(self, requires_grad: bool = True, add_self_loops: bool = True, **options: Any) -> None:
        super().__init__()
        self.aggr = options.pop("aggr", "add")
        self.passing = read_options(self, self.aggr, options, only_sum=True)
        self.requires_grad, self.add_self_loops = requires_grad, add_self_loops
        if requires_grad:
            self.beta = Parameter(torch.empty(1))
        else:
            self.register_buffer("beta", torch.ones(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set β to 1 where it is learned."""
        if self.requires_grad:
            self.beta.data.fill_(1.0)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        """``edge_index`` is anything :func:`torch_tcgnn.as_graph` takes."""
        x = flat(single(x, "AGNNConv"), "AGNNConv")
        looped = looped_graph(edge_index, (x.shape[0], x.shape[0]), self.passing.flow, add=self.add_self_loops)
        x = x.to(torch.promote_types(x.dtype, self.beta.dtype))  # as β · cos makes PyG's messages
        unit = normalize(x, p=2.0, dim=-1)
        query = looped.pad_targets(self.beta * unit).unsqueeze(1)
        out = dot_attention(looped.graph, query, unit.unsqueeze(1), x.unsqueeze(1), scale=1.0)
        return looped.trim(out).squeeze(1)

    __prepare_scriptable__ = refuse_torchscript

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
