"""The command ``torch-flexattn``, or ``python -m torch_flexattn``.

Its commands are ``viz``, ``explain``, ``bench``, ``tune``, ``doctor`` and ``cache``.

Results go to standard output, errors to standard error. Exit status 2 means that the input was at fault.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import bench, cache, doctor, explain, tune, viz


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the command line without the program's name; default: that of the process.

    Returns:
        0; 1 where ``doctor`` found a fault, or a call of ours failed in ``bench``; 2 where the input was at
        fault, the reason is on standard error.
    """
    line = argparse.ArgumentParser(prog="torch-flexattn", description="Look at masks and scores of attention.")
    commands = line.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (viz, explain, bench, tune, doctor, cache):
        command.add_to(commands)
    try:
        options = line.parse_args(arguments)
    except SystemExit as stop:  # argparse has printed its help (0) or its complaint (2)
        return int(stop.code or 0)
    try:
        return options.run(options)
    except (ValueError, TypeError, IndexError, NotImplementedError, OSError) as error:
        print(f"torch-flexattn {options.command}: {error}", file=sys.stderr)
        return 2
