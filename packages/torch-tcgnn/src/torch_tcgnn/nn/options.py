"""The options that PyG's layers inherit from ``MessagePassing``, read once and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from torch import Tensor

from ..functional.arguments import PRECISIONS, Precision, Reduce, check_choice
from ..graph import Flow
from ..graph_arguments import check_count, check_finite, check_probability, is_count

AGGREGATIONS: dict[str, Reduce] = {"add": "sum", "sum": "sum", "mean": "mean", "max": "max", "min": "min"}
ONLY_IN_PYG = (
    "attentional", "deepsets", "degreescaler", "equilibrium", "graphmultisettransformer", "gru", "lcm", "lstm",
    "median", "mlp", "mul", "multi", "patchtransformer", "powermean", "quantile", "set2set", "settransformer",
    "softmax", "sort", "std", "var", "variancepreserving",
)  # fmt: skip
"""PyG's other aggregations, as its resolver spells them: lower case, without hyphens and "Aggregation"."""
LOOP_FILLS = ("add", "sum", "mean", "min", "max", "mul")
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
        ValueError: an ``aggr`` that neither knows, an unknown ``flow`` or ``precision``.
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
    known = [key for key in AGGREGATIONS if not only_sum or AGGREGATIONS[key] == "sum"]
    if not names or not all(_in_pyg(one) for one in names):
        choices = ", ".join(map(repr, known)) + ("" if only_sum else ", or a list of them")
        raise ValueError(f"{name}: aggr must be one of {choices}, got {aggr!r}")
    if not all(isinstance(one, str) and one in known for one in names) or (only_sum and len(names) > 1):
        raise unsupported(name, "aggr", aggr)
    return Passing(tuple(AGGREGATIONS[one] for one in names), flow, precision)


def _in_pyg(aggr: object) -> bool:
    """Whether PyG's layers know an aggregation by this name, or it is one of PyG's."""
    if isinstance(aggr, str):
        spelled = aggr.lower().replace("-", "").replace("_", "").replace(" ", "").removesuffix("aggregation")
        return spelled in AGGREGATIONS or spelled in ONLY_IN_PYG
    return any(base.__module__.startswith("torch_geometric.nn.aggr") for base in type(aggr).__mro__)


def read_channels(layer: object, in_channels: Any, out_channels: Any, *, pairs: bool = True) -> tuple[int, int]:
    """Features of sources and of targets.

    Raises:
        TypeError: sizes that are no integers, or no pair of them.
        ValueError: a size below -1, which stands for one that the first input tells; no output features.
    """
    name = type(layer).__name__
    sizes = in_channels if pairs and isinstance(in_channels, (tuple, list)) else (in_channels, in_channels)
    if len(sizes) != 2 or not all(map(is_count, sizes)):
        wanted = "an integer or a pair (source, target) of them" if pairs else "an integer"
        raise TypeError(f"{name}: in_channels must be {wanted}, got {in_channels!r}")
    for size in sizes:
        check_count(f"{name}: in_channels", size, least=-1)
    check_count(f"{name}: out_channels", out_channels, least=0)
    return sizes[0], sizes[1]


def check_attention(
    layer: object,
    *,
    heads: Any,
    dropout: Any,
    edge_dim: Any,
    negative_slope: Any = 0.0,
    fill_value: Any = 0.0,
) -> None:
    """Check what attention layers have in common.

    Raises:
        NotImplementedError: ``fill_value=None``, PyG's other way to say 1.
        TypeError: a value of the wrong type.
        ValueError: a value out of range, or an unknown ``fill_value``.
    """
    name = type(layer).__name__
    check_count(f"{name}: heads", heads, least=1)
    check_probability(f"{name}: dropout", dropout)
    check_finite(f"{name}: negative_slope", negative_slope)
    if edge_dim is not None:
        check_count(f"{name}: edge_dim", edge_dim, least=-1)
    if fill_value is None:
        raise unsupported(name, "fill_value", None)
    if isinstance(fill_value, str):
        if fill_value not in LOOP_FILLS:
            choices = ", ".join(map(repr, LOOP_FILLS))
            raise ValueError(f"{name}: fill_value must be a number, a Tensor or one of {choices}, got {fill_value!r}")
    elif not isinstance(fill_value, Tensor):
        check_finite(f"{name}: fill_value", fill_value)


def unsupported(name: str, option: str, value: Any) -> NotImplementedError:
    """The error for an option that only PyG's layer has."""
    return NotImplementedError(
        f"{name}: {option}={value!r} is not supported here; torch_geometric.nn.{name} supports it"
    )


def refuse_torchscript(layer: object) -> None:
    """What ``torch.jit.script`` asks a layer for.

    Raises:
        TypeError: always.
    """
    raise TypeError(f"TorchScript cannot compile {type(layer).__name__}: use torch.compile or torch.export")
