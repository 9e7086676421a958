"""Quoted figures, sourceless figures, rendered tables and pictures."""

import dataclasses

import pytest

from benchmarks import quote, table
from benchmarks.figure import draw
from benchmarks.render import pages, render
from benchmarks.result import CaseResult, FactResult, Result, Roofline, save

SOURCE = "results/h200/torch-tcgnn.json#cases/spmm/cora/d64"


@pytest.fixture
def checkout(tmp_path):
    """A checkout with one result file and a README that is to be written."""
    roof = Roofline(bytes=1e9, flops=1e9, bound="hbm", fraction=0.613)
    cases = [
        CaseResult(
            name=name,
            tags=["spmm"],
            ours_ms=0.25,
            peers_ms={"mkl": mkl},
            speedup={"mkl": mkl / 0.25},
            max_rel_err=0.0,
            rounds=30,
            roofline=roof,
            peak_bytes={"ours": 3 << 20},
        )
        for name, mkl in (("spmm/cora/d64", 0.8525), ("spmm/pubmed/d64", 0.5))
    ]
    facts = [FactResult(name="edges", value=1234567.0), FactResult(name="build", value=1.5, unit="s")]
    facts += [FactResult(name="size", value=9.46, unit="B/edge")]
    saved = Result(
        package="torch-tcgnn",
        device="NVIDIA H200",
        slug="h200",
        date="2026-12-01",
        commit="abc",
        threads=1,
        versions={"torch": "2.11.0"},
        cases=cases,
        facts=facts,
    )
    save(saved, tmp_path / "benchmarks/results/h200/torch-tcgnn.json")
    readme = tmp_path / "packages/torch-tcgnn/README.md"
    readme.parent.mkdir(parents=True)
    return tmp_path, readme, saved


def faults(checkout, text):
    root, readme, _ = checkout
    readme.write_text(text, encoding="utf-8")
    return [fault.reason for fault in quote.check(root)]


@pytest.mark.parametrize(
    "figure",
    [
        f"3.4×<!-- figure: {SOURCE}/speedup/mkl -->",
        f"**3.41x** <!-- figure: {SOURCE}/speedup/mkl -->",
        f"0.25 ms<!-- figure: {SOURCE}/ours_ms -->",
        f"250 µs <!-- figure: {SOURCE}/ours_ms -->",
        f"61 %<!-- figure: {SOURCE}/roofline/fraction -->",
        f"3.0 MiB<!-- figure: {SOURCE}/peak_bytes/ours -->",
        "2.6×<!-- figure: results/h200/torch-tcgnn.json#tags/spmm/speedup/mkl/geomean -->",
        "1,234,567<!-- figure: results/h200/torch-tcgnn.json#facts/edges/value -->",
        f"3.4× faster than MKL<!-- figure: {SOURCE}/speedup/mkl -->",
        "9.5 B/edge<!-- figure: results/h200/torch-tcgnn.json#facts/size/value -->",
        "1500 ms<!-- figure: results/h200/torch-tcgnn.json#facts/build/value -->",
    ],
)
def test_a_true_figure_passes_at_the_quoted_precision(checkout, figure):
    assert faults(checkout, f"Faster: {figure} than it was.") == []


@pytest.mark.parametrize(
    "figure, reason",
    [
        (f"3.5×<!-- figure: {SOURCE}/speedup/mkl -->", "the source says 3.41"),
        (f"3.42×<!-- figure: {SOURCE}/speedup/mkl -->", "the source says 3.41"),
        (f"4×<!-- figure: {SOURCE}/speedup/mkl -->", "the source says 3.41"),
        (f"0.25 s<!-- figure: {SOURCE}/ours_ms -->", "the source says 0.00025"),
        (f"0.25 MiB<!-- figure: {SOURCE}/ours_ms -->", "the source is in 'ms'"),
        (f"3.4×<!-- figure: {SOURCE}/speedup/none -->", "source cannot be read"),
        ("9.5 ms<!-- figure: results/h200/torch-tcgnn.json#facts/size/value -->", "the source is in 'B/edge'"),
        ("3.4×<!-- figure: results/h200/none.json#cases/a/ours_ms -->", "source cannot be read"),
        (f"fast<!-- figure: {SOURCE}/speedup/mkl -->", "follows no figure"),
    ],
)
def test_a_false_figure_is_a_fault(checkout, figure, reason):
    found = faults(checkout, f"Faster: {figure}.")
    assert len(found) == 1
    assert reason in found[0]


@pytest.mark.parametrize(
    "claim", ["3.4×", "up to 12x faster", "2 times faster", "**40 %** faster", "40 % less memory", "61 % of peak"]
)
def test_a_figure_without_a_source_is_a_fault(checkout, claim):
    good = f"3.4×<!-- figure: {SOURCE}/speedup/mkl -->"
    (found,) = faults(checkout, f"{good}\n\nIt is {claim} on cora.")
    assert "has no <!-- figure" in found


@pytest.mark.parametrize(
    "text",
    [
        "tiles of 16×8 and 8 × 1",
        "`4x faster`",
        "```\n5x faster\n```",
        "target: ≥ 1.2×",
        "1.7×<!-- not measured: abstract of the paper -->",
        "81.5 % accuracy",
        "4xH",
    ],
)
def test_what_is_no_claim_passes(checkout, text):
    assert faults(checkout, f"3.4×<!-- figure: {SOURCE}/speedup/mkl -->\n\n{text}") == []


def test_an_excuse_covers_its_own_figure_only(checkout):
    good = f"3.4×<!-- figure: {SOURCE}/speedup/mkl -->"
    assert len(faults(checkout, f"{good}\n\nours 9× and theirs 1.7×<!-- not measured: the paper -->")) == 1


def test_a_package_with_results_must_quote_one(checkout):
    assert faults(checkout, "No figures at all.") == [
        "benchmarks/results has figures of torch-tcgnn; its README quotes none"
    ]


def test_faults_name_page_and_line(checkout):
    root, readme, _ = checkout
    readme.write_text(f"one\n\nthree 9.9×<!-- figure: {SOURCE}/speedup/mkl -->")
    assert str(quote.check(root)[0]).startswith("packages/torch-tcgnn/README.md:3: quotes 9.9×")


def test_this_checkouts_pages_hold():
    assert [str(fault) for fault in quote.check()] == []


def test_this_checkouts_tables_are_rendered():
    for page in pages():
        text = page.read_text(encoding="utf-8")
        assert render(text) == text, f"{page.name}: run python -m benchmarks.render"


def test_a_table_block_is_filled_and_stays_filled(checkout):
    root, _, _ = checkout
    page = "before\n<!-- table: results/h200/torch-tcgnn.json tag=spmm -->\nstale\n<!-- end table -->\nafter\n"
    once = render(page, root)
    assert "| spmm/cora/d64 | 0.250 | 0.853 (3.41×) | 61 % hbm |" in once
    assert "| geometric mean |  | 2.61× |  |" in once
    assert "stale" not in once
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert render(once, root) == once
    assert not list(quote.sourceless(once))


def test_a_table_block_of_several_kinds_has_a_table_each(checkout):
    root, _, saved = checkout
    other = dataclasses.replace(saved.cases[0], name="sddmm/cora/d64")
    save(dataclasses.replace(saved, cases=[*saved.cases, other]), root / "benchmarks/results/h200/torch-tcgnn.json")
    page = render("<!-- table: results/h200/torch-tcgnn.json -->\n<!-- end table -->", root)
    assert page.count("| case | ours ms | mkl |") == 2


NOT_RUN = {
    "spmm/big/d64": "refused: spmm/big/d64: ValueError: error 1 > 2",
    "gat/cora": "no data: root 'x'",
    "edges/big": "out of memory: so much",
}


@pytest.mark.parametrize(
    "words, named",
    [
        ("", ["spmm/big/d64: refused: ValueError: error 1 &gt; 2", "gat/cora: no data: root 'x'"]),
        (" tag=spmm", ["spmm/big/d64: refused: ValueError: error 1 &gt; 2"]),
        (" facts", ["edges/big: out of memory: so much"]),
    ],
)
def test_a_table_block_lists_what_was_not_run(checkout, words, named):
    root, _, saved = checkout
    save(dataclasses.replace(saved, not_run=NOT_RUN), root / "benchmarks/results/h200/torch-tcgnn.json")
    page = render(f"<!-- table: results/h200/torch-tcgnn.json{words} -->\n<!-- end table -->", root)
    assert "\n\nNot measured:\n\n" + "".join(f"- {line}\n" for line in named) + "\n*NVIDIA H200" in page


def test_a_table_block_lists_the_peers_that_could_not_run(checkout):
    root, _, saved = checkout
    cases = [dataclasses.replace(case, peers_skipped={"dgl": "no wheel"}) for case in saved.cases]
    save(dataclasses.replace(saved, cases=cases), root / "benchmarks/results/h200/torch-tcgnn.json")
    page = render("<!-- table: results/h200/torch-tcgnn.json -->\n<!-- end table -->", root)
    assert "- dgl: no wheel [2 cases]\n" in page


def test_a_table_block_of_a_whole_run_lists_nothing(checkout):
    root, _, _ = checkout
    page = render("<!-- table: results/h200/torch-tcgnn.json -->\n<!-- end table -->", root)
    assert "Not measured" not in page


def test_a_table_block_names_the_file_that_is_missing(checkout):
    root, _, _ = checkout
    with pytest.raises(ValueError, match=r"there is no benchmarks/results/h100/none\.json"):
        render("<!-- table: results/h100/none.json -->\n<!-- end table -->", root)


@pytest.mark.parametrize("words, message", [("colour", "unknown word 'colour'"), ("tag=none", "nothing carries")])
def test_a_table_block_that_shows_nothing_is_an_error(checkout, words, message):
    root, _, _ = checkout
    with pytest.raises(ValueError, match=message):
        render(f"<!-- table: results/h200/torch-tcgnn.json {words} -->\n<!-- end table -->", root)


def test_terminal_columns_line_up():
    lines = table.terminal([["case", "ours"], ["a", "1.00"], ["longer", "10.0"]]).splitlines()
    assert lines == ["case    ours", "------  ----", "a       1.00", "longer  10.0"]


def test_a_missing_peer_is_a_dash_and_not_in_the_mean(checkout):
    _, _, saved = checkout
    lonely = CaseResult(
        name="c", tags=[], ours_ms=1.0, peers_ms={}, speedup={}, max_rel_err=0.0, rounds=30, note="alone"
    )
    rows = table.case_rows([*saved.cases, lonely])
    assert rows[3][2] == "–"
    assert rows[4][2] == "2.61×"


def test_what_was_not_measured_is_listed(checkout):
    _, _, saved = checkout
    case = CaseResult(
        name="c",
        tags=[],
        ours_ms=1.0,
        peers_ms={},
        speedup={},
        max_rel_err=0.0,
        rounds=30,
        peers_skipped={"dgl": "no wheel"},
    )
    lines = table.skipped_lines(Result(**(vars(saved) | {"cases": [case], "not_run": {"d": "refused: wrong"}})))
    assert lines == ["dgl: no wheel [c]", "d: refused: wrong"]


def test_a_figure_is_an_svg_with_every_peer(checkout, tmp_path):
    pytest.importorskip("matplotlib")
    _, _, saved = checkout
    draw(saved, saved.cases, tmp_path / "out" / "speedup.svg")
    assert "<svg" in (tmp_path / "out" / "speedup.svg").read_text()
    with pytest.raises(ValueError, match="no case with a measured peer"):
        draw(saved, [], tmp_path / "none.svg")
