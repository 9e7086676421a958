"""The backward kernel of Hopper for wide heads, as source in Gluon: 129 to 256 features.

The sums of 128 keys do not fit into registers, so a program owns 64 keys. Two groups of warps share them: each computes
the scores of half the queries of a tile; weights and gradients of scores meet in shared memory; then each group
multiplies all of them with its part of the features. A third group makes the gradients of queries, while the two go on
to the next tile. See ``backward_source`` for the rest, which is the same.
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

ROWS = 64
"""Queries of a tile."""
DQ_ROWS = ROWS
"""Of a tile that is added to ``dq``."""
SHARE = ROWS // GROUPS
"""Of a group."""
PIECE = 64
"""Features that are added to ``dq`` at once."""
STAGED = 2
"""Places in shared memory for them."""
REGISTERS = 72
"""Of a thread that makes gradients of queries."""

MULTIPLY = """
@gluon.jit
def multiply{group}(
    {smems}, p_smem, ds_smem, kv_ready, q_ready, q_free, do_ready, do_free, ds_ready, ds_free, lse_ptr, delta_ptr,
    dk_ptr, dv_ptr, col_ptr, runs, mask_sb, mask_sh, b, hk, col0, heads, group, q_len, kv_len, scale, {offset_argument}
    {places}
    MASK_M: gl.constexpr, MASK_N: gl.constexpr, Q_STAGES: gl.constexpr, DO_STAGES: gl.constexpr,
    WHOLE_M: gl.constexpr, WHOLE_N: gl.constexpr, INSIDE: gl.constexpr,
):
    LOG2E: gl.constexpr = 1.4426950408889634
    TILE_M: gl.constexpr = {rows}
    BLOCK_M: gl.constexpr = {share}
    BLOCK_N: gl.constexpr = {keys}
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    KEY: gl.constexpr = gl.SliceLayout(1, SCORES)
    QUERY: gl.constexpr = gl.SliceLayout(0, SCORES)
    TYPE: gl.constexpr = q_smem0.dtype
    kv_rows = col0 + gl.arange(0, BLOCK_N, KEY)
    kv_idx = kv_rows[:, None]
    kv_first = col0
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
            for n in range(begin, stop, TILE_M):
{tile}
                turn += 1
{stores}

"""

QUERIES = """
@gluon.jit
def sum_queries(
    {keys_smems}, dq_desc, dq_smem, ds_smem, kv_ready, ds_ready, ds_free, col_ptr, runs, mask_sb, mask_sh, b, hk, col0,
    group, q_len, MASK_M: gl.constexpr, MASK_N: gl.constexpr,
):
    TILE_M: gl.constexpr = {rows}
    PRODUCT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {piece}, 16])
    mbarrier.wait(kv_ready, 0)
    turn = 0
    for member in range(group):
        h = hk * group + member
        mask_col = b * mask_sb + h * mask_sh + col0 // MASK_N
        for run in range(gl.load(col_ptr + mask_col), gl.load(col_ptr + mask_col + 1)):
            begin = gl.load(runs + run * 2) * MASK_M
            stop = gl.minimum((gl.load(runs + run * 2 + 1) >> 1) * MASK_M, q_len)
            for n in range(begin, stop, TILE_M):
                mbarrier.wait(ds_ready.index(turn & 1), turn >> 1 & 1)
{pieces}
                turn += 1
    tma.store_wait(0)

"""

KERNEL = """
@gluon.jit(do_not_specialize=["section"])
def backward(
    {descs}, dq_desc, lse_ptr, delta_ptr, dk_ptr, dv_ptr, col_ptr, runs,
    heads, group, kv_batches, q_len, kv_len, section, mask_sb, mask_sh, scale, {offset_argument}
    {places}
    MASK_M: gl.constexpr, MASK_N: gl.constexpr, Q_STAGES: gl.constexpr, DO_STAGES: gl.constexpr,
    WHOLE_M: gl.constexpr, WHOLE_N: gl.constexpr, INSIDE: gl.constexpr, REGISTERS: gl.constexpr,
):
    column, plane = placed(gl.cdiv(kv_len, {keys}), section)
    col0 = column * {keys}
    kv_heads = heads // group
    b = plane // kv_heads
    hk = plane % kv_heads
    bk = b % kv_batches
{allocate}
    SHARED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([{keys}, {rows}], q_desc0.dtype)
    p_smem = gl.allocate_shared_memory(q_desc0.dtype, [2, {keys}, {rows}], SHARED)
    ds_smem = gl.allocate_shared_memory(q_desc0.dtype, [2, {keys}, {rows}], SHARED)
    kv_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    dq_smem = gl.allocate_shared_memory(gl.float32, [{staged}, 1, 1, {rows}, {piece}], dq_desc.layout)
    ds_ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    ds_free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    q_ready = gl.allocate_shared_memory(gl.int64, [Q_STAGES, 1], mbarrier.MBarrierLayout())
    q_free = gl.allocate_shared_memory(gl.int64, [Q_STAGES, 1], mbarrier.MBarrierLayout())
    do_ready = gl.allocate_shared_memory(gl.int64, [DO_STAGES, 1], mbarrier.MBarrierLayout())
    do_free = gl.allocate_shared_memory(gl.int64, [DO_STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(kv_ready, count=1)
    for i in gl.static_range(2):
        mbarrier.init(ds_ready.index(i), count={groups})
        mbarrier.init(ds_free.index(i), count=1)
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
                sum_queries,
                (
                    {keys_smems}, dq_desc, dq_smem, ds_smem, kv_ready, ds_ready, ds_free, col_ptr, runs, mask_sb,
                    mask_sh, b, hk, col0, group, q_len, MASK_M, MASK_N,
                ),
            ),
            (
                fetch,
                (
                    {descs}, {smems}, kv_ready, q_ready, q_free, do_ready, do_free, col_ptr, runs, mask_sb, mask_sh, b,
                    bk, hk, col0, group, q_len, MASK_M, MASK_N, Q_STAGES, DO_STAGES,
                ),
            ),
        ],
        [4, 4, 1],
        [REGISTERS, {registers}, 24],
    )
"""


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
        descs=descs, smems=smems, rows=ROWS, kv_fetches="\n".join(indent(kv_fetches, 1)),
        fetches="\n".join(indent(fetches, 4)),
    )  # fmt: skip
    arguments = (
        "p_smem, ds_smem, kv_ready, q_ready, q_free, do_ready, do_free, ds_ready, ds_free, lse_ptr, delta_ptr, dk_ptr, "
        "dv_ptr, col_ptr, runs, mask_sb, mask_sh, b, hk, col0, heads, group, q_len, kv_len, scale, "
        f"{offset_argument} {places} MASK_M, MASK_N, Q_STAGES, DO_STAGES, WHOLE_M, WHOLE_N, INSIDE"
    )
    for group in range(GROUPS):
        text += MULTIPLY.format(
            group=group, smems=smems, offset_argument=offset_argument, places=places,
            rows=ROWS, share=SHARE, keys=KEYS, setup="\n".join(indent(_setup(kernel, group), 1)),
            once="\n".join(indent(once(score, mask), 2)), tile="\n".join(indent(_tile(kernel, score, mask, group), 4)),
            stores="\n".join(indent(_stores(kernel, group), 1)),
        )  # fmt: skip
    keys_smems = ", ".join(f"k_smem{n}" for n, _ in enumerate(chunks(kernel.width)))
    text += QUERIES.format(
        keys_smems=keys_smems, rows=ROWS, piece=PIECE, pieces="\n".join(indent(_of_queries(kernel), 4))
    )
    allocate = []
    for name, n, c in operands:
        shape = f"{RINGS.get(name, '1, ')}1, 1, {ROWS if name in RINGS else KEYS}, {c.size}"
        desc = f"{name}_desc{n}"
        allocate.append(f"{name}_smem{n} = gl.allocate_shared_memory({desc}.dtype, [{shape}], {desc}.layout)")
    return text + KERNEL.format(
        descs=descs, smems=smems, offset_argument=offset_argument, places=places, keys=KEYS, rows=ROWS, groups=GROUPS,
        staged=STAGED, piece=PIECE, registers=REGISTERS, keys_smems=keys_smems,
        allocate="\n".join(indent(allocate, 1)),
        multiplies="\n".join(
            f"            (multiply{n}, ({smems}, {arguments}))," for n in range(GROUPS)
        ),
    )  # fmt: skip


def dq_sizes(kernel: Backward) -> list[int]:
    """Features of the tiles that are added to ``dq``: one descriptor."""
    return [PIECE]


def parts_of(width: int, group: int) -> list[Part]:
    """The features that a group multiplies: half of one chunk, or every other chunk."""
    wide = chunks(width)
    if len(wide) == 1 and wide[0].size >= GROUPS * PIECE:
        half = wide[0].size // GROUPS
        return [Part(0, group * half, half)]
    return [Part(n, 0, c.size) for n, c in enumerate(wide) if n % GROUPS == group]


def _sums(kernel: Backward, group: int) -> list[tuple[str, int, Part]]:
    """Names of the sums of a group, with their parts: of values the other group has the larger ones."""
    of_k = [(f"dk{n}", 0, part) for n, part in enumerate(parts_of(kernel.width, group))]
    return of_k + [(f"dv{n}", 1, part) for n, part in enumerate(parts_of(kernel.value_width, GROUPS - 1 - group))]


def _setup(kernel: Backward, group: int) -> list[str]:
    lines = []
    for name, _, part in _sums(kernel, group):
        layout = name.upper()
        lines += [
            f"{layout}: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {part.size}, 16])",
            f"{name} = gl.zeros([BLOCK_N, {part.size}], gl.float32, {layout})",
        ]
    return lines


def _product(kernel: Backward, group: int, target: str) -> list[str]:
    left, right, of = ("k", "q", chunks(kernel.width)) if target == "qk" else ("v", "do", chunks(kernel.value_width))
    slot, phase = slot_of(right)
    lines = [f"mbarrier.wait({right}_ready.index({slot}), {phase})"]
    before = "gl.zeros([BLOCK_N, BLOCK_M], gl.float32, SCORES)"
    for n, chunk in enumerate(of):
        own = f"{right}_smem{n}.index({slot} + here).reshape([TILE_M, {chunk.size}]).slice({group * SHARE}, {SHARE}, 0)"
        rows = f"{left}_smem{n}.index(here).reshape([{KEYS}, {chunk.size}])"
        lines.append(
            f"{target} = warpgroup_mma({rows}, {own}.permute((1, 0)), {before}, use_acc={n > 0}, is_async=True)"
        )
        before = target
    return lines


def _tile(kernel: Backward, score: Printed | None, mask: Printed | None, group: int) -> list[str]:
    """One block of queries: ``n`` is its first."""
    wide, values = chunks(kernel.width), chunks(kernel.value_width)
    first = f"(n + {group * SHARE})"
    own = f".slice({group * SHARE}, {SHARE}, 1)"
    lines = [
        HERE,
        *numbers(kernel, first),
        *_product(kernel, group, "qk"),
        *_product(kernel, group, "dp"),
        *read_rows("lse", "lse_ptr", 'float("-inf")', first),
        'lse = gl.where(lse == float("-inf"), 0.0, lse * LOG2E)',
        *([] if score is None else score.lines["moving"]),
        f"qk = warpgroup_mma_wait({len(values)}, deps=(qk,))",
        *weigh(kernel, score, mask),
        f"p_smem.index(turn & 1){own}.store(weights)",
        *read_rows("dd", "delta_ptr", "0.0", first),
        "dp = warpgroup_mma_wait(0, deps=(dp,))",
        "rest = dp - dd[None, :]",
    ]
    if score is None:
        lines.append("ds = p * rest")
    else:
        assert kernel.score is not None
        lines += ["ds = slope * rest", *scatters(kernel.score, score, turned(SHARE))]
    lines += [
        "mbarrier.wait(ds_free.index(turn & 1), turn >> 1 & 1 ^ 1)",
        f"ds_smem.index(turn & 1){own}.store(ds.to(TYPE))",
        "fence_async_shared()",
        "wait_for_group()",
        "mbarrier.arrive(ds_ready.index(turn & 1))",
        "mbarrier.wait(ds_ready.index(turn & 1), turn >> 1 & 1)",
    ]
    sums = _sums(kernel, group)
    of_k = [(name, part) for name, of_values, part in sums if not of_values]
    of_v = [(name, part) for name, of_values, part in sums if of_values]
    for right, left, of, tiles in (("do", "p_smem", of_v, values), ("q", "ds_smem", of_k, wide)):
        for name, part in of:
            size = tiles[part.chunk].size
            rows = f"{right}_smem{part.chunk}.index({slot_of(right)[0]} + here).reshape([TILE_M, {size}])"
            rows += _columns(part, size)
            lines.append(f"{name} = warpgroup_mma({left}.index(turn & 1), {rows}, {name}, is_async=True)")
    for names, later, free in (
        ([name for name, _ in of_v], len(of_k), "do"),
        ([name for name, _ in of_k], 0, "q"),
    ):
        if names:
            lines.append(f"{', '.join(names)} = warpgroup_mma_wait({later}, deps=({', '.join(names)},))")
        lines.append(f"mbarrier.arrive({free}_free.index(turn % {free.upper()}_STAGES))")
    return lines


def _of_queries(kernel: Backward) -> list[str]:
    """Gradients of the queries of a tile, piece by piece: while one is multiplied, those before are being added."""
    pieces = [
        (n, start, min(PIECE, chunk.size), chunk)
        for n, chunk in enumerate(chunks(kernel.width))
        for start in range(0, chunk.size, PIECE)
    ]

    def product(number: int) -> str:
        n, start, size, chunk = pieces[number]
        keys = f"k_smem{n}.index(here).reshape([{KEYS}, {chunk.size}]){_columns(Part(n, start, size), chunk.size)}"
        zeros = f"gl.zeros([TILE_M, {size}], gl.float32, {layout(size)})"
        rows = "ds_smem.index(turn & 1).permute((1, 0))"
        return f"dq{number} = warpgroup_mma({rows}, {keys}, {zeros}, use_acc=False, is_async=True)"

    def layout(size: int) -> str:
        return "PRODUCT" if size == PIECE else f"gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {size}, 16])"

    lines = [HERE]
    for number, (_, start, size, chunk) in enumerate(pieces):
        lines += [product(number), f"dq{number} = warpgroup_mma_wait(0, deps=(dq{number},))"]
        if number + 1 == len(pieces):
            lines.append("mbarrier.arrive(ds_free.index(turn & 1))")
        place = f"dq_smem.index((turn * {len(pieces)} + {number}) % {STAGED})"
        lines += [
            f"tma.store_wait({STAGED - 1})",
            f"{place}.reshape([TILE_M, {PIECE}]){'' if size == PIECE else f'.slice(0, {size}, 1)'}.store(dq{number})",
            "fence_async_shared()",
            f"add_shared_to_global(dq_desc, [b, h, n, {chunk.start + start}], {place})",
        ]
    return lines


def _columns(part: Part, size: int) -> str:
    return "" if part.size == size else f".slice({part.start}, {part.size}, 1)"


def _stores(kernel: Backward, group: int) -> list[str]:
    lines = ["kv_base = (b * (heads // group) + hk).to(gl.int64) * kv_len"]
    for name, of_values, part in _sums(kernel, group):
        width = kernel.value_width if of_values else kernel.width
        start = chunks(width)[part.chunk].start + part.start
        layout, pointer = name.upper(), name[:2]
        edge = "" if start + part.size <= width else f" & (cols < {width})"
        lines += [
            f"rows = gl.convert_layout(kv_rows, gl.SliceLayout(1, {layout}))[:, None]",
            f"cols = ({start} + gl.arange(0, {part.size}, gl.SliceLayout(0, {layout})))[None, :]",
            f"at = {pointer}_ptr + (kv_base + rows) * {width} + cols",
            f"gl.store(at, ({name}{'' if of_values else ' * scale'}).to({pointer}_ptr.dtype.element_ty), "
            f"mask=(rows < kv_len){edge})",
        ]
    return lines
