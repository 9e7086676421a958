"""The forward kernel of Hopper for a pair of programs, as source in Gluon.

One program of the grid sums 128 rows of one head. One warp fetches tiles of keys and values by the copy engine into a
ring in shared memory; two groups of four warps sum 64 rows each, so that one group's softmax runs under the other's
products. Modifications and masks are evaluated on the accumulators where they lie, in registers.

Queries and keys may be of 8 bits (e4m3): both are read along their features, as products of 8 bits must be. Values are
of 16 bits even then: the second product sums over keys, along which values do not lie, and its weights keep 16 bits.

What multiplies every score last is left for the exponentials, where a multiplication costs nothing: ``m`` and ``s``
times ``rate`` are the scores in base 2. That needs a positive number, known before the launch; others multiply at once.

The structure is that of FlashAttention-3 (Shah et al., 2024, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...program import Program
from ..triton.chunks import chunks
from ..triton.forward_source import BOX
from ..triton.places import names as names_of
from ..triton.printer import Printed, print_program, scores_of
from .tangents import FORWARD

GROUPS = 2
"""Groups of warps that multiply."""
ROWS = 64
"""Of a group: what one instruction of a group of warps multiplies."""
DEPTH = {False: 16, True: 32}
"""Features that one instruction sums over, by whether they are of 8 bits: 32 bytes."""


@dataclass(frozen=True)
class Forward:
    """What a forward kernel is compiled from.

    Attributes:
        width: features of queries and keys.
        value_width: features of values.
        score: the score modification, or ``None``.
        mask: the mask of partial blocks, or ``None``: every block is full.
        offsets: the numbers of queries begin elsewhere in each batch entry.
        sinks: each head has a further score.
        maxima: whether the maximum score of each row is stored.
        eight: whether queries and keys are of 8 bits.
        descales: there are factors of each head, of products and of values.
        bounded: scores lie so near to 0 that their exponentials can be summed as they are.
    """

    width: int
    value_width: int
    score: Program | None = None
    mask: Program | None = None
    offsets: bool = False
    sinks: bool = False
    maxima: bool = False
    eight: bool = False
    descales: bool = False
    bounded: bool = False

    @property
    def programs(self) -> tuple[Program, ...]:
        return tuple(p for p in (self.score, self.mask) if p is not None)


TEXT = '''"""Written by torch-flexattn: attention forward on Hopper."""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from torch_flexattn.kernels.hopper.arithmetic import quick_tanh, tanh, tanh_of_pairs
from torch_flexattn.kernels.hopper.schedule import placed
from torch_flexattn.kernels.triton.arithmetic import floor_div, floor_mod, power, round_half_even


@gluon.jit
def fetch(
    {kv_descs}, {kv_smem}, k_ready, k_free, v_ready, v_free, row_ptr, runs, mask_row, bk, hk, kv_len,
    BLOCK_N: gl.constexpr, MASK_N: gl.constexpr, STAGES: gl.constexpr,
):
    turn = 0
    for run in range(gl.load(row_ptr + mask_row), gl.load(row_ptr + mask_row + 1)):
        begin = gl.load(runs + run * 2) * MASK_N
        stop = gl.minimum((gl.load(runs + run * 2 + 1) >> 1) * MASK_N, kv_len)
        for n in range(begin, stop, BLOCK_N):
            slot = turn % STAGES
            phase = turn // STAGES & 1
{fetches}
            turn += 1


@gluon.jit
def attend(
    which, {q_descs}, {q_smem}, {kv_smem}, q_ready, k_ready, k_free, v_ready, v_free, row_ptr, runs, mask_row,
    out_ptr, o_sb, o_sh, o_sm, lse_ptr,{extras} b, h, row0, heads, q_len, kv_len, scale,{offset_argument}
    {places}
    BLOCK_N: gl.constexpr, MASK_N: gl.constexpr, STAGES: gl.constexpr, WHOLE_M: gl.constexpr, WHOLE_N: gl.constexpr,
    INSIDE: gl.constexpr, POSITIVE: gl.constexpr,
):
    LOG2E: gl.constexpr = 1.4426950408889634
    BLOCK_M: gl.constexpr = {rows}
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, {depth}])
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    COLUMN: gl.constexpr = gl.SliceLayout(0, SCORES)
    first = row0 + which * BLOCK_M
    bar = q_ready.index(which)
{loads}
    q_first = first + {offset}
    q_places = gl.arange(0, BLOCK_M, ROW).to(gl.int64)[:, None]
    q_rows = first + gl.arange(0, BLOCK_M, ROW)
    q_idx = q_rows[:, None] + {offset}
    m = gl.full([BLOCK_M], float("-inf"), gl.float32, ROW)
    l = gl.zeros([BLOCK_M], gl.float32, ROW)
{setup}
    mbarrier.wait(bar, 0)
    turn = 0
    for run in range(gl.load(row_ptr + mask_row), gl.load(row_ptr + mask_row + 1)):
        begin = gl.load(runs + run * 2) * MASK_N
        code = gl.load(runs + run * 2 + 1)
        stop = gl.minimum((code >> 1) * MASK_N, kv_len)
{loops}
    some = l > 0
    safe = gl.where(some, l, 1.0)
    lse = gl.where(some, ({highest}gl.log2(safe)) / LOG2E, float("-inf"))
{sink}    l_at = (b * heads + h).to(gl.int64) * q_len + q_rows
    gl.store(lse_ptr + l_at, lse, mask=q_rows < q_len)
{stores}

@gluon.jit(do_not_specialize=["section"])
def forward(
    {q_descs}, {kv_descs}, out_ptr, lse_ptr,{extras} row_ptr, runs, o_sb, o_sh, o_sm,
    heads, group, kv_batches, q_len, kv_len, section, mask_sb, mask_sh, scale,{offset_argument}
    {places}
    BLOCK_N: gl.constexpr, MASK_M: gl.constexpr, MASK_N: gl.constexpr, STAGES: gl.constexpr, WHOLE_M: gl.constexpr,
    WHOLE_N: gl.constexpr, INSIDE: gl.constexpr, POSITIVE: gl.constexpr, REGISTERS: gl.constexpr,
):
    row_blocks = gl.cdiv(q_len, {program_rows})
    row_block, bh = placed(row_blocks, section)
    row0 = (row_blocks - 1 - row_block) * {program_rows}
    b = bh // heads
    h = bh % heads
    hk = h // group
    bk = b % kv_batches
    mask_row = b * mask_sb + h * mask_sh + row0 // MASK_M
{allocate}
    q_ready = gl.allocate_shared_memory(gl.int64, [{groups}, 1], mbarrier.MBarrierLayout())
    k_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range({groups}):
        mbarrier.init(q_ready.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_ready.index(i), count=1)
        mbarrier.init(v_ready.index(i), count=1)
        mbarrier.init(k_free.index(i), count={groups})
        mbarrier.init(v_free.index(i), count={groups})
    fence_async_shared()
    gl.warp_specialize(
        [
{attends}
            (
                fetch,
                (
                    {kv_descs}, {kv_smem}, k_ready, k_free, v_ready, v_free, row_ptr, runs, mask_row, bk, hk, kv_len,
                    BLOCK_N, MASK_N, STAGES,
                ),
            ),
        ],
        [4, 1],
        [REGISTERS, 24],
    )
'''

SINK = """    sink = gl.load(sinks + h).to(gl.float32)
    share = gl.where(some, 1.0 / (1.0 + gl.exp2((sink - lse) * LOG2E)), 0.0)
    safe = safe / gl.where(some, share, 1.0)
    higher = gl.maximum(lse, sink)
    finite = gl.where(higher == float("-inf"), 0.0, higher)
    both = gl.exp2((lse - finite) * LOG2E) + gl.exp2((sink - finite) * LOG2E)
    lse = gl.where(higher == float("-inf"), higher, finite + gl.log2(both) / LOG2E)
"""


def source(kernel: Forward) -> str:
    """The file that holds the kernel."""
    names = {"b": "b", "h": "h", "q": "q_idx", "kv": "kv_idx", "score": "score"}
    score = None
    if kernel.score is not None:
        score = print_program(kernel.score, "x", names | {"score": "qk"}, box=BOX, scale="scale", words=FORWARD)
    first = (0, 0) if kernel.score is None else (len(kernel.score.captures), len(kernel.score.scalars))
    mask = None if kernel.mask is None else print_program(kernel.mask, "y", names, first, BOX)
    wide, values = chunks(kernel.width), chunks(kernel.value_width)
    q = [f"q_desc{n}" for n in range(len(wide))]
    q_smem = [f"q_smem{n}" for n in range(len(wide))]
    parts = [("k", n, c) for n, c in enumerate(wide)] + [("v", n, c) for n, c in enumerate(values)]
    kv_smem = ", ".join(f"{name}_smem{n}" for name, n, _ in parts)
    extras = (" max_ptr," if kernel.maxima else "") + (" sinks," if kernel.sinks else "")
    extras += " descales, d_k, d_b," if kernel.descales else ""
    listed = names_of(kernel.programs)
    places = ", ".join(listed) + "," if listed else ""
    arguments = (
        f"{', '.join(q)}, {', '.join(q_smem)}, {kv_smem}, q_ready, k_ready, k_free, v_ready, v_free, row_ptr, runs, "
        f"mask_row, out_ptr, o_sb, o_sh, o_sm, lse_ptr,{extras} b, h, row0, heads, q_len, kv_len, scale, "
        f"{'q_offsets' if kernel.offsets else 'q_offset'}, {places} BLOCK_N, MASK_N, STAGES, WHOLE_M, WHOLE_N, INSIDE, "
        "POSITIVE"
    )
    loads = [f"mbarrier.expect(bar, {' + '.join(f'{d}.block_type.nbytes' for d in q)})"]
    loads += [
        f"tma.async_copy_global_to_shared({d}, [b, h, first, {c.start}], bar, {s}.index(which))"
        for d, s, c in zip(q, q_smem, wide)
    ]
    setup = ["scale = scale * gl.load(descales + b * d_b + h)"] if kernel.descales else []
    for n, chunk in enumerate(values):
        setup += [
            f"OUT{n}: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {chunk.size}, 16])",
            f"acc{n} = gl.zeros([BLOCK_M, {chunk.size}], gl.float32, OUT{n})",
        ]
    for printed in (score, mask):
        if printed is not None:
            setup += printed.outside
    setup += [f"by = {_left(kernel, score)[1]}", "rate = by if POSITIVE else 1.0"]
    loop = "for n in range(begin, stop, BLOCK_N):"
    loops = [loop, *_indent(_tile(kernel, score, None), 1)]
    if mask is not None:
        partial = [loop, *_indent(_tile(kernel, score, mask), 1)]
        loops = ["if code & 1:", *_indent(loops, 1), "else:", *_indent(partial, 1)]
    stores = [f"share = {'gl.load(descales + d_k + b * d_b + h)' if kernel.descales else '1.0'} / safe"]
    for n, chunk in enumerate(values):
        inside = "" if chunk.whole else f" & (f{n} < {kernel.value_width})"
        stores += [
            f"o_rows{n} = (first + gl.arange(0, BLOCK_M, gl.SliceLayout(1, OUT{n})))[:, None]",
            f"f{n} = ({chunk.start} + gl.arange(0, {chunk.size}, gl.SliceLayout(0, OUT{n})))[None, :]",
            f"share{n} = gl.convert_layout(share, gl.SliceLayout(1, OUT{n}))[:, None]",
            f"o_at{n} = out_ptr + b.to(gl.int64) * o_sb + h.to(gl.int64) * o_sh + o_rows{n}.to(gl.int64) * o_sm + f{n}",
            f"gl.store(o_at{n}, (acc{n} * share{n}).to(out_ptr.dtype.element_ty), mask=(o_rows{n} < q_len){inside})",
        ]
    if kernel.maxima:
        stores.append("gl.store(max_ptr + l_at, m * rate / LOG2E, mask=q_rows < q_len)")
    allocate = [
        f"{s} = gl.allocate_shared_memory({d}.dtype, [{GROUPS}, 1, 1, {ROWS}, {c.size}], {d}.layout)"
        for d, s, c in zip(q, q_smem, wide)
    ] + [
        f"{n}_smem{i} = gl.allocate_shared_memory("
        f"{n}_desc{i}.dtype, [STAGES, 1, 1, BLOCK_N, {c.size}], {n}_desc{i}.layout)"
        for n, i, c in parts
    ]
    fetches: list[str] = []
    for name, count, of in (("k", len(wide), wide), ("v", len(values), values)):
        size = " + ".join(f"{name}_desc{n}.block_type.nbytes" for n in range(count))
        fetches += [
            f"mbarrier.wait({name}_free.index(slot), phase ^ 1)",
            f"mbarrier.expect({name}_ready.index(slot), {size})",
            *(
                f"tma.async_copy_global_to_shared({name}_desc{n}, [bk, hk, n, {c.start}], {name}_ready.index(slot), "
                f"{name}_smem{n}.index(slot))"
                for n, c in enumerate(of)
            ),
        ]
    return TEXT.format(
        q_descs=", ".join(q), q_smem=", ".join(q_smem), kv_smem=kv_smem, extras=extras, places=places, rows=ROWS,
        kv_descs=", ".join(f"{name}_desc{n}" for name, n, _ in parts), program_rows=GROUPS * ROWS, groups=GROUPS,
        depth=DEPTH[kernel.eight],
        offset_argument=" q_offsets," if kernel.offsets else " q_offset,",
        offset="gl.load(q_offsets + b)" if kernel.offsets else "q_offset",
        fetches="\n".join(_indent(fetches, 3)), loads="\n".join(_indent(loads, 1)),
        setup="\n".join(_indent(setup, 1)), loops="\n".join(_indent(loops, 2)), sink=SINK if kernel.sinks else "",
        highest="" if kernel.bounded else "m * rate + ",
        stores="\n".join(_indent(stores, 1)) + "\n", allocate="\n".join(_indent(allocate, 1)),
        attends="\n".join(f"            (attend, ({n}, {arguments}))," for n in range(GROUPS)),
    )  # fmt: skip


def _left(kernel: Forward, score: Printed | None) -> tuple[str, str]:
    """The scores of a tile but for a number, and that number times what makes exponentials ones of 2."""
    if kernel.score is None or score is None:
        return "qk", "scale * LOG2E"
    zeros = "gl.zeros([BLOCK_M, BLOCK_N], gl.float32, SCORES)"
    product = score.products.get(kernel.score.output)
    if product is None:
        return scores_of(kernel.score, score.outputs[0], zeros), "LOG2E"
    return product.base, f"{product.factor} * LOG2E"


def _tile(kernel: Forward, score: Printed | None, mask: Printed | None) -> list[str]:
    """One block of keys, ``n`` the first, with a mask if it is partial."""
    values = len(chunks(kernel.value_width))
    lines = ["slot = turn % STAGES", "phase = turn // STAGES & 1", "mbarrier.wait(k_ready.index(slot), phase)"]
    before = "gl.zeros([BLOCK_M, BLOCK_N], gl.float32, SCORES)"
    for n, chunk in enumerate(chunks(kernel.width)):
        keys = f"k_smem{n}.index(slot).reshape([BLOCK_N, {chunk.size}]).permute((1, 0))"
        queries = f"q_smem{n}.index(which).reshape([BLOCK_M, {chunk.size}])"
        lines.append(f"qk = warpgroup_mma({queries}, {keys}, {before}, use_acc={n > 0}, is_async=True)")
        before = "qk"
    lines += [
        "kv_idx = (n + gl.arange(0, BLOCK_N, COLUMN))[None, :]",
        "kv_places = gl.arange(0, BLOCK_N, COLUMN).to(gl.int64)[None, :]",
        *(line for found in (score, mask) if found is not None for line in found.lines["moving"]),
        "qk = warpgroup_mma_wait(0, deps=(qk,))",
        "mbarrier.arrive(k_free.index(slot))",
    ]
    if mask is not None:
        lines += [*mask.lines["inner"], f"seen = {mask.outputs[0]}"]
        lines += ["if not WHOLE_N:", "    seen = seen & (kv_idx < kv_len)"]
    if score is not None:
        paired = any(node.op == "tanh" for node in kernel.programs[0].nodes)
        if mask is not None and paired:  # what is hidden is no one's neighbour
            lines.append("qk = gl.where(seen, qk, 0.0)")
        lines += score.lines["inner"]
    lines += [f"s = {_left(kernel, score)[0]}", "if not POSITIVE:", "    s = s * by"]
    hidden = 's = gl.where({}, s, float("-inf"))'
    if mask is not None:
        lines.append(hidden.format("seen"))
    else:
        lines += ["if not WHOLE_N:", "    if n + BLOCK_N > kv_len:", f"        {hidden.format('kv_idx < kv_len')}"]
    lines += _weights(kernel, masked=mask is not None or score is not None)
    lines += ["weights = p.to(v_smem0.dtype)", "mbarrier.wait(v_ready.index(slot), phase)"]
    for c, chunk in enumerate(chunks(kernel.value_width)):
        operand = f"gl.convert_layout(weights, gl.DotOperandLayout(0, OUT{c}, 2))"
        rows = f"v_smem{c}.index(slot).reshape([BLOCK_N, {chunk.size}])"
        lines.append(f"acc{c} = warpgroup_mma({operand}, {rows}, acc{c}, is_async=True)")
    names = ", ".join(f"acc{c}" for c in range(values))
    return [
        *lines,
        f"{names} = warpgroup_mma_wait(0, deps=({names},))",
        "mbarrier.arrive(v_free.index(slot))",
        "turn += 1",
    ]


def _weights(kernel: Forward, *, masked: bool) -> list[str]:
    """From scores ``s`` to their exponentials ``p``; ``masked``: a row may have seen nothing yet."""
    if kernel.bounded:
        largest = ["m = gl.maximum(m, gl.max(s, 1))"] if kernel.maxima else []
        return [*largest, "p = gl.exp2(s * rate)", "l += gl.sum(p, 1)"]
    finite = "m_safe" if masked else "m_new"
    safe = ['m_safe = gl.where(m_new == float("-inf"), 0.0, m_new)'] if masked else []
    return [
        "m_new = gl.maximum(m, gl.max(s, 1))",
        *safe,
        f"highest = {finite} * rate",
        "p = gl.exp2(s * rate - highest[:, None])",
        "alpha = gl.exp2(m * rate - highest)",
        "l = l * alpha + gl.sum(p, 1)",
        "m = m_new",
        *(
            f"acc{c} = acc{c} * gl.convert_layout(alpha, gl.SliceLayout(1, OUT{c}))[:, None]"
            for c in range(len(chunks(kernel.value_width)))
        ),
    ]


def _indent(lines: Iterable[str], levels: int) -> list[str]:
    return ["    " * levels + line for line in lines]
