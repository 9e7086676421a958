"""What a compiler calls while it reads, and takes for a constant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def outside_graph(function: Function) -> Function:
    """Mark a function whose result depends on its arguments alone, which are constants of a graph.

    It is ``torch.compiler.assume_constant_result``, which imports the compiler to set this one mark.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
