"""SVG drawings: they parse, their rectangles are the blocks, their labels are positions."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
import torch
from torch_flexattn import create_block_mask, masks, scores, viz
from torch_flexattn.viz.mask import FULL, HIDDEN, PARTIAL

SPACE = "{http://www.w3.org/2000/svg}"
RECTANGLE = re.compile(r"M(\d+) (\d+)h(\d+)v1h-(\d+)z")


def grid_of(drawing: str, rows: int, columns: int) -> list[list[str]]:
    """The colour of each cell, from the paths; fails where two overlap or one is missing."""
    grid = [[""] * columns for _ in range(rows)]
    for path in ET.fromstring(drawing).iter(f"{SPACE}path"):
        matched = RECTANGLE.findall(path.get("d"))
        assert "".join(f"M{x} {y}h{w}v1h-{w}z" for x, y, w, _ in matched) == path.get("d")
        for x, y, width, back in matched:
            assert width == back
            for column in range(int(x), int(x) + int(width)):
                assert grid[int(y)][column] == ""
                grid[int(y)][column] = path.get("fill")
    assert all(all(row) for row in grid)
    return grid


def hexadecimal(colour: tuple[int, int, int]) -> str:
    return "#%02x%02x%02x" % colour  # noqa: UP031


def test_rectangles_are_the_blocks():
    mask = masks.causal() & masks.sliding_window(256)
    kinds = create_block_mask(mask, None, None, 2048, 1000).kinds()[0, 0].tolist()
    colours = [hexadecimal(c) for c in (HIDDEN, PARTIAL, FULL)]
    assert grid_of(viz.svg(mask, 2048, 1000), 16, 8) == [[colours[k] for k in row] for row in kinds]


def test_axes_name_positions():
    root = ET.fromstring(viz.svg(masks.causal(), 2048, 1024, block=(128, 64)))
    words = {kind: [t.text for t in root.iter(f"{SPACE}text") if t.get("class") == kind] for kind in ("key", "query")}
    assert words["key"] == ["0", "128", "256", "384", "512", "640", "768", "896"]  # every second column
    assert words["query"] == ["0", "256", "512", "768", "1,024", "1,280", "1,536", "1,792"]
    places = [float(t.get("x")) for t in root.iter(f"{SPACE}text") if t.get("class") == "key"]
    assert places == sorted(places)


def test_title_legend_and_statistics_are_there():
    root = ET.fromstring(viz.svg(masks.causal(), 2048))
    words = [t.text for t in root.iter(f"{SPACE}text")]
    assert root.find(f"{SPACE}title").text == "mask of 2048 queries × 2048 keys"
    assert {"keys", "queries", "full", "partial", "hidden"} <= set(words)
    assert "16 partial, 120 full, 120 hidden of 256 blocks, sparsity 46.88 %" in words
    assert "2,098,176 of 4,194,304 pairs visible (50 %)" in words


def test_the_picture_lies_inside_the_drawing():
    root = ET.fromstring(viz.svg(masks.always(), 4096, 256))
    frame = next(r for r in root.iter(f"{SPACE}rect") if r.get("fill") == "none")
    for side, start in (("width", "x"), ("height", "y")):
        assert float(frame.get(start)) + float(frame.get(side)) < float(root.get(side))


def test_small_masks_show_positions():
    grid = grid_of(viz.svg(masks.causal(), 3), 3, 3)
    assert [[cell == hexadecimal(PARTIAL) for cell in row] for row in grid] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


def test_scores_are_drawn_with_their_range():
    drawing = viz.svg(scores.relative_bias(torch.tensor([[-2.0, -1.0, 0.0, 1.0, 2.0]])), 3)
    words = [t.text for t in ET.fromstring(drawing).iter(f"{SPACE}text")]
    assert {"-2", "0", "2"} <= set(words)
    assert len({colour for row in grid_of(drawing, 3, 3) for colour in row}) == 5


@pytest.mark.parametrize("length", [0, 131_072, 1 << 20])
def test_other_sizes_parse(length):
    drawing = viz.svg(masks.causal() & masks.sliding_window(4096), length)
    assert len(drawing) < 50_000
    cells = min(128, -(-length // 128))
    grid_of(drawing, cells, cells)
