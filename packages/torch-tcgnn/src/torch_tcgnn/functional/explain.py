"""Say which kernel an aggregation runs, and why, without running it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from ..graph import TCGraph
from .arguments import check_features, check_graph, check_weight


@dataclass(frozen=True)
class Explanation:
    """A kernel and the reason for it.

    Attributes:
        kernel: its name; ``"zeros"`` where there is nothing to add up.
        path: ``"tc"`` (tensor cores), ``"cuda"`` (CUDA cores), ``"mixed"`` (each for its rows) or ``"cpu"``.
        reason: why this one, in words.
        predicted_us: microseconds by path of the cost model, where there was a choice between paths.

    Example:
        >>> print(Explanation("embedding_bag", "cpu", "the operands are on the CPU"))
        embedding_bag (cpu): the operands are on the CPU

    Reference:
        As :func:`explain`.
    """

    kernel: str
    path: Literal["tc", "cuda", "mixed", "cpu"]
    reason: str
    predicted_us: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        predicted = ", ".join(f"{path} {us:.1f} µs" for path, us in self.predicted_us.items())
        return f"{self.kernel} ({self.path}): {self.reason}" + (f"; predicted: {predicted}" if predicted else "")


def explain(g: TCGraph, x: Tensor, weight: Tensor | None = None) -> Explanation:
    """Which kernel ``spmm(g, x, weight)`` runs, and why, without running it; a graph not used before is translated.

    Args:
        g: the graph.
        x: ``[K, F]`` or ``[K, H, F]``, floating point.
        weight: ``[E]`` or ``[E, H]``; default: ``g.weight``.

    Raises:
        ValueError: a shape or device that does not fit.
        TypeError: ``x`` or ``weight`` is not floating point.
        RuntimeError: ``g.path`` is ``"tc"``, and the device has no tensor cores.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
        >>> print(tcg.explain(g, torch.ones(2, 16)))
        embedding_bag (cpu): the operands are on the CPU

    Reference:
        The choice between tensor cores and CUDA cores extends TC-GNN (USENIX ATC 2023), section 4.
    """
    check_graph(g)
    check_features("x", x, g.num_cols, g, dims=(2, 3))
    weight = g.weight if weight is None else weight
    if weight is not None:
        check_weight(weight, x, g)
    adjacency = g.prepared(x.dtype)
    path: Literal["cpu", "cuda"] = "cpu" if x.device.type == "cpu" else "cuda"
    if g.num_edges == 0 or x.numel() == 0:
        reason = f"there is nothing to add up: {g.num_edges} edges, x of shape {tuple(x.shape)}"
        return Explanation("zeros", path, reason)
    if path == "cpu":
        return Explanation("embedding_bag", "cpu", "the operands are on the CPU")
    from ..kernels.choose import explain_spmm, predict_us

    if x.dim() == 3 and (weight is None or weight.dim() == 1):  # one weight for all heads: spmm takes them as features
        x = x.flatten(1)
    choice = explain_spmm(adjacency, x, weight)
    predicted: dict[str, float] = {**predict_us(adjacency, x, weighted=weight is not None)}
    return Explanation(choice.kernel, choice.path, choice.reason, predicted)
