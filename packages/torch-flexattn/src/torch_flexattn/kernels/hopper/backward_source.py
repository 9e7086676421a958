"""The backward kernel of Hopper for a pair of programs, as source in Gluon.

One program of the grid owns 128 keys of one head of K and V. One warp fetches tiles of queries and of output gradients
by the copy engine; two groups of four warps own 64 keys each, recompute the scores transposed (keys by queries), and
sum ``dv`` and ``dk`` in registers. The gradient of the scores goes through shared memory, where each group reads that
of all 128 keys for its part of ``dq``, which is added to memory.

Five products a tile, as in FlashAttention-3 (Shah et al., 2024).
"""

from __future__ import annotations

from ..triton.chunks import chunks
from ..triton.places import names as names_of
from ..triton.printer import Printed
from ..triton.scatters import scatters
from .backward_tile import (
    GROUPS,
    HEADER,
    HERE,
    KEYS,
    RINGS,
    Backward,
    Part,
    bytes_of,
    copy_of,
    fetch_of,
    indent,
    numbers,
    once,
    operands_of,
    printed,
    read_rows,
    slot_of,
    turned,
    weigh,
)

COLUMNS = GROUPS * KEYS
"""Keys of a program."""
DQ_ROWS = 64
"""Queries of a tile that is added to ``dq``."""

MULTIPLY = """
@gluon.jit
def multiply{group}(
    {smems},{dq_args} ds_smem, kv_ready, q_ready, q_free, do_ready, do_free, ds_ready, lse_ptr, delta_ptr,
    dk_ptr, dv_ptr, col_ptr, runs, mask_sb, mask_sh, b, hk, col0, heads, group, q_len, kv_len, scale, {offset_argument}
    {places}
    MASK_M: gl.constexpr, MASK_N: gl.constexpr, Q_STAGES: gl.constexpr, DO_STAGES: gl.constexpr,
    WHOLE_M: gl.constexpr, WHOLE_N: gl.constexpr, INSIDE: gl.constexpr,
):
    LOG2E: gl.constexpr = 1.4426950408889634
    BLOCK_M: gl.constexpr = {rows}
    BLOCK_N: gl.constexpr = {keys}
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    KEY: gl.constexpr = gl.SliceLayout(1, SCORES)
    QUERY: gl.constexpr = gl.SliceLayout(0, SCORES)
    TYPE: gl.constexpr = q_smem0.dtype
    kv_rows = col0 + {first_key} + gl.arange(0, BLOCK_N, KEY)
    kv_idx = kv_rows[:, None]
    kv_first = col0 + {first_key}
    kv_places = gl.arange(0, BLOCK_N, KEY).to(gl.int64)[:, None]
{setup}
    mbarrier.wait(kv_ready, 0)
    turn = 0
    for member in range(group):
        h = hk * group + member
        bh = b * heads + h
        l_base = bh.to(gl.int64) * q_len
        mask_col = b * mask_sb + h * mask_sh + col0 // MASK_N
{once}
        for run in range(gl.load(col_ptr + mask_col), gl.load(col_ptr + mask_col + 1)):
            begin = gl.load(runs + run * 2) * MASK_M
            code = gl.load(runs + run * 2 + 1)
            stop = gl.minimum((code >> 1) * MASK_M, q_len)
            for n in range(begin, stop, BLOCK_M):
{tile}
                turn += 1
    tma.store_wait(0)
{stores}

"""

KERNEL = """
@gluon.jit(do_not_specialize=["section"])
def backward(
    {descs}, {dq_descs}, lse_ptr, delta_ptr, dk_ptr, dv_ptr, col_ptr, runs,
    heads, group, kv_batches, q_len, kv_len, section, mask_sb, mask_sh, scale, {offset_argument}
    {places}
    MASK_M: gl.constexpr, MASK_N: gl.constexpr, Q_STAGES: gl.constexpr, DO_STAGES: gl.constexpr,
    WHOLE_M: gl.constexpr, WHOLE_N: gl.constexpr, INSIDE: gl.constexpr, REGISTERS: gl.constexpr,
):
    column, plane = placed(gl.cdiv(kv_len, {columns}), section)
    col0 = column * {columns}
    kv_heads = heads // group
    b = plane // kv_heads
    hk = plane % kv_heads
    bk = b % kv_batches
{allocate}
    SHARED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([{columns}, {rows}], q_desc0.dtype)
    ds_smem = gl.allocate_shared_memory(q_desc0.dtype, [2, {columns}, {rows}], SHARED)
    kv_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    ds_ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    q_ready = gl.allocate_shared_memory(gl.int64, [Q_STAGES, 1], mbarrier.MBarrierLayout())
    q_free = gl.allocate_shared_memory(gl.int64, [Q_STAGES, 1], mbarrier.MBarrierLayout())
    do_ready = gl.allocate_shared_memory(gl.int64, [DO_STAGES, 1], mbarrier.MBarrierLayout())
    do_free = gl.allocate_shared_memory(gl.int64, [DO_STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(kv_ready, count=1)
    for i in gl.static_range(2):
        mbarrier.init(ds_ready.index(i), count={groups})
    for i in gl.static_range(Q_STAGES):
        mbarrier.init(q_ready.index(i), count=1)
        mbarrier.init(q_free.index(i), count={groups})
    for i in gl.static_range(DO_STAGES):
        mbarrier.init(do_ready.index(i), count=1)
        mbarrier.init(do_free.index(i), count={groups})
    fence_async_shared()
    gl.warp_specialize(
        [
{multiplies}
            (
                fetch,
                (
                    {descs}, {smems}, kv_ready, q_ready, q_free, do_ready, do_free, col_ptr, runs, mask_sb, mask_sh, b,
                    bk, hk, col0, group, q_len, MASK_M, MASK_N, Q_STAGES, DO_STAGES,
                ),
            ),
        ],
        [4, 1],
        [REGISTERS, 24],
    )
"""


def parts_of(kernel: Backward) -> list[list[Part]]:
    """The parts of each group: halves of the queries, or of the features."""
    wide = chunks(kernel.width)
    if kernel.rows == GROUPS * 64:
        return [[Part(n, 0, c.size, 64 * g) for n, c in enumerate(wide)] for g in range(GROUPS)]
    if len(wide) == 1 and wide[0].size == 128:
        return [[Part(0, 64 * g, 64, 0)] for g in range(GROUPS)]
    return [[Part(n, 0, c.size, 0) for n, c in enumerate(wide) if n % GROUPS == g] for g in range(GROUPS)]


def source(kernel: Backward) -> str:
    """The file that holds the kernel."""
    score, mask = printed(kernel)
    operands = operands_of(kernel)
    descs = ", ".join(f"{name}_desc{n}" for name, n, _ in operands)
    smems = ", ".join(f"{name}_smem{n}" for name, n, _ in operands)
    listed = names_of(kernel.programs, kernel.score)
    places = ", ".join(listed) + "," if listed else ""
    offset_argument = "q_offsets," if kernel.offsets else "q_offset,"
    kv = [o for o in operands if o[0] in ("k", "v")]
    kv_fetches = [f"mbarrier.expect(kv_ready, {bytes_of(kv)})"]
    kv_fetches += [copy_of(o, "bk, hk, col0", "kv_ready", f"{o[0]}_smem{o[1]}.index(0)") for o in kv]
    fetches: list[str] = []
    for name in ("q", "do"):
        fetches += fetch_of(name, operands)
    text = HEADER.format(
        descs=descs, smems=smems, rows=kernel.rows, kv_fetches="\n".join(indent(kv_fetches, 1)),
        fetches="\n".join(indent(fetches, 4)),
    )  # fmt: skip
    arguments = (
        "ds_smem, kv_ready, q_ready, q_free, do_ready, do_free, ds_ready, lse_ptr, delta_ptr, "
        f"dk_ptr, dv_ptr, col_ptr, runs, mask_sb, mask_sh, b, hk, col0, heads, group, q_len, kv_len, scale, "
        f"{offset_argument} {places} MASK_M, MASK_N, Q_STAGES, DO_STAGES, WHOLE_M, WHOLE_N, INSIDE"
    )
    parts = parts_of(kernel)
    for group in range(GROUPS):
        text += MULTIPLY.format(
            group=group, dq_args=_dq_arguments(parts[group], group), smems=smems, offset_argument=offset_argument,
            places=places, rows=kernel.rows, keys=KEYS, first_key=group * KEYS,
            setup="\n".join(indent(_setup(kernel, parts[group]), 1)), once="\n".join(indent(once(score, mask), 2)),
            tile="\n".join(indent(_tile(kernel, score, mask, group, parts[group]), 4)),
            stores="\n".join(indent(_stores(kernel), 1)),
        )  # fmt: skip
    rows_of = {"q": kernel.rows, "do": kernel.rows, "k": COLUMNS, "v": COLUMNS}
    allocate = []
    for name, n, c in operands:
        shape = f"{RINGS.get(name, '1, ')}1, 1, {rows_of[name]}, {c.size}"
        desc = f"{name}_desc{n}"
        allocate.append(f"{name}_smem{n} = gl.allocate_shared_memory({desc}.dtype, [{shape}], {desc}.layout)")
    sizes = sizes_of(parts)
    for group, own in enumerate(parts):
        for n, part in enumerate(own):
            desc = f"dq_desc{sizes.index(part.size)}"
            name = f"dq_smem{group}_{n}"
            allocate.append(f"{name} = gl.allocate_shared_memory(gl.float32, [1, 1, 64, {part.size}], {desc}.layout)")
    return text + KERNEL.format(
        descs=descs, smems=smems, offset_argument=offset_argument, places=places, columns=COLUMNS, rows=kernel.rows,
        groups=GROUPS, allocate="\n".join(indent(allocate, 1)),
        dq_descs=", ".join(f"dq_desc{n}" for n in range(len(sizes))),
        multiplies="\n".join(
            f"            (multiply{n}, ({smems},{_dq_arguments(own, n, sizes)} {arguments})),"
            for n, own in enumerate(parts)
        ),
    )  # fmt: skip


def sizes_of(parts: list[list[Part]]) -> list[int]:
    """Features of the tiles of ``dq``: one descriptor each."""
    return sorted({part.size for own in parts for part in own}, reverse=True)


def dq_sizes(kernel: Backward) -> list[int]:
    """Features of the tiles that are added to ``dq``: one descriptor each."""
    return sizes_of(parts_of(kernel))


def _dq_arguments(parts: list[Part], group: int, sizes: list[int] | None = None) -> str:
    """What a group adds to ``dq`` by: a descriptor and a tile in shared memory for each part; with sizes, as passed."""
    if sizes is None:
        return "".join(f" dq_desc_{n}, dq_smem_{n}," for n in range(len(parts)))
    return "".join(f" dq_desc{sizes.index(p.size)}, dq_smem{group}_{n}," for n, p in enumerate(parts))


def _setup(kernel: Backward, parts: list[Part]) -> list[str]:
    lines = []
    for name, of in (("k", chunks(kernel.width)), ("v", chunks(kernel.value_width))):
        for n, chunk in enumerate(of):
            layout = f"D{name.upper()}{n}"
            lines += [
                f"{layout}: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {chunk.size}, 16])",
                f"d{name}{n} = gl.zeros([BLOCK_N, {chunk.size}], gl.float32, {layout})",
            ]
    for n, part in enumerate(parts):
        lines.append(f"DQ{n}: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {part.size}, 16])")
    return lines


def _product(kernel: Backward, group: int, target: str) -> list[str]:
    """Start the products of keys and queries (``qk``), or of values and output gradients (``dp``)."""
    left, right, of = ("k", "q", chunks(kernel.width)) if target == "qk" else ("v", "do", chunks(kernel.value_width))
    slot, phase = slot_of(right)
    lines = [f"mbarrier.wait({right}_ready.index({slot}), {phase})"]
    before = "gl.zeros([BLOCK_N, BLOCK_M], gl.float32, SCORES)"
    for n, chunk in enumerate(of):
        columns = f"{right}_smem{n}.index({slot}).reshape([BLOCK_M, {chunk.size}]).permute((1, 0))"
        rows = f"{left}_smem{n}.index(here).reshape([{COLUMNS}, {chunk.size}]).slice({group * KEYS}, {KEYS}, 0)"
        lines.append(f"{target} = warpgroup_mma({rows}, {columns}, {before}, use_acc={n > 0}, is_async=True)")
        before = target
    return lines


def _tile(kernel: Backward, score: Printed | None, mask: Printed | None, group: int, parts: list[Part]) -> list[str]:
    """One block of queries: ``n`` is its first."""
    wide, values = chunks(kernel.width), chunks(kernel.value_width)
    early = score is None  # a modification needs the registers
    lines = [HERE, *numbers(kernel), *_product(kernel, group, "qk")]
    if early:
        lines += _product(kernel, group, "dp")
    lines += [
        *read_rows("lse", "lse_ptr", 'float("-inf")'),
        'lse = gl.where(lse == float("-inf"), 0.0, lse * LOG2E)',
        *([] if score is None else score.lines["moving"]),
        f"qk = warpgroup_mma_wait({len(values) if early else 0}, deps=(qk,))",
        *weigh(kernel, score, mask),
    ]
    if not early:
        lines += _product(kernel, group, "dp")
    for n, chunk in enumerate(values):
        rows = f"do_smem{n}.index(turn % DO_STAGES).reshape([BLOCK_M, {chunk.size}])"
        operand = f"gl.convert_layout(weights, gl.DotOperandLayout(0, DV{n}, 2))"
        lines.append(f"dv{n} = warpgroup_mma({operand}, {rows}, dv{n}, is_async=True)")
    lines += [
        *read_rows("dd", "delta_ptr", "0.0"),
        f"dp = warpgroup_mma_wait({len(values)}, deps=(dp,))",
        "rest = dp - dd[None, :]",
    ]
    if score is None:
        lines.append("ds = p * rest")
    else:
        assert kernel.score is not None
        lines += ["ds = slope * rest", *scatters(kernel.score, score, turned(kernel.rows))]
    lines += [
        "slopes = ds.to(TYPE)",
        "shared = ds_smem.index(turn & 1)",
        f"shared.slice({group * KEYS}, {KEYS}, 0).store(slopes)",
        "fence_async_shared()",
    ]
    for n, chunk in enumerate(wide):
        rows = f"q_smem{n}.index(turn % Q_STAGES).reshape([BLOCK_M, {chunk.size}])"
        operand = f"gl.convert_layout(slopes, gl.DotOperandLayout(0, DK{n}, 2))"
        lines.append(f"dk{n} = warpgroup_mma({operand}, {rows}, dk{n}, is_async=True)")
    lines += [
        "wait_for_group()",
        "mbarrier.arrive(ds_ready.index(turn & 1))",
        "mbarrier.wait(ds_ready.index(turn & 1), turn >> 1 & 1)",
    ]
    for n, part in enumerate(parts):
        keys = f"k_smem{part.chunk}.index(here).reshape([{COLUMNS}, {wide[part.chunk].size}])"
        if part.size < wide[part.chunk].size:
            keys += f".slice({part.start}, {part.size}, 1)"
        rows = "shared" if kernel.rows == 64 else f"shared.slice({part.row}, 64, 1)"
        zeros = f"gl.zeros([64, {part.size}], gl.float32, DQ{n})"
        lines.append(f"dq{n} = warpgroup_mma({rows}.permute((1, 0)), {keys}, {zeros}, use_acc=False, is_async=True)")
    sums = ", ".join([f"dv{n}" for n in range(len(values))] + [f"dk{n}" for n in range(len(wide))])
    lines += [
        f"{sums} = warpgroup_mma_wait({len(parts)}, deps=({sums}))",
        "mbarrier.arrive(q_free.index(turn % Q_STAGES))",
        "mbarrier.arrive(do_free.index(turn % DO_STAGES))",
    ]
    if parts:
        names = ", ".join(f"dq{n}" for n in range(len(parts)))
        lines.append(f"{names} = warpgroup_mma_wait(0, deps=({names},))")
    if parts:
        lines.append("tma.store_wait(0)")
    for n, part in enumerate(parts):
        lines.append(f"dq_smem_{n}.reshape([64, {part.size}]).store(dq{n})")
    if parts:
        lines.append("fence_async_shared()")
    for n, part in enumerate(parts):
        start = wide[part.chunk].start + part.start
        lines.append(f"add_shared_to_global(dq_desc_{n}, [b, h, n + {part.row}, {start}], dq_smem_{n})")
    return lines


def _stores(kernel: Backward) -> list[str]:
    lines = ["kv_base = (b * (heads // group) + hk).to(gl.int64) * kv_len"]
    for name, of, width, factor in (
        ("k", chunks(kernel.width), kernel.width, " * scale"),
        ("v", chunks(kernel.value_width), kernel.value_width, ""),
    ):
        for n, chunk in enumerate(of):
            layout = f"D{name.upper()}{n}"
            edge = "" if chunk.whole else f" & (cols < {width})"
            lines += [
                f"rows = gl.convert_layout(kv_rows, gl.SliceLayout(1, {layout}))[:, None]",
                f"cols = ({chunk.start} + gl.arange(0, {chunk.size}, gl.SliceLayout(0, {layout})))[None, :]",
                f"at = d{name}_ptr + (kv_base + rows) * {width} + cols",
                f"gl.store(at, (d{name}{n}{factor}).to(d{name}_ptr.dtype.element_ty), mask=(rows < kv_len){edge})",
            ]
    return lines
