"""Graphs as a command line names them: a file, a data set, or a generated stand-in."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from .. import data
from ..data import GraphData

HELP = (
    "a file (.npz, .mtx, .csv, or .txt with white space; the text forms also with .gz), the name of a data set "
    f"({', '.join(data.NAMES)}), or a generated stand-in such as artist-like or products/8-like (an eighth of its size)"
)
STAND_IN = re.compile(r"(?P<name>.+?)(?:/(?P<part>\d+(?:\.\d+)?))?-like")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say where and how graphs are read."""
    parser.add_argument(
        "--root", metavar="DIR", help="folder of data sets (default: $TORCH_EXT_DATA and the usual places)"
    )
    parser.add_argument(
        "--edges",
        choices=("undirected", "listed"),
        help="both directions of every edge once without self loops, or the edges as they are listed "
        "(default: undirected for data sets, listed for files)",
    )


def open_graph(source: str, options: argparse.Namespace) -> GraphData:
    """Load what ``source`` names, by the options of :func:`add_options`.

    Raises:
        ValueError: the name is unknown, or the file is not what its ending says.
        FileNotFoundError: the files of the data set, or the file, are not there.
    """
    if source in data.NAMES:
        return data.load(source, options.root, edges=options.edges or "undirected")
    stand_in = STAND_IN.fullmatch(source)
    if stand_in and stand_in["name"] in data.PRESETS:
        part = float(stand_in["part"] or 1)
        if part < 1:
            raise ValueError(f"{source}: the divisor must be at least 1, got {stand_in['part']}")
        return replace(data.generate(stand_in["name"], scale=1 / part), name=source)
    path = Path(source)
    ending = "".join(path.suffixes[-2:]).removesuffix(".gz")
    ending = ending[ending.rfind(".") :] if "." in ending else ""
    if ending not in (".npz", ".mtx", ".csv", ".txt"):
        stand_ins = [f"{name}-like" for name in data.PRESETS]
        presets = ", ".join(stand_ins)
        close = get_close_matches(source.lower(), [*data.NAMES, *stand_ins], n=1)
        guess = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(
            f"unknown graph {source!r}{guess}: give a file ending in .npz, .mtx, .csv or .txt (.gz), a data set "
            f"({', '.join(data.NAMES)}), or a stand-in ({presets})"
        )
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {source}")
    edges = options.edges or "listed"
    if ending == ".npz":
        return data.npz(path, edges=edges, features="none")
    if ending == ".mtx":
        return data.mtx(path, edges=edges)
    return data.edge_list(path, delimiter="," if ending == ".csv" else None, edges=edges)
