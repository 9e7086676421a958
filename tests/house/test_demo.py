"""The demo harness, driven by toy sections."""

import base64
import importlib
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("rich", reason="the demo draws with rich")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

TOY = '''
    """A package's demo section, as small as one can be."""
    def section(progress, data, seed):
        progress(0.5, "halfway")
        return {
            "title": "Toy <graphs>",
            "summary": f"seed {seed}, data {data}",
            "rows": [{"graph": "ring", "nodes": 12345, "error": 0.125}, {"graph": "star", "nodes": 7, "exact": True}],
            "figures": [{"title": "line", "caption": "a line", "svg": "<svg xmlns='http://www.w3.org/2000/svg'/>"}],
            "notes": ["a note"],
        }

    def broken(progress, data, seed):
        raise RuntimeError("no such graph: moon")

    def wrong(progress, data, seed):
        return {"title": "no summary", "rows": []}
'''


@pytest.fixture
def demo(monkeypatch, tmp_path):
    """examples/demo.py, in a checkout with one toy package that is not installed."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = importlib.import_module("demo")
    source = tmp_path / "packages" / "torch-toy" / "src"
    source.mkdir(parents=True)
    (source / "toy_demo_section.py").write_text(textwrap.dedent(TOY))
    (source.parent / "pyproject.toml").write_text(
        '[project.entry-points."torch_ext.demo"]\ntorch-toy = "toy_demo_section:section"\n'
        'torch-broken = "toy_demo_section:broken"\ntorch-wrong = "toy_demo_section:wrong"\n'
    )
    monkeypatch.setattr(module.importlib.metadata, "entry_points", lambda group: ())
    sections = module.find_sections(tmp_path)
    monkeypatch.setattr(module, "find_sections", lambda: sections)
    yield module
    module.sys.path.remove(str(source))


def test_a_bare_checkout_shows_the_sections_its_packages_declare(demo):
    assert [found.name for found in demo.find_sections()] == ["torch-broken", "torch-toy", "torch-wrong"]


def test_a_section_ends_in_a_page_with_its_table_and_picture(demo, tmp_path, capsys):
    out = tmp_path / "report"
    assert demo.main(["--only", "torch-toy", "--out", str(out), "--seed", "3"]) == 0
    page = (out / "index.html").read_text()
    assert "Toy &lt;graphs&gt;" in page
    assert "seed 3, data None" in page
    assert "12,345" in page
    assert "data:image/svg+xml;base64," in page
    assert "prefers-color-scheme: dark" in page
    assert 'src="http' not in page
    printed = capsys.readouterr().out
    assert "torch-toy" in printed
    assert "ok" in printed


def test_the_data_folder_reaches_the_section(demo, tmp_path):
    demo.main(["--only", "torch-toy", "--out", str(tmp_path / "r"), "--data", str(tmp_path)])
    assert f"data {tmp_path}" in (tmp_path / "r" / "index.html").read_text()


def test_a_failing_section_is_reported_and_the_others_still_run(demo, tmp_path, capsys):
    assert demo.main(["--out", str(tmp_path / "r")]) == 1
    page = (tmp_path / "r" / "index.html").read_text()
    assert "RuntimeError: no such graph: moon" in page
    assert "Toy &lt;graphs&gt;" in page
    assert "2 of 3 failed" in page
    assert "FAILED" in capsys.readouterr().out


def test_a_section_that_breaks_the_contract_is_told_which_key_is_missing(demo):
    with pytest.raises(ValueError, match="lacks \\['summary'\\]"):
        demo.checked({"title": "t", "rows": []})
    with pytest.raises(TypeError, match="got list"):
        demo.checked([])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--only", "torch-moon"], "torch-moon: no such section"), (["--data", "no/such/folder"], "not a folder")],
)
def test_a_wrong_argument_is_named(demo, capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        demo.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_figure_is_either_svg_or_png(demo):
    assert demo.Figure(title="dot", png=DOT).source.startswith("data:image/png;base64,")
    with pytest.raises(ValueError, match="got neither"):
        demo.Figure(title="nothing")
    with pytest.raises(ValueError, match="not the content of a PNG"):
        demo.Figure(title="text", png=b"hello")


def test_cells_are_written_for_readers(demo):
    values = (None, True, 12345, 0.123456, 98765.4, "cora")
    assert [demo.cell(v) for v in values] == ["–", "yes", "12,345", "0.1235", "98,765", "cora"]
