"""What :mod:`torch_tcgnn.lightning` is given, checked: each error names the argument and what it got."""

from __future__ import annotations

import torch

from .data import GraphData, load
from .data.locate import Root
from .graph import PATHS
from .graph_arguments import check_choice, check_count, check_finite
from .reorder import REORDERS


def check_classifier(model: object, num_classes: object, lr: float, weight_decay: float) -> None:
    """Raise where a classifier cannot be trained so.

    Raises:
        TypeError: ``model`` is no module, or a number none.
        ValueError: fewer than two classes, a rate that is not positive, a decay that is negative.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    check_count("num_classes", num_classes, least=2)
    check_finite("lr", lr)
    check_finite("weight_decay", weight_decay)
    if not (lr > 0 and weight_decay >= 0):
        raise ValueError(f"lr must be positive and weight_decay not negative, got lr={lr}, {weight_decay=}")


def check_translation(reorder: str, path: str) -> None:
    """Raise where a graph could not be translated so."""
    check_choice("reorder", reorder, REORDERS)
    check_choice("path", path, PATHS)


def as_graph_data(data: GraphData | str, root: Root) -> GraphData:
    """``data``, or the data set of that name.

    Raises:
        TypeError: neither a graph nor a name.
        ValueError: unknown name.
        FileNotFoundError: the files are not there.
    """
    if not isinstance(data, str | GraphData):
        raise TypeError(f"data must be a GraphData or the name of a data set, got {type(data).__name__}")
    return load(data, root) if isinstance(data, str) else data
