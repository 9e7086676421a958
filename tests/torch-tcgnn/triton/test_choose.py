"""The dispatch, on CPU tensors through the interpreter (on a GPU machine: on the GPU)."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close
from torch_tcgnn import reference
from torch_tcgnn.kernels import choose
from torch_tcgnn.row_plan import plan_rows
from torch_tcgnn.views import Views

MISSING = "cuda-core is not installed: pip install 'torch-tcgnn[cuda]'"


@pytest.fixture
def without_nvrtc(monkeypatch):
    monkeypatch.setattr(choose.nvrtc, "unavailable", lambda: MISSING)
    choose._warn_once.cache_clear()


def with_plan(adjacency):
    return replace(adjacency, plan=plan_rows(adjacency.rowptr))


def test_explain_names_the_kernel_and_the_reason(graphs, random, monkeypatch):
    g = graphs["mixed"]
    x, rows, blocks, both = random(g.num_cols, 4), with_plan(g.adjacency), g.with_blocks(), with_plan(g.with_blocks())
    heads, by_head = random(g.num_cols, 2, 4), random(g.num_edges, 2)

    def explained(adjacency, x=x, weight=None):
        choice = choose.explain_spmm(adjacency, x, weight)
        return choice.kernel, choice.reason

    monkeypatch.setattr(choose.nvrtc, "unavailable", lambda: None)
    assert explained(rows) == ("cuda_rows", "the graph has no tensor-core blocks")
    assert explained(blocks) == ("cuda_blocks", "the graph has tensor-core blocks only")
    assert explained(blocks, heads, by_head)[0] == "cuda_blocks"
    assert explained(both, heads, by_head)[0] == "cuda_rows"
    assert explained(both, x.double()) == ("cuda_rows", "tensor cores do not take float64")
    kernel, reason = explained(g.adjacency)
    assert (kernel, "no work list" in reason) == ("triton_rows", True)
    split = replace(both, rest=plan_rows(both.rowptr, rows=torch.tensor([0])))
    for adjacency, faster, kernel in (
        (both, "tc", "cuda_blocks"),
        (both, "cuda", "cuda_rows"),
        (split, "mixed", "cuda_mixed"),
        (split, "cuda", "cuda_rows"),
    ):
        predicted = {path: float(path != faster) for path in ("tc" if adjacency is both else "mixed", "cuda")}
        monkeypatch.setattr(choose, "predict_us", lambda *_, predicted=predicted, **how: predicted)
        fresh = replace(adjacency)
        assert explained(fresh)[0] == kernel
        assert "predicted to be faster" in explained(fresh)[1]
        monkeypatch.setattr(choose, "predict_us", None)
        assert explained(fresh)[0] == kernel, "decided once"
    both = replace(both)
    monkeypatch.setattr(choose.nvrtc, "unavailable", lambda: MISSING)
    for adjacency, kernel in ((blocks, "triton_blocks"), (rows, "triton_rows"), (both, "triton_rows")):
        monkeypatch.setattr(choose, "predict_us", lambda *_, **how: {"tc": 2.0, "cuda": 1.0})
        assert explained(adjacency)[0] == kernel
        assert MISSING in explained(adjacency)[1]
    assert explained(blocks, heads, by_head)[0] == "triton_rows"


def test_explain_sddmm(graphs, random, monkeypatch):
    g = graphs["mixed"]
    a, b = random(g.num_rows, 4), random(g.num_cols, 4)
    monkeypatch.setattr(choose.nvrtc, "unavailable", lambda: None)
    assert choose.explain_sddmm(g.with_blocks(), a, b).kernel == "cuda_blocks"
    assert choose.explain_sddmm(g.adjacency, a, b).kernel == "triton_rows"
    monkeypatch.setattr(choose.nvrtc, "unavailable", lambda: MISSING)
    choice = choose.explain_sddmm(g.with_blocks(), a, b)
    assert (choice.kernel, MISSING in choice.reason) == ("triton_rows", True)


def test_without_nvrtc_one_warning_names_the_fix(graphs, random, without_nvrtc):
    g = graphs["mixed"]
    x = random(g.num_cols, 2, 3)
    with pytest.warns(UserWarning, match=r"Triton's run in their place.*pip install 'torch-tcgnn\[cuda\]'"):
        out = choose.spmm(g.with_blocks(), x, None, "ieee")
    assert_close(out, reference.spmm(g.row, g.col, x, None, g.num_rows))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose.spmm(g.with_blocks(), x, None, "ieee")


def test_every_operator_reaches_its_kernel(graphs, random):
    g = graphs["mixed"]
    x, weight = random(g.num_cols, 3, 5), random(g.num_edges, 3)
    a = g.adjacency
    assert_close(choose.spmm(a, x, weight, "ieee"), reference.spmm(g.row, g.col, x, weight, g.num_rows))
    assert_close(choose.segment_sum(a, weight), reference.segment_sum(g.row, weight, g.num_rows))
    left = random(g.num_rows, 3, 5)
    assert_close(choose.sddmm(a, left, x, "ieee"), reference.sddmm(g.row, g.col, left, x))
    assert_close(choose.edge_softmax(a, weight), reference.edge_softmax(g.row, weight, g.num_rows))
    best = reference.spmm_extremum(g.row, g.col, x, weight, g.num_rows, True)
    assert_close(choose.spmm_extremum(a, x, weight, True)[0], best)


@pytest.mark.parametrize("weighted", [False, True])
def test_both_paths_together_write_every_row(graphs, random, without_nvrtc, monkeypatch, weighted):
    """Windows chosen at will by tensor-core blocks, the other rows by the row kernel."""
    g = graphs["mixed"]
    views = Views(g.adjacency, g.num_cols, "degree")
    monkeypatch.setattr(
        "torch_tcgnn.views.prefer_blocks_by_window", lambda entries, *_: torch.arange(len(entries)) % 2 == 0
    )
    monkeypatch.setattr(choose, "predict_us", lambda *_, **how: {"mixed": 1.0, "cuda": 2.0})
    adjacency = views.on(g.adjacency, ("tc", "cuda"), torch.float32)
    assert adjacency.rest is not None
    assert 0 < adjacency.blocks.slot_entry.shape[0] < g.num_edges
    x, weight = random(g.num_cols, 5), random(g.num_edges) if weighted else None
    assert choose.explain_spmm(adjacency, x, weight).kernel == "triton_mixed"
    assert_close(choose.spmm(adjacency, x, weight, "ieee"), reference.spmm(g.row, g.col, x, weight, g.num_rows))


def test_empty_operands_launch_nothing(graphs, random):
    g = graphs["mixed"]
    a = g.adjacency
    assert choose.spmm(a, random(g.num_cols, 0), None, "ieee").shape == (g.num_rows, 0)
    assert choose.sddmm(a, random(g.num_rows, 0), random(g.num_cols, 0), "ieee").tolist() == [0.0] * g.num_edges
    assert choose.segment_sum(a, random(g.num_edges, 0)).shape == (g.num_rows, 0)
    assert choose.edge_softmax(a, random(g.num_edges, 0)).shape == (g.num_edges, 0)
    value, arg = choose.spmm_extremum(a, random(g.num_cols, 2, 0), None, True)
    assert value.shape == arg.shape == (g.num_rows, 2, 0)


def test_a_type_without_a_kernel_is_named(graphs, random):
    g = graphs["mixed"]
    x = random(g.num_cols, 2).to(torch.float8_e5m2)
    with pytest.raises(TypeError, match=r"x must be float32, .* got torch.float8_e5m2"):
        choose.spmm(g.adjacency, x, None, "ieee")


def test_without_triton_the_error_names_the_command(graphs, random, monkeypatch):
    g = graphs["mixed"]
    monkeypatch.setattr(choose.importlib.util, "find_spec", lambda name: None)
    choose._require_triton.cache_clear()
    with pytest.raises(ImportError, match=r"pip install 'torch-tcgnn\[triton\]'"):
        choose.spmm(g.adjacency, random(g.num_cols, 2), None, "ieee")
