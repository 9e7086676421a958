"""Reference pages from docstrings, written before every build: one a public module of every package.

The floor plan gives all packages the same rooms, so the pages need no list of their own: a package has a page for what
it exports (its ``__all__``), and one for each of `ROOMS` that holds something more. What is written, under
``api/generated/``, is not committed.
"""

import importlib
import importlib.util
from pathlib import Path

from sphinx.application import Sphinx

ROOMS = {
    "nn": "Modules",
    "accelerate": "Acceleration",
    "convert": "Conversion",
    "calibrate": "Calibration",
    "attack": "Attacks",
    "train": "Training",
    "metrics": "Metrics",
    "lightning": "Lightning",
    "transforms": "Transforms",
    "data": "Data",
    "interop": "Other libraries",
    "cache": "Cache",
    "sgt": "The paper's graph translation",
    "masks": "Masks",
    "scores": "Score modifications",
    "viz": "Pictures",
    "reference": "Reference implementations",
}


def write_pages(app: Sphinx) -> None:
    """Write the pages; a page whose text is unchanged is left alone, so that rebuilds stay incremental."""
    docs = Path(app.srcdir)
    for package in sorted(docs.parent.glob("packages/*/pyproject.toml")):
        folder = docs / "api" / "generated" / package.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        wanted = _pages(package.parent.name)
        for old in folder.iterdir():
            if old.name not in wanted:
                old.unlink()
        for file, text in wanted.items():
            path = folder / file
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                path.write_text(text, encoding="utf-8")


def _pages(name: str) -> dict[str, str]:
    """File name and text of every page of a package. A name has one place: the package itself before its rooms."""
    package = name.replace("-", "_")
    own = _public(package)
    shown = [value for _, value in own]
    pages = {}
    rooms = []
    for room, title in ROOMS.items():
        if not _exists(f"{package}.{room}"):
            continue
        public = _public(f"{package}.{room}")
        fresh = [name for name, value in public if not any(value is other for other in shown)]
        if fresh:
            rooms.append(room)
            again = [name for name, _ in public if name not in fresh]
            pages[f"{room}.rst"] = _page(f"{package}.{room}", title, fresh, again, [])
    return {"index.rst": _page(package, name, [name for name, _ in own], [], rooms), **pages}


def _page(module: str, title: str, names: list[str], elsewhere: list[str], rooms: list[str]) -> str:
    lines = [title, "=" * len(title), ""]
    if rooms:
        lines += [".. toctree::", "   :hidden:", "", *(f"   {room}" for room in rooms), ""]
        lines += ["Rooms: " + ", ".join(f":doc:`{room}`" for room in rooms) + ".", ""]
    lines += [f".. currentmodule:: {module}", "", ".. autosummary::", "   :nosignatures:", ""]
    lines += [*(f"   {name}" for name in names), "", f".. automodule:: {module}"]
    lines += [f"   :exclude-members: {', '.join(elsewhere)}"] if elsewhere else []
    return "\n".join([*lines, ""])


def _public(module: str) -> list[tuple[str, object]]:
    """Public functions and classes: those of ``__all__``, or else those defined in the module itself."""
    loaded = importlib.import_module(module)
    names = getattr(loaded, "__all__", None)
    if names is None:
        names = [
            name
            for name, value in vars(loaded).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == module
        ]
    public = ((name, getattr(loaded, name)) for name in names)
    return [(name, value) for name, value in public if callable(value)]


def _exists(module: str) -> bool:
    found = importlib.util.find_spec(module)
    return found is not None and found.origin is not None


def setup(app: Sphinx) -> dict[str, bool]:
    """Hook into the build."""
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True}
