"""Rows of one community beside each other, and in each window the rows with most neighbours in common.

Two steps. Labels are propagated to the neighbour whose community raises the modularity most (Barber and Clark, Physical
Review E 80, 2009): plain label propagation ends in one label on most graphs, modularity makes a large community
expensive to join. The communities become the nodes of the next level until none joins another (Blondel et al., J. Stat.
Mech., 2008), and walking that hierarchy depth first puts the rows in an order. Then the windows of each stretch of that
order are filled one row at a time, by common neighbours (Acc-SpMM, PPoPP 2025, walks the leaves of its hierarchy by the
same measure). All stretches step together, so the number of tensor operations hardly depends on the size of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .adjacency import Adjacency
from .bitblock import entries_of, first_of_run

ROUNDS = 8
"""Rounds of label propagation on each level."""
LEVELS = 12
"""Levels of the hierarchy, at most."""
STRETCH = 256
"""Rows among which the next row of a window is chosen: more find more, at a cost of memory and time linear in this."""
PAIRS = 1 << 24
"""Pairs of rows whose common neighbours are held at a time."""
WINDOW = 8


def community_order(adjacency: Adjacency, num_cols: int, order: Tensor) -> Tensor:
    """``[num_rows]`` int64 permutation: ``order`` grouped by community, then by common neighbours.

    Args:
        adjacency: a square pattern; edges count in both directions.
        num_cols: its columns.
        order: ``[num_rows]`` int64 permutation, the order among rows that nothing else tells apart.
    """
    if adjacency.num_edges == 0:
        return order
    for label in communities(adjacency):
        order = order[label[order].sort(stable=True)[1]]
    rows = PAIRS // STRETCH
    return torch.cat([by_common_neighbours(adjacency, num_cols, part) for part in order.split(rows)])


def communities(adjacency: Adjacency) -> Iterator[Tensor]:
    """``[num_rows]`` int64 community of each row, level by level, the smallest communities first."""
    num = adjacency.num_rows
    row, col = adjacency.rows(), adjacency.col.long()
    between = row != col
    row, col = row[between], col[between]
    votes = torch.ones(2 * row.shape[0], dtype=torch.float64, device=row.device)  # sums of whole numbers stay exact
    source, target, votes = _summed(torch.cat([row, col]), torch.cat([col, row]), votes, num)
    degree = votes.new_zeros(num).index_add_(0, source, votes)
    member = torch.arange(num, device=row.device)
    for _ in range(LEVELS):
        distinct, joined = _propagate(source, target, votes, degree).unique(return_inverse=True)
        if distinct.shape[0] == num:
            return
        num, member = distinct.shape[0], joined[member]
        yield member
        degree = degree.new_zeros(num).index_add_(0, joined, degree)
        source, target, votes = _summed(joined[source], joined[target], votes, num)


def _summed(source: Tensor, target: Tensor, votes: Tensor, num: int) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct pairs, ascending, with the sums of their votes."""
    distinct, place = (source * num + target).unique(return_inverse=True)
    return distinct // num, distinct % num, votes.new_zeros(distinct.shape[0]).index_add_(0, place, votes)


def _propagate(source: Tensor, target: Tensor, votes: Tensor, degree: Tensor) -> Tensor:
    """``[num]`` labels. In a round one half of the nodes, in turns, moves to the neighbouring label of largest gain.

    The gain of label ``c`` for node ``i`` is the votes of ``i`` for ``c`` less those expected by chance,
    ``degree_i · degree_c / total``. Were all nodes to move at once, two neighbours would swap labels for ever.
    """
    num, total = degree.shape[0], degree.sum()
    node = torch.arange(num, device=degree.device)
    half = node * 2654435761 >> 7 & 1
    between = source != target
    source, target, votes = source[between], target[between], votes[between]
    voter, own_vote = torch.cat([source, node]), torch.cat([votes, torch.zeros_like(degree)])
    label = node
    for turn in range(ROUNDS):
        size = torch.zeros_like(degree).index_add_(0, label, degree)
        owner, choice, support = _summed(voter, torch.cat([label[target], label]), own_vote, num)
        others = size[choice] - torch.where(label[owner] == choice, degree[owner], 0.0)
        gain = support * total - degree[owner] * others
        best = gain.new_full((num,), -torch.inf).scatter_reduce_(0, owner, gain, "amax")
        leads = gain == best[owner]
        smallest = label.new_full((num,), num).scatter_reduce_(0, owner[leads], choice[leads], "amin")
        label = torch.where(half == turn % 2, smallest, label)
    return label


def by_common_neighbours(adjacency: Adjacency, num_cols: int, order: Tensor) -> Tensor:
    """The rows of ``order`` (``[n]`` int64), moved inside each stretch of :data:`STRETCH`.

    A window begins with the longest row left; each next row is the one with most common neighbours, summed over the
    rows already in the window. Ties go to the earlier row.
    """
    num = order.shape[0]
    shared, length = _common_neighbours(adjacency, num_cols, order)
    stretches = torch.arange(shared.shape[0], device=order.device)
    earlier = torch.arange(STRETCH, device=order.device).flip(0)  # so places beyond the last row come last
    taken = torch.zeros_like(length)
    score = length
    chosen = torch.empty_like(length)
    for step in range(STRETCH):
        begins = step % WINDOW == 0
        best = ((length if begins else score) * STRETCH + earlier + taken).argmax(1)
        chosen[:, step] = best
        taken[stretches, best] = torch.iinfo(torch.int64).min // 2
        score = shared[stretches, best].long() + (0 if begins else score)
    chosen = (stretches[:, None] * STRETCH + chosen).view(-1)
    return order[chosen[chosen < num]]


def _common_neighbours(adjacency: Adjacency, num_cols: int, order: Tensor) -> tuple[Tensor, Tensor]:
    """``[stretches, STRETCH, STRETCH]`` int32 common neighbours of rows, and ``[stretches, STRETCH]`` row lengths.

    Entries sorted by stretch and column: two rows share a column where their entries lie in one run, one apart, two
    apart, and so on.
    """
    count = adjacency.rowptr.long().diff()[order]
    stretches = -(-order.shape[0] // STRETCH)
    length = count.new_zeros(stretches * STRETCH)
    length[: count.shape[0]] = count
    num_entries = int(count.sum())
    place = torch.repeat_interleave(count, output_size=num_entries)
    col = adjacency.col.long()[entries_of(adjacency.rowptr.long(), order, num_entries)]
    key = ((place // STRETCH * num_cols + col) * STRETCH + place % STRETCH).sort()[0]
    key = key[first_of_run(key)]  # duplicates count once
    column, place = key // STRETCH, key // STRETCH // num_cols * STRETCH + key % STRETCH
    shared = torch.zeros(stretches * STRETCH**2, dtype=torch.int32, device=key.device)
    first, apart = torch.arange(key.shape[0], device=key.device), 1
    while True:
        first = first[first + apart < key.shape[0]]
        first = first[column[first] == column[first + apart]]
        if first.shape[0] == 0:
            return shared.view(stretches, STRETCH, STRETCH), length.view(stretches, STRETCH)
        a, b = place[first], place[first + apart]
        one = torch.ones_like(a, dtype=torch.int32)
        shared.index_add_(0, a * STRETCH + b % STRETCH, one)
        shared.index_add_(0, b * STRETCH + a % STRETCH, one)
        apart += 1
