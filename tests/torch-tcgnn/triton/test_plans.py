"""The work lists of the row kernels: kept with the graph, equal to the graph's own, and complete."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch_tcgnn.adjacency import Adjacency
from torch_tcgnn.kernels.triton import lanes, plans
from torch_tcgnn.kernels.triton.csr_spmm import csr_spmm
from torch_tcgnn.kernels.triton.edge_softmax import edge_softmax
from torch_tcgnn.row_plan import plan_rows


def test_a_plan_is_built_once_and_leaves_with_its_graph():
    rowptr = torch.tensor([0, 1, 3], dtype=torch.int32)
    adjacency = Adjacency(rowptr, torch.zeros(3, dtype=torch.int32), rowptr[:0])
    assert plans.plan_of(adjacency) is plans.plan_of(adjacency)
    kept = len(plans._PLANS)
    del rowptr, adjacency
    assert len(plans._PLANS) == kept - 1


def test_the_graphs_own_plan_comes_first(graphs):
    adjacency = graphs["mixed"].adjacency
    own = plan_rows(adjacency.rowptr)
    assert plans.plan_of(replace(adjacency, plan=own)) is own


@pytest.mark.parametrize("longest", [70, 300])
def test_how_a_row_is_cut_changes_no_more_than_rounding(graphs, random, longest):
    g = graphs["hub"]
    cut = replace(g.adjacency, plan=plan_rows(g.adjacency.rowptr, longest=longest))
    assert cut.plan.pieces.shape[0] > 3
    x, logits = random(g.num_cols, 3), random(g.num_edges)
    one, other = (x.new_empty(g.num_rows, 3) for _ in range(2))
    csr_spmm(cut, x, None, one)
    csr_spmm(g.adjacency, x, None, other)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert torch.equal(edge_softmax(cut, logits), edge_softmax(g.adjacency, logits))  # rows are looped whole


def test_work_lists_count_programs(graphs):
    plan = plan_rows(graphs["hub"].adjacency.rowptr, longest=512)  # rows of 1200 and 90 entries, 7 short ones
    assert lanes.num_programs(lanes.lists(plan), 4) == 3 + 1 + 2
    assert lanes.num_programs(lanes.whole_rows(plan), 4) == 2 + 2
    assert lanes.num_programs(lanes.sums_of_pieces(plan), 4) == 1
