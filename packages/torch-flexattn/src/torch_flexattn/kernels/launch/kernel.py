"""Sources of kernels, before anything is compiled."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .files import load

OWN_MODULES = re.compile(r"^from (torch_flexattn[\w.]*|\.\w[\w.]*) import", re.MULTILINE)


@dataclass(frozen=True, eq=False)
class Kernel:
    """A function of a source.

    Attributes:
        name: of the function.
        text: the source, generated; ``None``: that of ``module``.
        module: the name of a module of this package.
        language: what it is written in.
    """

    name: str
    text: str | None = None
    module: str = ""
    language: str = "triton"

    @functools.cached_property
    def source(self) -> str:
        """Its text."""
        return source_of(self.module) if self.text is None else self.text

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Of the arguments that are no constants, in their order."""
        found = re.search(rf"^def {self.name}\(([^)]*)\)", self.source, re.MULTILINE)
        assert found is not None
        arguments = (a.strip() for a in re.sub(r"#[^\n]*", "", found[1]).split(","))
        return tuple(a for a in arguments if a and ":" not in a)

    @functools.cached_property
    def unspecialised(self) -> frozenset[str]:
        """Arguments whose values make no difference to the machine code."""
        found = re.search(rf"do_not_specialize=\[([^]]*)\]\)\s+def {self.name}\(", self.source)
        return frozenset(re.findall(r"\w+", found[1])) if found else frozenset()

    @functools.cached_property
    def digest(self) -> str:
        """Of all source that it is made of: its own, and that of this package's modules which it imports."""
        told = [self.name, self.language, *_with_imported(self.source, self.module.rpartition(".")[0])]
        return hashlib.sha256("\0".join(told).encode()).hexdigest()

    @functools.cached_property
    def function(self) -> Any:
        """The function, which needs Triton."""
        module = importlib.import_module(self.module) if self.text is None else load(self.text)
        return getattr(module, self.name)


def _with_imported(text: str, package: str) -> list[str]:
    """A source, and those of what it imports, in the order of their names."""
    found: dict[str, str] = {}
    waiting = _imported(text, package)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = source_of(name)
            waiting += _imported(found[name], name.rpartition(".")[0])
    return [text, *(found[name] for name in sorted(found))]


def _imported(text: str, package: str) -> list[str]:
    """Modules of this package that a source imports from."""
    return [importlib.util.resolve_name(name, package) for name in OWN_MODULES.findall(text)]


@functools.lru_cache(maxsize=256)
def source_of(module: str) -> str:
    """The text of a module of this package, which is not imported for it."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")
