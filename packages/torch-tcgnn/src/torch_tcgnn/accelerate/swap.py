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
from .parametrized import plain_class
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
    ``edge_index`` translates it. Options set on a replaced layer later (``layer.dropout = 0.6``) hold for it, wherever
    it runs PyG's forward, and after :func:`restore`.

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
        TypeError: ``model`` is no module, or ``layers`` no collection of names.
        ValueError: an unknown ``precision``, or an entry of ``layers`` that matches no layer.

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
    check_module(model)
    if precision is not None:
        check_choice("precision", precision, PRECISIONS)
    if not inplace:
        model = copy.deepcopy(model)
    named = list(walk(model))
    wanted = None if layers is None else _wanted(layers, named)
    chosen: dict[torch.nn.Module, torch.nn.Module] = {}
    for name, module in named:
        if not isinstance(module, Accelerated) and not is_message_passing(module):
            continue
        explicit = wanted is not None and (name in wanted or plain_class(module).__name__ in wanted)
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
    if not chosen and wanted is None:
        warnings.warn(f"accelerate: no layer of {type(model).__name__} was replaced; see report(model)", stacklevel=2)
    return _replace(model, chosen.get)


def restore(model: Model) -> Model:
    """Bring PyG's layers back; what :func:`accelerate` returned goes in, the model as it was comes out.

    A model that was never accelerated stays as it is.

    Raises:
        TypeError: ``model`` is no module.

    Example:
        >>> import torch_tcgnn as tcg
        >>> from torch_geometric.nn import GCNConv
        >>> conv = GCNConv(4, 3)
        >>> tcg.restore(tcg.accelerate(conv)) is conv
        True

    Reference:
        The inverse of :func:`accelerate`.
    """
    check_module(model)
    return _replace(model, lambda module: give_back(module) if isinstance(module, Accelerated) else None)


def report(model: torch.nn.Module) -> Report:
    """Which PyG layers of a model are accelerated, and why the others are not.

    Raises:
        ImportError: torch-geometric is not installed.
        TypeError: ``model`` is no module.

    Example:
        >>> import torch_tcgnn as tcg
        >>> from torch_geometric.nn import ChebConv
        >>> print(tcg.report(torch.nn.Sequential(ChebConv(4, 3, 2))))
        0  ChebConv  kept: no accelerated form of ChebConv

    Reference:
        The layers of PyG 2.8 that :mod:`torch_tcgnn.nn` has.
    """
    check_module(model)
    rows = []
    for name, module in walk(model):
        if isinstance(module, Accelerated):
            rows.append(LayerReport(name, plain_class(module.pyg).__name__, True, _note(module)))
        elif is_message_passing(module):
            reason = why_not(module) or "supported; call accelerate(model)"
            rows.append(LayerReport(name, plain_class(module).__name__, False, reason))
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


def check_module(model: object) -> None:
    """Raise where ``model`` is none."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")


def _wanted(layers: Iterable[str], named: list[tuple[str, torch.nn.Module]]) -> list[str]:
    """The entries of ``layers``, each of which is the name or the class of a PyG layer in ``named``."""
    if isinstance(layers, str) or not isinstance(layers, Iterable):
        raise TypeError(f"layers must be a collection of names such as ['convs.0'], got {layers!r}")
    wanted = list(layers)
    there = {n: plain_class(m).__name__ for n, m in named if isinstance(m, Accelerated) or is_message_passing(m)}
    for entry in wanted:
        if not isinstance(entry, str) or (entry not in there and entry not in there.values()):
            names = ", ".join(f"{name or '(the model)'} ({cls})" for name, cls in there.items()) or "none"
            raise ValueError(f"layers: {entry!r} is neither the name nor the class of a PyG layer; there are {names}")
    return wanted


def _note(layer: Accelerated) -> str:
    always = layer.always_left_to_pyg()
    if always is not None:
        return f"runs PyG's own forward ({always})"
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
