"""`Edges`: what every graph format is read into first — sources, targets, values and sizes, on one device.

Sources are row 0 and targets row 1 whatever the flow of the caller, and edges keep the order of the format they came
from. ``loops`` remembers how PyG adds self loops to that format, because it does so in three different ways.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..graph import Path, TCGraph
from ..graph_arguments import check_edge_index, check_ids, check_sizes

Loops = Literal["keep", "sum", "replace"]
"""What becomes of a loop that exists when loops are added: its weight is kept, added to, or replaced."""


@dataclass(frozen=True, eq=False)
class Edges:
    """An edge list with sizes.

    Attributes:
        edge_index: ``[2, E]`` integer: sources, targets.
        weight: ``[E]`` or ``[E, H]`` values, or ``None``.
        num_sources: number of sources; ``None`` when the format does not say and nothing else did.
        num_targets: number of targets, likewise.
        loops: PyG's rule for existing self loops of this format.

    Example:
        >>> Edges(torch.tensor([[0], [1]]), None, 2, 2).graph()
        TCGraph(2 targets, 2 sources, 1 edges, cpu)

    Reference:
        PyG's ``edge_index``.
    """

    edge_index: Tensor
    weight: Tensor | None
    num_sources: int | None
    num_targets: int | None
    loops: Loops = "keep"

    def check(self) -> None:
        """Check shape, dtype and ids (one synchronisation with the device).

        Raises:
            ValueError: not integer ``[2, E]``, or an id out of range.
        """
        check_edge_index(self.edge_index)
        check_ids(self.edge_index, (self.num_sources, self.num_targets))

    def graph(self, *, reorder: str = "none", path: Path = "auto", validate: bool = True) -> TCGraph:
        """Translate."""
        size = None
        if self.num_sources is not None and self.num_targets is not None:
            size = (self.num_sources, self.num_targets)
        return TCGraph.from_edge_index(
            self.edge_index, size, self.weight, reorder=reorder, path=path, validate=validate
        )


def unless_ones(weight: Tensor | None) -> Tensor | None:
    """Values of a sparse matrix, or ``None`` where all are 1: unweighted kernels read less. Gradients keep them."""
    if weight is None or torch.compiler.is_compiling() or weight.requires_grad or weight.dim() != 1:
        return weight
    return None if bool((weight == 1).all()) else weight


def matrix_size(num_nodes: int | tuple[int, int] | None, rows: int, cols: int, what: str) -> tuple[int, int]:
    """``(num_sources, num_targets)`` of a matrix whose rows are targets, checked against what the caller said.

    Raises:
        ValueError: the two differ.
    """
    if num_nodes is not None:
        said = check_sizes("num_nodes", num_nodes if isinstance(num_nodes, tuple) else (num_nodes, num_nodes))
        if said != (cols, rows):
            raise ValueError(
                f"{what} has {cols} sources (columns) and {rows} targets (rows), but num_nodes is {num_nodes}"
            )
    return cols, rows
