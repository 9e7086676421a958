"""GIN with edge features (Hu et al., 2020): ``nn((1 + ε) x_i + Σ_j ReLU(x_j + e_ji))``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..functional import gather_src, segment
from ..graph_arguments import check_count, check_finite, check_tensor
from .features import Features, check_fits, node_sizes, pair
from .gin import set_eps
from .linear import Linear, reset
from .lookup import plain_graph
from .options import read_options, refuse_torchscript


class GINEConv(torch.nn.Module):
    """PyG's ``GINEConv`` on translated graphs.

    Args:
        nn: module from ``[..., in]`` to ``[..., out]``.
        eps: initial ε.
        train_eps: learn ε (else it is a buffer).
        edge_dim: size of edge features that are mapped to ``in`` first; ``None``: they have ``in`` features.
        options: ``aggr``, ``flow`` of PyG's ``MessagePassing``.

    Shapes:
        ``x`` as :class:`GINConv`; ``edge_attr`` ``[E, edge_dim or in]``; output ``[..., M, out]``.

    Raises:
        NotImplementedError: an option that only PyG's layer has.
        ValueError: inputs that do not fit; ``edge_dim`` with an ``nn`` whose input size cannot be read.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> conv = tcg.nn.GINEConv(torch.nn.Identity())
        >>> conv(torch.tensor([[1.0], [2.0]]), torch.tensor([[0], [1]]), torch.tensor([[-4.0]]))
        tensor([[1.],
                [2.]])

    Reference:
        Hu et al., Strategies for pre-training graph neural networks, ICLR 2020.
    """

    eps: Tensor

    def __init__(
        self,
        nn: torch.nn.Module,
        eps: float = 0.0,
        train_eps: bool = False,
        edge_dim: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.aggr = options.pop("aggr", "add")
        self.passing = read_options(self, self.aggr, options)
        if not callable(nn):
            raise TypeError(f"GINEConv: nn must be a module, got {type(nn).__name__}")
        check_finite("GINEConv: eps", eps)
        self.nn = nn
        self.initial_eps = eps
        set_eps(self, train_eps)
        if edge_dim is not None:
            check_count("GINEConv: edge_dim", edge_dim, least=-1)
        self.lin = None if edge_dim is None else Linear(edge_dim, _input_size(nn))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new parameters of ``nn`` and of the edge map; set ε to its initial value."""
        reset(self.nn)
        self.eps.data.fill_(self.initial_eps)
        if self.lin is not None:
            self.lin.reset_parameters()

    def forward(
        self,
        x: Features,
        edge_index: Any,
        edge_attr: Tensor | None = None,
        size: tuple[int | None, int | None] | None = None,
    ) -> Tensor:
        """``edge_index`` is anything :func:`torch_tcgnn.as_graph` takes; ``edge_attr`` follows its edge order."""
        source, target = pair(x, "GINEConv", self.passing.flow)
        graph = plain_graph(edge_index, node_sizes(source, target, size, "GINEConv"), self.passing.flow)
        if edge_attr is None:
            raise ValueError(f"GINEConv: edge_attr must have {graph.num_edges} rows, one an edge, got None")
        check_tensor("GINEConv: edge_attr", edge_attr)
        got = tuple(edge_attr.shape)
        if edge_attr.dim() != 2 or got[0] != graph.num_edges:
            raise ValueError(f"GINEConv: edge_attr must have {graph.num_edges} rows, one an edge, got {got}")
        if not edge_attr.is_floating_point():
            raise TypeError(f"GINEConv: edge_attr must be floating point, got {edge_attr.dtype}")
        if edge_attr.device != graph.device:
            raise ValueError(f"GINEConv: edge_attr is on {edge_attr.device}, but the graph is on {graph.device}")
        if self.lin is not None:
            check_fits(self.lin, edge_attr, "GINEConv", "edge_attr")
        edge = edge_attr if self.lin is None else self.lin(edge_attr)
        if edge.shape[-1] != source.shape[-1]:
            raise ValueError(
                f"GINEConv: edge_attr has {edge.shape[-1]} features, x has {source.shape[-1]}: set edge_dim"
            )
        lead = source.dim() - 2
        neighbour = gather_src(graph, source.movedim(-2, 0))
        message = (neighbour + edge.view(edge.shape[0], *[1] * lead, edge.shape[1])).relu()
        outs = [segment(graph, message, reduce).movedim(0, -2) for reduce in self.passing.reduces]
        out = outs[0] if len(outs) == 1 else torch.cat(outs, dim=-1)
        if target is not None:
            out = out + (1 + self.eps) * target
        return self.nn(out)

    __prepare_scriptable__ = refuse_torchscript

    def __repr__(self) -> str:
        return f"{type(self).__name__}(nn={self.nn})"


def _input_size(nn: torch.nn.Module) -> int:
    first = nn[0] if isinstance(nn, torch.nn.Sequential) and len(nn) else nn
    for name in ("in_features", "in_channels"):
        if hasattr(first, name):
            return getattr(first, name)
    raise ValueError(f"GINEConv: edge_dim needs an nn with in_features or in_channels, got {type(first).__name__}")
