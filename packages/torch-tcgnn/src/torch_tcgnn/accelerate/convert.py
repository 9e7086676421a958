"""From one PyG layer to the accelerated layer that stands for it, or to the reason why there is none."""

from __future__ import annotations

from typing import Any

import torch

from ..functional.arguments import Precision
from . import layers
from .layers import Accelerated
from .parametrized import carry, plain_class

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "AGNNConv": ("requires_grad", "add_self_loops"),
    "GATConv": (
        "in_channels", "out_channels", "heads", "concat", "negative_slope", "dropout", "add_self_loops", "edge_dim",
        "fill_value", "residual",
    ),
    "GATv2Conv": (
        "in_channels", "out_channels", "heads", "concat", "negative_slope", "dropout", "add_self_loops", "edge_dim",
        "fill_value", "share_weights", "residual",
    ),
    "GCNConv": ("in_channels", "out_channels", "improved", "cached", "add_self_loops", "normalize"),
    "GINConv": (),
    "GINEConv": (),
    "GraphConv": ("in_channels", "out_channels"),
    "SAGEConv": ("in_channels", "out_channels", "normalize", "root_weight", "project"),
    "SGConv": ("in_channels", "out_channels", "K", "cached", "add_self_loops"),
    "TransformerConv": (
        "in_channels", "out_channels", "heads", "concat", "beta", "dropout", "edge_dim", "root_weight",
    ),
}  # fmt: skip
"""Layers with an accelerated form, and the attributes of PyG's layer that are arguments of ours."""

SHARED = (
    "_parameters", "_buffers", "_non_persistent_buffers_set", "_modules",
    "_backward_pre_hooks", "_backward_hooks", "_is_full_backward_hook",
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs",
    "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip
"""State of a module that the accelerated layer shares with PyG's."""

REDUCES = {"SumAggregation": "sum", "MeanAggregation": "mean", "MaxAggregation": "max", "MinAggregation": "min"}


def pyg() -> Any:
    """``torch_geometric.nn``.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import torch_geometric.nn
    except ImportError as error:
        raise ImportError("accelerating PyG models needs torch-geometric: pip install 'torch-tcgnn[pyg]'") from error
    return torch_geometric.nn


def is_message_passing(module: torch.nn.Module) -> bool:
    """Whether a module is a PyG layer."""
    return isinstance(module, pyg().MessagePassing)


def why_not(conv: torch.nn.Module) -> str | None:
    """Why ``conv`` has no accelerated form, or ``None`` where it has one."""
    try:
        convert(conv)
    except NotImplementedError as error:
        return str(error)
    return None


def is_layer(module: torch.nn.Module) -> bool:
    """Whether ``module`` is one of PyG's layers that have an accelerated form, or a subclass: not entered further."""
    bases = type(module).__mro__
    return any(base.__name__ in ARGUMENTS and base.__module__.startswith("torch_geometric.") for base in bases)


def convert(conv: torch.nn.Module, *, precision: Precision | None = None) -> Any:
    """The accelerated layer for ``conv``, sharing its parameters, buffers, submodules and hooks.

    Raises:
        NotImplementedError: there is none; the message says why.
    """
    cls = plain_class(conv)
    name = cls.__name__
    bases = [base.__name__ for base in cls.__mro__[1:] if base.__name__ in ARGUMENTS]
    if bases and cls is not getattr(pyg(), name, None):
        raise NotImplementedError(f"{name} is a subclass of {bases[0]} and may change how it passes messages")
    if name not in ARGUMENTS or cls is not getattr(pyg(), name, None):
        raise NotImplementedError(f"no accelerated form of {name}")
    arguments: dict[str, Any] = {key: getattr(conv, key) for key in ARGUMENTS[name]}
    arguments.update(aggr=_aggregation(conv), flow=conv.flow, node_dim=conv.node_dim, precision=precision)
    if name in ("GINConv", "GINEConv"):
        arguments["nn"] = torch.nn.Identity()  # the user's own is shared below and must not be reset
    with torch.device("meta"):
        layer: Accelerated = getattr(layers, name)(**arguments)
    layer.adopt(conv, SHARED, ARGUMENTS[name])
    carry(conv, layer)
    return layer


def give_back(layer: Accelerated) -> torch.nn.Module:
    """The PyG layer behind ``layer``, in ``layer``'s training mode, with the hooks and options it has now."""
    conv = layer.pyg
    for name in SHARED:
        conv.__dict__[name] = layer.__dict__[name]
    layer.hand_over()
    carry(layer, conv)
    return conv


def _aggregation(conv: Any) -> str | list[str]:
    module = conv.aggr_module
    if type(module).__name__ == "MultiAggregation":
        if module.mode != "cat":
            raise NotImplementedError(f"{type(conv).__name__}: no accelerated form of aggregation mode {module.mode!r}")
        return [_reduce(conv, part) for part in module.aggrs]
    return _reduce(conv, module)


def _reduce(conv: torch.nn.Module, module: torch.nn.Module) -> str:
    if type(module).__name__ not in REDUCES:
        raise NotImplementedError(f"{type(conv).__name__}: no accelerated form of {type(module).__name__}")
    return REDUCES[type(module).__name__]
