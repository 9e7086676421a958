"""GraphSAGE (Hamilton et al., 2017, algorithm 1): ``W_l mean_j x_j + W_r x_i``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize as l2_normalize

from .features import Features, aggregate_then_map, check_fits, node_sizes, pair
from .linear import Linear, reset
from .lookup import plain_graph
from .options import read_channels, read_options, refuse_torchscript


class SAGEConv(torch.nn.Module):
    """PyG's ``SAGEConv`` on translated graphs. The mean over no neighbours is 0.

    Args:
        in_channels: input features, or ``(source, target)`` features; -1 takes the first input's.
        out_channels: output features.
        aggr: ``"mean"``, ``"add"``, ``"max"``, ``"min"``, or a list of them: results are concatenated.
        normalize: scale each output to unit length.
        root_weight: add ``W_r x_i``.
        project: map sources by ``ReLU(W x + b)`` first.
        bias: learn a bias in ``W_l``.
        options: ``flow`` of PyG's ``MessagePassing``, and ``precision`` of :func:`torch_tcgnn.spmm`.

    Shapes:
        ``x`` ``[..., N, in]`` or a pair ``([..., K, in_0], [..., M, in_1] | None)``; output ``[..., M, out_channels]``.

    Raises:
        NotImplementedError: an option that only PyG's layer has (``aggr="lstm"``, ``"median"``, …).
        ValueError: ``project`` with unknown input size; inputs that do not fit.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> conv = tcg.nn.SAGEConv((4, 3), 2)
        >>> conv((torch.ones(5, 4), torch.ones(2, 3)), torch.tensor([[0, 4], [1, 1]])).shape
        torch.Size([2, 2])

    Reference:
        Hamilton et al., Inductive representation learning on large graphs, NeurIPS 2017.
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: str | list[str] = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.aggr = aggr
        self.passing = read_options(self, aggr, options)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.normalize, self.root_weight, self.project = normalize, root_weight, project
        source, target = read_channels(self, in_channels, out_channels)
        if project:
            if source <= 0:
                raise ValueError(f"SAGEConv: project=True needs a known input size, got in_channels={in_channels}")
            self.lin = Linear(source, source)
        self.lin_l = Linear(source * len(self.passing.reduces) if source > 0 else -1, out_channels, bias=bias)
        if root_weight:
            self.lin_r = Linear(target, out_channels, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new parameters."""
        for lin in self.children():
            reset(lin)

    def forward(self, x: Features, edge_index: Any, size: tuple[int | None, int | None] | None = None) -> Tensor:
        """``edge_index`` is anything :func:`torch_tcgnn.as_graph` takes; ``size`` is ``(sources, targets)``."""
        source, target = pair(x, "SAGEConv", self.passing.flow)
        check_fits(self.lin_l, source, "SAGEConv", "x of the sources", times=len(self.passing.reduces))
        if self.root_weight and target is not None:
            check_fits(self.lin_r, target, "SAGEConv", "x of the targets")
        graph = plain_graph(edge_index, node_sizes(source, target, size, "SAGEConv"), self.passing.flow)
        if self.project:
            source = self.lin(source).relu()
        out = aggregate_then_map(graph, source, self.passing, self.lin_l)
        if self.root_weight and target is not None:
            out = out + self.lin_r(target)
        return l2_normalize(out, p=2.0, dim=-1) if self.normalize else out

    __prepare_scriptable__ = refuse_torchscript

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, aggr={self.aggr})"
