"""``cache``: the folder of generated kernels: what is in it, or ``cache clear`` to empty it of them."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from ..kernels.launch.files import cache_dir

KERNEL = re.compile(r"kernel_[0-9a-f]{24}\.(py|cubin|[0-9a-f]{16}|[\w.-]+\.pyc)|tuned\.json(\.[0-9a-f]{16})?")
"""Names of what this package writes: sources, bytecode, machine code, what tuning found, parts of stopped processes."""


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("cache", help="show or clear the generated kernels", description=__doc__)
    parser.add_argument("action", nargs="?", choices=("show", "clear"), default="show", help="default: show")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print what is there, or what was removed."""
    folder = cache_dir()
    found = kept(folder)
    size = sum(path.stat().st_size for path in found)
    sources = sum(path.suffix == ".py" for path in found)
    if options.action == "clear":
        for path in found:
            path.unlink(missing_ok=True)
        print(f"{folder}: removed {sources} kernels, {size:,} bytes")
    else:
        print(f"{folder}: {sources} kernels, {size:,} bytes{'' if folder.is_dir() else ' (the folder is not there)'}")
    return 0


def kept(folder: Path) -> list[Path]:
    """Files in the folder that this package wrote, bytecode included; other files are nobody's business here."""
    places = [*folder.glob("*"), *folder.glob("__pycache__/*")] if folder.is_dir() else []
    return sorted(path for path in places if KERNEL.fullmatch(path.name) and path.is_file())
