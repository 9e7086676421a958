"""Runs of each row of blocks, in room that is fixed beforehand: nothing waits for the device."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["columns"])
def row_runs(kinds, begins, ends, runs, columns, WIDTH: tl.constexpr):
    """Runs of neighbouring blocks of one kind; those of row ``r`` are ``begins[r]`` to before ``ends[r]``."""
    base = tl.program_id(0) * columns
    found = 0
    for start in range(0, columns, WIDTH):
        column = start + tl.arange(0, WIDTH)
        kind = tl.load(kinds + base + column, mask=column < columns, other=0)
        before = tl.load(kinds + base + column - 1, mask=(column > 0) & (column <= columns), other=0)
        after = tl.load(kinds + base + column + 1, mask=column + 1 < columns, other=0)
        opens = tl.where((kind > 0) & (before != kind), 1, 0)
        place = base + found + tl.cumsum(opens, 0) - 1
        tl.store(runs + place * 2, column, mask=opens > 0)
        is_full = tl.where(kind == 2, 1, 0)
        tl.store(runs + place * 2 + 1, (column + 1) * 2 + is_full, mask=(kind > 0) & (after != kind))
        found += tl.sum(opens, 0)
    tl.store(begins + tl.program_id(0), base)
    tl.store(ends + tl.program_id(0), base + found)
