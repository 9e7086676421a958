"""The kernel that looks at every position of a mask for few queries, as source: which blocks of keys they see."""

from __future__ import annotations

from ...program import Program
from .decode_source import Offset, first_query
from .places import parameters
from .printer import print_program

HEADER = '''"""Written by torch-flexattn: blocks of keys that few queries see."""

import triton
import triton.language as tl

from torch_flexattn.kernels.triton.arithmetic import floor_div, floor_mod, power, round_half_even, tanh


@triton.jit(do_not_specialize=["kv_len", "q_offset", "columns"])
def classify(
    kinds, slots, kv_lens, q_offsets, heads, q_len, kv_len, q_offset, columns,
{places}    ROWS: tl.constexpr, MASK_N: tl.constexpr,
):
    """0 where a block is hidden, 1 where it is visible in part, 2 in full; keys that do not exist do not count."""
    b = tl.program_id(0) // heads
    h = tl.program_id(0) % heads
    query = tl.arange(0, ROWS)[:, None]
    kv_idx = tl.program_id(1) * MASK_N + tl.arange(0, MASK_N)[None, :]
'''

FOOTER = """
    seen = tl.max(tl.max(tl.where(inside & {visible}, 1, 0), 1), 0)
    hidden = tl.max(tl.max(tl.where(inside & ({visible} == 0), 1, 0), 1), 0)
    tl.store(kinds + tl.program_id(0) * columns + tl.program_id(1), seen * (2 - hidden))
"""


def source(mask: Program, *, slots: bool, lens: bool, offset: Offset) -> str:
    """The file that holds the kernel.

    Args:
        mask: what is visible.
        slots: as of :class:`Decode`, as are the others.
        lens: keys are bounded for each batch entry.
        offset: where the numbers of queries begin.
    """
    printed = print_program(mask, "x", {"b": "b", "h": "h", "q": "q_idx", "kv": "kv_idx"})
    lines = [
        *first_query(slots=slots, lens=lens, offset=offset),
        "q_idx = query + first",
        "inside = (query < q_len) & (kv_idx < kv_len)",
        *(line for place in printed.lines.values() for line in place),
    ]
    text = HEADER.format(places=parameters([mask])) + "\n".join(f"    {line}" for line in lines)
    return text + FOOTER.format(visible=f"({printed.outputs[0]})")
