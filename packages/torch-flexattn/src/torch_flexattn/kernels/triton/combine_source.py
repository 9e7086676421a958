"""The kernel that merges what the shares of a row left, and the statements that end a softmax, as source.

Shares of equal size are summed as a tree, whose form follows their number. Shares of a fixed size are summed 32 by 32,
one group after the other, whatever their number: those that a row does not have are zeros and change no bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .chunks import chunks

if TYPE_CHECKING:
    from .decode_source import Decode

HEADER = '''
@triton.jit(do_not_specialize=["shares"])
def combine(
    out_ptr, lse_ptr, max_ptr, sums, sinks, descales, o_sb, o_sh, o_sm, heads, q_len, shares, d_k, d_b,
    PARTS: tl.constexpr, STEP: tl.constexpr,
):
    """One row from what its shares left."""
    LOG2E: tl.constexpr = 1.4426950408889634
    line = tl.program_id(0).to(tl.int64)
    query = line % q_len
    head = line // q_len % heads
    b = line // q_len // heads
    base = sums + line * shares * {record}
'''

EQUAL = """parts = tl.arange(0, PARTS)
tops = tl.load(base + parts * {record} + {top}, mask=parts < shares, other=float("-inf"))
totals = tl.load(base + parts * {record} + {total}, mask=parts < shares, other=0.0)
m = tl.max(tops, 0)
finite = tl.where(m == float("-inf"), 0.0, m)
l = tl.sum(tl.exp2(tops - finite) * totals, 0)
"""

FIXED = """m = float("-inf")
l = 0.0
for start in range(0, shares, STEP):
    part = start + tl.arange(0, STEP)
    tops = tl.load(base + part * {record} + {top}, mask=part < shares, other=float("-inf"))
    m = tl.maximum(m, tl.max(tops, 0))
finite = tl.where(m == float("-inf"), 0.0, m)
"""

END = """safe = tl.where(l > 0, l, 1.0)
safe = tl.where(l != l, l, safe)
lse = tl.where(l == 0, float("-inf"), (m + tl.log2(safe)) / LOG2E)
"""


def combine(kernel: Decode) -> str:
    """The kernel."""
    record, top = kernel.record, kernel.record - 4
    text = (FIXED if kernel.fixed else EQUAL).format(record=record, top=top, total=top + 1)
    lines = [*text.splitlines(), *_merge(kernel)]
    return HEADER.format(record=record) + "\n".join(indent(lines, 1)) + "\n"


def result(kernel: Decode, wide: str, exists: str) -> list[str]:
    """Output, logarithm of the sum and largest score of the rows ``line``; ``wide``: beside features."""
    lines = END.splitlines()
    where = f", mask={exists}" if exists else ""
    if kernel.sinks:
        lines.append(f"sink = tl.load(sinks + head{where}).to(tl.float32)")
        lines.append("safe, lse = with_sink(sink, safe, lse)")
    if kernel.descales:
        lines.append(f"share = tl.load(descales + d_k + b * d_b + head{where}) / safe")
    lines.append(f"tl.store(lse_ptr + line, lse{where})")
    if kernel.maxima:
        lines.append(f"tl.store(max_ptr + line, m / LOG2E{where})")
    lines.append("o_base = out_ptr + b.to(tl.int64) * o_sb + head.to(tl.int64) * o_sh + query.to(tl.int64) * o_sm")
    across = "[None, :]" if wide else ""
    for c, chunk in enumerate(chunks(kernel.value_width)):
        inside = [f"{exists}{wide}"] if exists else []
        inside += [] if chunk.whole else [f"(f{c}{across} < {kernel.value_width})"]
        limits = f", mask={' & '.join(inside)}" if inside else ""
        quotient = f"acc{c} * share{wide}" if kernel.descales else f"acc{c} / safe{wide}"
        value = f"({quotient}).to(out_ptr.dtype.element_ty)"
        lines.append(f"tl.store(o_base{wide} + f{c}{across}, {value}{limits})")
    return lines


def _merge(kernel: Decode) -> list[str]:
    """The sum of the shares' outputs, each weighed by how far its largest score is below that of all."""
    found = chunks(kernel.value_width)
    lines: list[str] = []
    for c, chunk in enumerate(found):
        lines.append(f"f{c} = {chunk.start} + tl.arange(0, {chunk.size})")
        lines.append(f"acc{c} = tl.zeros([{chunk.size}], tl.float32)")
    top = f"base + part * {kernel.record} + {kernel.record - 4}"
    lines += [
        "for start in range(0, shares, STEP):",
        "    part = start + tl.arange(0, STEP)",
        f'    weight = tl.exp2(tl.load({top}, mask=part < shares, other=float("-inf")) - finite)',
    ]
    if kernel.fixed:
        total = f"tl.load(base + part * {kernel.record} + {kernel.record - 3}, mask=part < shares, other=0.0)"
        lines.append(f"    l += tl.sum(weight * {total}, 0)")
    for c, chunk in enumerate(found):
        inside = "(part[:, None] < shares)" + ("" if chunk.whole else f" & (f{c}[None, :] < {kernel.value_width})")
        address = f"base + part[:, None] * {kernel.record} + f{c}[None, :]"
        lines.append(f"    of{c} = tl.load({address}, mask={inside}, other=0.0)")
        lines.append(f"    acc{c} += tl.sum(weight[:, None] * of{c}, 0)")
    return [*lines, *result(kernel, "", "")]


def indent(lines: list[str], levels: int) -> list[str]:
    """Statements, further inside."""
    return ["    " * levels + line for line in lines]
