"""``explain``: what a mask or a score modification is, and what is generated from it."""

from __future__ import annotations

import argparse
from typing import Any

from ..explanation import explain
from .expression import parse
from .options import HELP, add_lengths, blocks


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("explain", help="print program and generated code", description=__doc__)
    parser.add_argument("expression", metavar="EXPR", help=HELP)
    add_lengths(parser, required=False)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the explanation."""
    print(explain(parse(options.expression), options.seq, options.kv_seq, block=blocks(options)))
    return 0
