"""A picture of a comparison: for every case, how many times faster ours is than each peer.

``python -m benchmarks.figure benchmarks/results/cpu-2c/torch-tcgnn.json --tag spmm --out spmm.svg`` (needs matplotlib).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.result import CaseResult, Result, load

__all__ = ["draw"]


def draw(result: Result, cases: Sequence[CaseResult], path: Path) -> None:
    """Save a horizontal bar chart of speed-ups, log scale, with a line where ours and the peer are equal.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: no case has a peer.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter
    except ImportError as error:
        raise ImportError("benchmarks.figure draws with matplotlib: pip install matplotlib") from error
    shown = [case for case in cases if case.speedup]
    if not shown:
        raise ValueError("no case with a measured peer to draw")
    peers = list(dict.fromkeys(peer for case in shown for peer in case.speedup))
    height = 0.8 / len(peers)
    figure = Figure(figsize=(8, 1.6 + len(shown) * max(0.3, 0.14 * len(peers))), layout="constrained")
    axes = figure.add_subplot()
    for row, peer in enumerate(peers):
        places = [i + row * height - 0.4 + height / 2 for i, case in enumerate(shown) if peer in case.speedup]
        ratios = [case.speedup[peer] for case in shown if peer in case.speedup]
        bars = axes.barh(places, [ratio - 1 for ratio in ratios], left=1, height=height * 0.9, label=peer)
        axes.bar_label(bars, labels=[f"{ratio:.2f}×" for ratio in ratios], padding=2, fontsize=7)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(shown)), [case.name for case in shown], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("time of the peer / time of ours (right of 1×: ours is faster)")
    axes.set_title(f"{result.package} on {result.device}, torch {result.versions['torch']}", fontsize=9)
    axes.legend(fontsize=8, frameon=False, loc="best")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw from the command line."""
    line = argparse.ArgumentParser(prog="python -m benchmarks.figure")
    line.add_argument("result", type=Path)
    line.add_argument("--tag", action="append", default=[], help="only cases with this tag; may repeat")
    line.add_argument("--out", type=Path, required=True, help="SVG, PNG or PDF file")
    options = line.parse_args(arguments)
    result = load(options.result)
    draw(result, [case for case in result.cases if all(tag in case.tags for tag in options.tag)], options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
