"""``tiles``: the tile-reduction table of the TC-GNN paper (USENIX ATC 2023).

Tensor-core tiles that cover the adjacency as it is, against those that cover it after translation, for tiles of 16 × 8
(SpMM) and 16 × 16 (SDDMM). Edges are counted as the files list them, which is what the published counts are of.
"""

from __future__ import annotations

import argparse
from typing import Any

from .. import sgt
from ..data import GraphData
from .progress import track
from .sources import HELP, add_options, open_graph
from .table import aligned, write_json

SHAPES = ((16, 8), (16, 16))


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("tiles", help="tiles before and after translation", description=__doc__)
    parser.add_argument("graphs", nargs="+", metavar="GRAPH", help=HELP)
    add_options(parser)
    parser.add_argument("--json", metavar="OUT", help="write the counts to this file as well")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the table."""
    options.edges = options.edges or "listed"
    found = [row for name in track(options.graphs, "tiles") for row in count(open_graph(name, options))]
    if options.json:
        write_json(options.json, {"edges": options.edges, "tiles": found})
    header = ["graph", "nodes", "edges", "tile", "before", "after", "removed", "filled"]
    rows = [
        [
            row["graph"],
            f"{row['num_nodes']:,}",
            f"{row['num_edges']:,}",
            row["tile"],
            f"{row['greedy']:,}",
            f"{row['condensed']:,}",
            f"{100 * row['reduction']:.1f} %",
            f"{100 * row['density']:.2f} %",
        ]
        for row in found
    ]
    print(aligned([header, *rows]))


def count(graph: GraphData) -> list[dict[str, Any]]:
    """One row a tile shape."""
    rowptr, col = graph.csr()
    rows = []
    for height, width in SHAPES:
        tiles = sgt.count_tiles(rowptr, col, height, width)
        rows.append(
            {
                "graph": graph.name,
                "num_nodes": graph.num_nodes,
                "num_edges": graph.num_edges,
                "tile": f"{height}x{width}",
                "greedy": tiles.greedy,
                "condensed": tiles.condensed,
                "reduction": 1 - tiles.condensed / tiles.greedy if tiles.greedy else 0.0,
                "density": tiles.density,
            }
        )
    return rows
