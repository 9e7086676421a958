"""``viz``: a mask or a score modification as text, or as a PNG or SVG file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..mods import MaskMod
from ..viz import save, text
from ..viz.file import check_suffix
from .expression import parse
from .options import HELP, add_lengths, blocks, count

LEVELS = ("auto", "position", "block")


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("viz", help="draw a mask or a score modification", description=__doc__)
    parser.add_argument("expression", metavar="EXPR", help=HELP)
    add_lengths(parser, required=True)
    parser.add_argument("--batch", type=int, default=0, metavar="B", help="which batch entry (default: 0)")
    parser.add_argument("--head", type=int, default=0, metavar="H", help="which head (default: 0)")
    parser.add_argument(
        "--level", choices=LEVELS, default="auto", help="cells are positions or blocks (default: as fits)"
    )
    parser.add_argument("--score", type=float, default=0.0, metavar="S", help="the score that is modified (default: 0)")
    parser.add_argument("--mask", metavar="EXPR", help="what is hidden, where EXPR is a score modification")
    parser.add_argument("--cells", type=count, metavar="N", help="cells in each direction, at most, of text and SVG")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write FILE.png, FILE.svg or FILE.txt instead of printing"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print or write the picture."""
    what = parse(options.expression)
    if options.output is not None:
        check_suffix("--output", Path(options.output))
    settings: dict[str, Any] = {"batch": options.batch, "head": options.head, "value": options.score}
    if isinstance(what, MaskMod):
        settings |= {"block": blocks(options), "level": options.level}
    if options.mask is not None:
        mask = parse(options.mask)
        if not isinstance(mask, MaskMod):
            raise InputError(f"--mask must be a mask, got the score modification {options.mask!r}")
        settings["mask"] = mask
    limited = {} if options.cells is None else {"cells": options.cells}
    if options.output is None:
        print(text(what, options.seq, options.kv_seq, **settings, **limited))
        return 0
    if options.cells is not None and Path(options.output).suffix == ".png":
        raise InputError(f"--cells is for text and SVG, got --cells {options.cells} with {options.output}")
    save(options.output, what, options.seq, options.kv_seq, **settings, **limited)
    print(f"{options.output}: {Path(options.output).stat().st_size:,} bytes")
    return 0
