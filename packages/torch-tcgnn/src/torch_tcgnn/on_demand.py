"""Submodules that ``import torch_tcgnn`` leaves alone and ``torch_tcgnn.<name>`` imports when it is first read."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

SUBMODULES = ("data", "lightning")


def __getattr__(name: str) -> ModuleType:
    """``torch_tcgnn.data`` and ``torch_tcgnn.lightning``; from then on they are ordinary attributes.

    Raises:
        AttributeError: any other name.
        ImportError: ``lightning``, where that is not installed.
    """
    if name in SUBMODULES:
        return import_module(f"torch_tcgnn.{name}")
    raise AttributeError(f"module 'torch_tcgnn' has no attribute {name!r}")
