"""Parametrised tensors of a layer (``torch.nn.utils.parametrize``), seen through both the accelerated layer and PyG's.

PyTorch keeps a parametrisation in two places: submodules, which both layers share, and properties of a class made for
the one module that was parametrised. The other module gets a class with the same properties here.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized


def plain_class(module: torch.nn.Module) -> type[torch.nn.Module]:
    """The class of a module before its tensors were parametrised."""
    cls = type(module)
    while cls.__name__ == f"Parametrized{cls.__bases__[0].__name__}":
        cls = cls.__bases__[0]
    return cls


def carry(source: torch.nn.Module, target: torch.nn.Module) -> None:
    """Let ``target``, which shares the submodules of ``source``, read and set the tensors that ``source`` has.

    Tensors that hooks keep as plain attributes (``torch.nn.utils.weight_norm``, pruning) are handed over as they are.
    """
    base = plain_class(target)
    if is_parametrized(source):
        own = {name: value for name, value in vars(type(source)).items() if name not in ("__module__", "__doc__")}
        target.__class__ = type(f"Parametrized{base.__name__}", (base,), own)
    elif type(target) is not base:
        target.__class__ = base
    for name, value in source.__dict__.items():
        if isinstance(value, Tensor) and not name.startswith("_"):
            target.__dict__[name] = value
