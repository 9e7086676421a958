"""The options that PyG's layers inherit from ``MessagePassing``, read once and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from ..functional.arguments import PRECISIONS, Precision, Reduce, check_choice
from ..graph import Flow

AGGREGATIONS: dict[str, Reduce] = {"add": "sum", "sum": "sum", "mean": "mean", "max": "max", "min": "min"}
FLOWS: tuple[Flow, ...] = get_args(Flow)


@dataclass(frozen=True)
class Passing:
    """How messages travel and meet.

    Attributes:
        reduces: operator names of ``aggr``, one or, for a list, several whose results are concatenated.
        flow: ``"source_to_target"`` or ``"target_to_source"``.
        precision: see :func:`torch_tcgnn.spmm`.
    """

    reduces: tuple[Reduce, ...]
    flow: Flow
    precision: Precision | None


def read_options(
    layer: object, aggr: Any, options: dict[str, Any], *, node_dim: int = -2, only_sum: bool = False
) -> Passing:
    """Check ``aggr`` and the keywords of ``MessagePassing``.

    Raises:
        NotImplementedError: an option that PyG's layer of this name supports and this one does not.
        TypeError: a keyword that neither knows.
        ValueError: an unknown ``flow`` or ``precision``.
    """
    name = type(layer).__name__
    options = dict(options)
    flow = options.pop("flow", "source_to_target")
    check_choice("flow", flow, FLOWS)
    precision = options.pop("precision", None)
    if precision is not None:
        check_choice("precision", precision, PRECISIONS)
    for key, supported in (("node_dim", node_dim), ("decomposed_layers", 1), ("aggr_kwargs", None)):
        value = options.pop(key, supported)
        if value != supported and value != {}:
            raise unsupported(name, key, value)
    if options:
        raise TypeError(f"{name} got unknown arguments {', '.join(sorted(options))}")
    names = tuple(aggr) if isinstance(aggr, (list, tuple)) else (aggr,)
    for one in names:
        if not isinstance(one, str) or one not in AGGREGATIONS or (only_sum and AGGREGATIONS[one] != "sum"):
            raise unsupported(name, "aggr", aggr)
    if only_sum and len(names) > 1:
        raise unsupported(name, "aggr", aggr)
    return Passing(tuple(AGGREGATIONS[one] for one in names), flow, precision)


def unsupported(name: str, option: str, value: Any) -> NotImplementedError:
    """The error for an option that only PyG's layer has."""
    return NotImplementedError(
        f"{name}: {option}={value!r} is not supported here; torch_geometric.nn.{name} supports it"
    )
