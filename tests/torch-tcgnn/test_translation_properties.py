"""Properties that hold for every edge list: the round trip, the reverse, and both formats' meaning."""

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn import bitblock

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402


@st.composite
def edge_lists(draw, max_nodes: int = 40, max_edges: int = 120):
    """``(edge_index [2, E], (num_sources, num_targets))``: any order, duplicates, loops, empty rows."""
    sources, targets = draw(st.integers(0, max_nodes)), draw(st.integers(0, max_nodes))
    if 0 in (sources, targets):
        return torch.empty(2, 0, dtype=torch.int64), (sources, targets)
    pair = st.tuples(st.integers(0, sources - 1), st.integers(0, targets - 1))
    pairs = draw(st.lists(pair, max_size=max_edges))
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    return torch.tensor(pairs, dtype=dtype).reshape(-1, 2).t(), (sources, targets)


@given(edge_lists(), st.sampled_from(["source_to_target", "target_to_source"]))
def test_edges_come_back_in_their_order_with_duplicates(edges, flow):
    edge_index, sizes = edges
    g = tcg.TCGraph.from_edge_index(edge_index, sizes, flow=flow)
    back = g.to_edge_index() if flow == "source_to_target" else g.to_edge_index().flip(0)
    assert torch.equal(back, edge_index.long())
    assert torch.equal(g.t().to_edge_index().flip(0), g.to_edge_index())


@given(edge_lists())
def test_values_survive_the_change_of_order(edges):
    edge_index, sizes = edges
    adjacency = tcg.TCGraph.from_edge_index(edge_index, sizes).adjacency
    values = torch.arange(edge_index.shape[1] * 2).view(-1, 2)
    assert torch.equal(adjacency.to_edges(adjacency.to_entries(values)), values)


@given(edge_lists())
def test_reverse_equals_the_translation_of_the_reversed_list(edges):
    edge_index, (sources, targets) = edges
    reverse = tcg.TCGraph.from_edge_index(edge_index, (sources, targets)).t().adjacency
    built = tcg.TCGraph.from_edge_index(edge_index.flip(0), (targets, sources)).adjacency
    assert torch.equal(reverse.rowptr, built.rowptr)
    assert torch.equal(reverse.col, built.col)


@given(edge_lists())
def test_symmetry_is_that_of_the_counts(edges):
    edge_index, (sources, targets) = edges
    n = max(sources, targets)
    counts = torch.zeros(n, n).index_put((edge_index[0], edge_index[1]), torch.ones(()), accumulate=True)
    assert tcg.TCGraph.from_edge_index(edge_index, n).is_symmetric == torch.equal(counts, counts.t())


@settings(max_examples=60)
@given(edge_lists(), st.sampled_from([8, 16]), st.integers(1, 4), st.booleans(), st.randoms(use_true_random=False))
def test_blocks_multiply_like_the_matrix(edges, height, max_blocks, permuted, random):
    """Every work item alone, partial rows added in their order: the schedule that the kernels follow."""
    edge_index, (sources, targets) = edges
    adjacency = tcg.TCGraph.from_edge_index(edge_index, (sources, targets)).adjacency
    order = torch.tensor(random.sample(range(targets), targets), dtype=torch.int64) if permuted else None
    blocks = bitblock.build(
        adjacency.rowptr, adjacency.col, sources, height=height, max_blocks=max_blocks, row_order=order
    )
    x = torch.randn(sources, 3, dtype=torch.float64)
    expected = x.new_zeros(targets, 3).index_add(0, edge_index[1], x[edge_index[0].long()])
    torch.testing.assert_close(multiply(blocks, x, targets), expected)


def multiply(blocks: bitblock.BitBlocks, x: torch.Tensor, num_rows: int) -> torch.Tensor:
    height, multiplicity = blocks.height, blocks.slot_values(None)
    windows = x.new_zeros(blocks.win_ptr.shape[0] - 1, height, x.shape[1])
    partial = x.new_zeros(len(blocks.partial_window), height, x.shape[1])
    for window, begin, end, row in blocks.items.tolist():
        out = windows[window] if row < 0 else partial[row]
        for block in range(begin, end):
            slot = int(blocks.block_slot[block])
            for word, mask in enumerate(blocks.block_mask[block].tolist()):
                for bit in (b for b in range(64) if mask >> b & 1):
                    factor = 1.0 if multiplicity is None else multiplicity[slot]
                    out[(word * 64 + bit) // 8] += factor * x[blocks.block_col[block, bit % 8]]
                    slot += 1
    for window, first, last in blocks.splits.tolist():
        windows[window] = partial[first:last].sum(0)
    by_place = windows.view(-1, x.shape[1])[:num_rows]
    if blocks.row_order.numel() == 0:
        return by_place
    return torch.empty_like(by_place).index_copy_(0, blocks.row_order.long(), by_place)
