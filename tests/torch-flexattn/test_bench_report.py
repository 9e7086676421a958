"""What ``bench`` prints, draws and counts: columns, means, reasons, the chart, the bar, operations and bytes."""

from __future__ import annotations

import io
import math
import re
from xml.etree import ElementTree

import pytest
import torch
from torch_flexattn.bench import chart, memory, suites
from torch_flexattn.bench.race import Result
from torch_flexattn.bench.report import Table, means, reasons
from torch_flexattn.bench.task import make_task
from torch_flexattn.bench.work import work_of
from torch_flexattn.cli.progress import Progress

CPU = torch.device("cpu")
SVG = "{http://www.w3.org/2000/svg}"


def result(name, ours, peers, **more):
    return Result(name, ours, "cpu", peers, {peer: ms / ours for peer, ms in peers.items()}, **more)


RESULTS = [
    result("one", 2.0, {"math": 1.0, "fa3": 8.0}, rates={"flops_per_s": 3.21e14}, peak_bytes={"ours": 3 << 20}),
    result("two", 1.0, {"math": 8.0}, rates={"flops_per_s": 5.0, "bytes_per_s": 4.1e12}, errors={"fa3": "no"}),
    Result("three", errors={"ours": "broken", "math": "no", "fa3": "no"}),
]


def test_columns_have_times_ratios_rates_and_memory():
    table = Table(("math", "fa3", "flashinfer"), 8, has_memory=True)
    lines = [table.heading(), *(table.line(r) for r in RESULTS), table.means(RESULTS)]
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split() == [
        "one",
        "2.000",
        "cpu",
        "321",
        "TF/s",
        "3.0",
        "1.000",
        "(0.50×)",
        "8.000",
        "(4.00×)",
        "–",
    ]
    assert lines[2].split() == ["two", "1.000", "cpu", "4.1", "TB/s", "–", "8.000", "(8.00×)", "–", "–"]
    assert lines[3].split() == ["three", "failed", "–", "–", "–", "–"]
    assert lines[4].split() == ["geometric", "mean", "(2.00×)", "(4.00×)", "–"]
    assert "MiB" in lines[0]
    assert "MiB" not in Table((), 8).heading()


def test_means_are_geometric_and_of_measured_cases():
    assert means(RESULTS, ["math", "fa3", "cudnn"]) == {"math": pytest.approx(2.0), "fa3": pytest.approx(4.0)}


def test_every_reason_is_said_once():
    both = Result("four", errors={"fa2": "no window", "fa3": "no window"})
    said = reasons([*RESULTS, both], {"flashinfer": "cannot be imported"})
    assert said == [
        "not measured: flashinfer: cannot be imported",
        "not measured: fa3: no (two and 1 more)",
        "not measured: ours: broken (three)",
        "not measured: math: no (three)",
        "not measured: fa2, fa3: no window (four)",
    ]


def test_the_chart_has_a_dot_for_every_ratio_where_its_scale_says():
    drawing = ElementTree.fromstring(chart.svg("<a & b>", {"gym": RESULTS}))
    assert drawing.find(f"{SVG}title").text == "<a & b>"
    dots = {
        dot.find(f"{SVG}title").text: float(dot.get("cx"))
        for dot in drawing.iter(f"{SVG}circle")
        if dot.find(f"{SVG}title") is not None
    }
    assert set(dots) == {"math: 1.000 ms, 0.50×", "math: 8.000 ms, 8.00×", "fa3: 8.000 ms, 4.00×"}
    marks = {
        text.text: float(text.get("x")) for text in drawing.iter(f"{SVG}text") if re.fullmatch(r"[\d.]+×", text.text)
    }
    decade = (marks["10×"] - marks["1×"]) / 10
    for words, x in dots.items():
        ratio = float(re.search(r"([\d.]+)×", words)[1])
        assert x == pytest.approx(marks["1×"] + 10 * decade * math.log10(ratio), abs=0.2)
        assert chart.LEFT < x < chart.LEFT + chart.WIDTH
    words = [text.text for text in drawing.iter(f"{SVG}text")]
    assert {"suite gym", "one", "two", "math 2.00×", "fa3 4.00×"} <= set(words)
    assert "three" not in words


@pytest.mark.parametrize("ratio", [1e-5, 0.97, 1.0, 1e6])
def test_the_chart_holds_any_ratio(ratio):
    drawing = ElementTree.fromstring(chart.svg("t", {"gym": [result("one", 1.0, {"math": ratio})]}))
    places = [float(dot.get("cx")) for dot in drawing.iter(f"{SVG}circle")]
    assert all(0 < x <= chart.LEFT + chart.WIDTH for x in places)


def test_a_chart_without_peers_says_so():
    assert "no peer was measured" in chart.svg("t", {"gym": RESULTS[2:]})


def test_the_bar_is_for_terminals_alone():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    drawn = {}
    for kind in (Terminal, io.StringIO):
        progress = Progress(4, kind())
        for name in ("first", "second", "third"):
            progress.step(name)
        progress.note("math")
        drawn[kind] = progress._stream.getvalue()
        progress.clear()
        assert progress._stream.getvalue()[len(drawn[kind]) :] == ("\r\x1b[K" if kind is Terminal else "")
    assert drawn[io.StringIO] == ""
    last = drawn[Terminal].rsplit("\r\x1b[K", 1)[1]
    assert last.startswith("█" * 12 + "░" * 12 + " 3/4 ")
    assert last.endswith(" s  third: math")


def test_operations_and_bytes_are_of_what_is_visible():
    whole = work_of(make_task(suites.Attend("noop", 2, 4, 2, 64, 64, 16), CPU, torch.float32))
    assert (whole.flops, whole.bytes) == (4 * 16 * 64 * 64 * 2 * 4, 0)
    causal = work_of(make_task(suites.Attend("causal", 2, 4, 2, 64, 64, 16, True), CPU, torch.float32))
    assert causal.flops == 10 * 16 * (64 * 65 // 2) * 2 * 4
    windowed = work_of(make_task(suites.Attend("sliding_window", 2, 4, 2, 1, 400, 16), CPU, torch.float32))
    assert windowed.flops == 4 * 16 * 256 * 2 * 4
    assert windowed.bytes == 4 * (2 * 2 * 2 * 256 * 16 + 2 * 2 * 4 * 16)
    assert windowed.rates(2.0) == {"flops_per_s": 500 * windowed.flops, "bytes_per_s": 500 * windowed.bytes}


def test_memory_of_a_cpu_is_not_counted():
    assert memory.peak_bytes(lambda: pytest.fail("not called"), CPU) is None
    assert memory.machine_bytes() > 1 << 28


@pytest.mark.gpu
def test_memory_of_a_gpu_is_that_of_the_call():
    device = torch.device("cuda")
    kept = torch.zeros(5 << 20, dtype=torch.int8, device=device)
    assert memory.peak_bytes(lambda: kept.clone().clone(), device) == pytest.approx(10 << 20, abs=1 << 20)
