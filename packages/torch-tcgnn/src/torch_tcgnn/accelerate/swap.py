"""`accelerate` and `restore`: replace PyG's layers inside a model, and bring them back."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch

from ..functional.arguments import PRECISIONS, Precision, check_choice
from .convert import convert, give_back, is_layer, is_message_passing, why_not
from .layers import Accelerated
from .report import LayerReport, Report

Model = TypeVar("Model", bound=torch.nn.Module)


def accelerate(
    model: Model,
    *,
    precision: Precision | None = None,
    layers: Iterable[str] | None = None,
    verify: bool = False,
    inplace: bool = True,
) -> Model:
    """Replace the PyG layers of a model by layers on translated graphs.

    Parameters, buffers, submodules and hooks stay the same objects: optimizers and checkpoints do not notice.
    Subclasses and unsupported layers stay as they are; :func:`report` lists them. The first call with an
    ``edge_index`` translates it.

    Args:
        model: any module; a PyG layer itself is replaced in what is returned.
        precision: see :func:`torch_tcgnn.spmm`; attention layers always compute at ``"ieee"``.
        layers: names of modules (``"convs.0"``) or of PyG classes (``"GATConv"``) to replace; default: all supported.
        verify: compare each layer with PyG's own forward at its first call.
        inplace: change ``model``; otherwise a deep copy is changed.

    Returns:
        The changed model.

    Raises:
        AccelerateError: at the first call, with ``verify``, where a layer deviates.
        ImportError: torch-geometric is not installed.
        NotImplementedError: a layer named in ``layers`` has no accelerated form.
        ValueError: an unknown ``precision``, or an entry of ``layers`` that matches nothing.

    Example:
        >>> import torch_tcgnn as tcg
        >>> from torch_geometric.nn import GCN
        >>> model = tcg.accelerate(GCN(4, 8, num_layers=2, out_channels=3))
        >>> print(tcg.report(model))
        convs.0  GCNConv  accelerated
        convs.1  GCNConv  accelerated

    Reference:
        TC-GNN (USENIX ATC 2023), section 1: existing models, without changing them.
    """
    if precision is not None:
        check_choice("precision", precision, PRECISIONS)
    if not inplace:
        model = copy.deepcopy(model)
    named = list(walk(model))
    wanted = None if layers is None else list(layers)
    chosen: dict[torch.nn.Module, torch.nn.Module] = {}
    for name, module in named:
        if not isinstance(module, Accelerated) and not is_message_passing(module):
            continue
        explicit = wanted is not None and (name in wanted or type(module).__name__ in wanted)
        if wanted is not None and not explicit:
            continue
        if isinstance(module, Accelerated):
            layer = convert(give_back(module), precision=precision)
        elif explicit or why_not(module) is None:
            layer = convert(module, precision=precision)
        else:
            continue
        layer.unverified = verify
        chosen[module] = layer
    for entry in wanted or ():
        if not any(entry in (name, type(module).__name__) for name, module in named):
            raise ValueError(f"layers: {entry!r} is neither a module of the model nor the class of one")
    if not chosen and wanted is None:
        warnings.warn(f"accelerate: no layer of {type(model).__name__} was replaced; see report(model)", stacklevel=2)
    return _replace(model, chosen.get)


def restore(model: Model) -> Model:
    """Bring PyG's layers back; what :func:`accelerate` returned goes in, the model as it was comes out.

    Example:
        >>> import torch_tcgnn as tcg
        >>> from torch_geometric.nn import GCNConv
        >>> conv = GCNConv(4, 3)
        >>> tcg.restore(tcg.accelerate(conv)) is conv
        True

    Reference:
        The inverse of :func:`accelerate`.
    """
    return _replace(model, lambda module: give_back(module) if isinstance(module, Accelerated) else None)


def report(model: torch.nn.Module) -> Report:
    """Which PyG layers of a model are accelerated, and why the others are not.

    Raises:
        ImportError: torch-geometric is not installed.

    Example:
        >>> import torch_tcgnn as tcg
        >>> from torch_geometric.nn import ChebConv
        >>> print(tcg.report(torch.nn.Sequential(ChebConv(4, 3, 2))))
        0  ChebConv  kept: no accelerated form of ChebConv

    Reference:
        The layers of PyG 2.8 that :mod:`torch_tcgnn.nn` has.
    """
    rows = []
    for name, module in walk(model):
        if isinstance(module, Accelerated):
            rows.append(LayerReport(name, type(module.pyg).__name__, True, _note(module)))
        elif is_message_passing(module):
            reason = why_not(module) or "supported; call accelerate(model)"
            rows.append(LayerReport(name, type(module).__name__, False, reason))
    return Report(tuple(rows))


def walk(model: torch.nn.Module, prefix: str = "", seen: set | None = None) -> Iterator[tuple[str, torch.nn.Module]]:
    """Every module once, by its first name; does not enter PyG's or accelerated layers."""
    seen = set() if seen is None else seen
    if model in seen:
        return
    seen.add(model)
    yield prefix, model
    if isinstance(model, Accelerated) or is_layer(model):
        return
    for name, child in model._modules.items():
        if child is not None:
            yield from walk(child, f"{prefix}.{name}" if prefix else name, seen)


def _note(layer: Accelerated) -> str:
    precision = layer.passing.precision
    if precision is None or layer.weights_at is not None:
        return ""
    return f"precision={precision}"


def _replace(model: Model, instead: Callable[[torch.nn.Module], torch.nn.Module | None]) -> Model:
    replaced: dict[torch.nn.Module, torch.nn.Module] = {}
    for _, module in list(walk(model)):
        other = instead(module)
        if other is not None:
            replaced[module] = other
    for _, module in list(walk(model)):
        for name, child in module._modules.items():
            if child in replaced:
                module._modules[name] = replaced[child]
    return replaced.get(model, model)  # pyright: ignore[reportReturnType]
