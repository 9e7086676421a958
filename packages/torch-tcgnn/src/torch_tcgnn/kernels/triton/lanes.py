"""How the lanes of a row kernel find their entries: the device side of :mod:`torch_tcgnn.row_plan`.

A program has ``ROWS`` lanes. The first programs give all lanes to one long item each (pieces of cut rows, then wide
rows): the lanes walk its entries interleaved. The other programs give each lane a short row of its own.

In the loops, masks of lanes (``… < count``) guard loads of one value a lane, and tiles of lanes × features have masks
made of ``counts = count[:, None]``. Never widen a mask of lanes to a tile: a mask used both ways is computed in two
layouts, and Triton (3.6, 3.7.1) may give a load the wrong one ("mask type matches ptr type").
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ...row_plan import RowPlan

SIZES = ["num_long", "num_pieces", "num_short"]
"""Kernel arguments that change with every graph: no compilation of their own."""

Lists = tuple[Tensor, Tensor, Tensor, int, int, int]


def lists(plan: RowPlan) -> Lists:
    """``pieces, wide, short, num_long, num_pieces, num_short``: the items of a plan as kernels take them."""
    num_pieces = plan.pieces.shape[0]
    return plan.pieces, plan.wide, plan.short, num_pieces + plan.wide.shape[0], num_pieces, plan.short.shape[0]


def whole_rows(plan: RowPlan) -> Lists:
    """As :func:`lists`, with cut rows as one item each; only the rows of the items are meant."""
    num_cut = plan.cut_rows.shape[0]
    return plan.cut_rows, plan.wide, plan.short, num_cut + plan.wide.shape[0], num_cut, plan.short.shape[0]


def sums_of_pieces(plan: RowPlan) -> Lists:
    """As :func:`lists`: an item a cut row, its pieces as entries."""
    num_cut = plan.cut_rows.shape[0]
    return plan.cut_rows[:0], plan.cut_rows, plan.short, num_cut, 0, 0


def num_programs(items: Lists, rows: int) -> int:
    """Programs of ``rows`` lanes for a work list."""
    return items[3] + triton.cdiv(items[5], rows)


@triton.jit
def item_of(items, number, mine):
    """Row, first and end entry of items, 0 where an item is not of this list."""
    at = items + number.to(tl.int64) * 3
    row = tl.load(at, mask=mine, other=0).to(tl.int64)
    first = tl.load(at + 1, mask=mine, other=0).to(tl.int64)
    end = tl.load(at + 2, mask=mine, other=0).to(tl.int64)
    return row, first, end


@triton.jit
def lanes(pieces, wide, short, num_long, num_pieces, num_short, rowptr, ROWS: tl.constexpr):
    """Work of this program's lanes; with ``rowptr`` the items are whole rows, whatever range they name.

    Returns whether the program is long (all lanes on one item), each lane's row, whether it has one, its first entry,
    the entries from there to the item's end, the step to the lane's next entry, and the trips of the loop.
    """
    lane = tl.arange(0, ROWS)
    number = tl.program_id(0) + lane * 0
    own = (number - num_long) * ROWS + lane
    long = tl.program_id(0) < num_long
    live = (number < num_long) | (own < num_short)
    row, first, end = item_of(pieces, number, number < num_pieces)
    wide_row, wide_first, wide_end = item_of(wide, number - num_pieces, (number >= num_pieces) & (number < num_long))
    short_row, short_first, short_end = item_of(short, own, (number >= num_long) & (own < num_short))
    row += wide_row + short_row
    if rowptr is None:
        first += wide_first + short_first
        end += wide_end + short_end
    else:
        first = tl.load(rowptr + row, mask=live, other=0).to(tl.int64)
        end = tl.load(rowptr + row + 1, mask=live, other=0).to(tl.int64)
    first += tl.where(long, lane, 0)
    step = tl.where(long, ROWS, 1)
    count = (end - first).to(tl.int32)
    trips = (tl.max(count, 0) + step - 1) // step
    return long, row, live, first, count, step, trips


@triton.jit
def edge_of(edge, entry, inside):
    """Input edge of each entry; ``edge`` None is the identity."""
    if edge is not None:
        entry = tl.load(edge + entry, mask=inside, other=0).to(tl.int64)
    return entry
