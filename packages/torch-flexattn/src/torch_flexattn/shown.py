"""How mods and block masks show themselves.

What draws and explains stands on floors above theirs, and enters itself here when the package is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

Way = Literal["picture", "explanation"]
Function = TypeVar("Function", bound=Callable[..., Any])

_ways: dict[Way, Callable[..., Any]] = {}


def shows(way: Way) -> Callable[[Function], Function]:
    """Enter a function as what shows mods and block masks this way."""

    def entered(function: Function) -> Function:
        _ways[way] = function
        return function

    return entered


def show(way: Way, what: Any, *arguments: Any, **options: Any) -> Any:
    """What the function entered for this way says of a mod or a block mask."""
    return _ways[way](what, *arguments, **options)
