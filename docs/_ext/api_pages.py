"""Reference pages from docstrings, written before every build: one a public module of every package.

The floor plan gives all packages the same rooms, so the pages need no list of their own: a package's page shows the
package itself (its ``__all__``) and those of `ROOMS` that it has. What is written, under ``api/generated/``, is not
committed.
"""

import importlib
import importlib.util
from pathlib import Path

from sphinx.application import Sphinx

ROOMS = {
    "": "Operators and types",
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
    "reference": "Reference implementations",
}


def write_pages(app: Sphinx) -> None:
    """Write the pages; a page whose text is unchanged is left alone, so that rebuilds stay incremental."""
    docs = Path(app.srcdir)
    for package in sorted(docs.parent.glob("packages/*/pyproject.toml")):
        name = package.parent.name
        module = name.replace("-", "_")
        pages = {room: title for room, title in ROOMS.items() if not room or _exists(f"{module}.{room}")}
        folder = docs / "api" / "generated" / name
        folder.mkdir(parents=True, exist_ok=True)
        wanted = {f"{room or 'index'}.rst": _page(module, room, title, list(pages)) for room, title in pages.items()}
        for old in folder.iterdir():
            if old.name not in wanted:
                old.unlink()
        for file, text in wanted.items():
            path = folder / file
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                path.write_text(text, encoding="utf-8")


def _page(module: str, room: str, title: str, rooms: list[str]) -> str:
    full = f"{module}.{room}" if room else module
    heading = title if room else module.replace("_", "-")
    lines = [heading, "=" * len(heading), ""]
    if not room:
        lines += [".. toctree::", "   :hidden:", "", *(f"   {other}" for other in rooms if other), ""]
        lines += ["Rooms: " + ", ".join(f":doc:`{other}`" for other in rooms if other) + ".", ""]
    if names := _names(full):
        lines += [f".. currentmodule:: {full}", "", ".. autosummary::", "   :nosignatures:", ""]
        lines += [*(f"   {name}" for name in names), ""]
    return "\n".join([*lines, f".. automodule:: {full}", ""])


def _names(module: str) -> list[str]:
    """Public functions and classes of a module that lists them."""
    loaded = importlib.import_module(module)
    public = ((name, getattr(loaded, name)) for name in getattr(loaded, "__all__", ()))
    return [name for name, value in public if callable(value)]


def _exists(module: str) -> bool:
    found = importlib.util.find_spec(module)
    return found is not None and found.origin is not None


def setup(app: Sphinx) -> dict[str, bool]:
    """Hook into the build."""
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True}
