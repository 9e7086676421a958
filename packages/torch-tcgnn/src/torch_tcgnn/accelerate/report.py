"""What `report` returns: one row a PyG layer, printed as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerReport:
    """One PyG layer of a model.

    Attributes:
        name: where it is in the model.
        layer: its PyG class.
        accelerated: whether it is replaced.
        note: why not, why PyG's own forward runs all the same, or a setting that differs from the default.

    Example:
        >>> print(LayerReport("convs.0", "GCNConv", True, ""))
        convs.0  GCNConv  accelerated
    """

    name: str
    layer: str
    accelerated: bool
    note: str

    def __str__(self) -> str:
        state = "accelerated" if self.accelerated else "kept"
        return f"{self.name or '(the model)'}  {self.layer}  {state}{': ' + self.note if self.note else ''}"


@dataclass(frozen=True)
class Report:
    """Rows of :class:`LayerReport`; prints as lines.

    Example:
        >>> print(Report((LayerReport("convs.0", "PNAConv", False, "no accelerated form of PNAConv"),)))
        convs.0  PNAConv  kept: no accelerated form of PNAConv
    """

    rows: tuple[LayerReport, ...]

    def __iter__(self) -> Iterator[LayerReport]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return "\n".join(map(str, self.rows)) or "no PyG layers"
