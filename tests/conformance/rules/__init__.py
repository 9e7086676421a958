"""The rules of the house, one file a family; each takes a package and returns what is wrong with it, in words."""

from collections.abc import Callable

from tests.conformance.package import Package
from tests.conformance.rules import (
    callbacks,
    docstrings,
    errors,
    extras,
    floors,
    folder,
    imports,
    modules,
    op_values,
    ops,
    surface,
)

Rule = Callable[[Package], list[str]]

RULES: list[Rule] = [
    *imports.RULES,
    *surface.RULES,
    *docstrings.RULES,
    *floors.RULES,
    *folder.RULES,
    *ops.RULES,
    *op_values.RULES,
    *modules.RULES,
    *callbacks.RULES,
    *extras.RULES,
    *errors.RULES,
]
