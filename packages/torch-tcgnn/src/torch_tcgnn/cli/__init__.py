"""The command ``torch-tcgnn`` (``python -m torch_tcgnn``): ``tiles``, ``inspect``, ``bench`` and ``tune``.

Results go to standard output, progress and errors to standard error. Exit status 2 means that the input was at fault.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import bench, inspect, tiles, tune
from .table import check_json


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the command line without the program's name; default: that of the process.

    Returns:
        0, or 2 where the input was at fault; the reason is on standard error.
    """
    line = argparse.ArgumentParser(prog="torch-tcgnn", description="Sparse GNN computation on tensor cores.")
    commands = line.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (tiles, inspect, bench, tune):
        command.add_to(commands)
    try:
        options = line.parse_args(arguments)
    except SystemExit as stop:  # argparse has printed its help (0) or its complaint (2)
        return int(stop.code or 0)
    try:
        if getattr(options, "json", None):
            check_json(options.json)
        options.run(options)
    except (ValueError, OSError, ImportError) as error:
        print(f"torch-tcgnn {options.command}: {error}", file=sys.stderr)
        return 2
    return 0
