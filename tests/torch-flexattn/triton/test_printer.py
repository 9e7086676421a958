"""Programs printed for Triton, run by a small kernel, against the same programs in PyTorch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_flexattn.differentiate import differentiate
from torch_flexattn.evaluate import evaluate
from torch_flexattn.kernels.launch.files import load
from torch_flexattn.kernels.triton.index_width import is_large, reaching
from torch_flexattn.kernels.triton.printer import PLACES, TYPES, place_of, print_program
from torch_flexattn.mods import mask_mod
from torch_flexattn.operations import OPERATIONS
from torch_flexattn.program import NAMES, Program, parse
from torch_flexattn.trace import trace

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, KEYS = 16, 16

KERNEL = '''"""A program on one tile, for tests."""

import triton
import triton.language as tl

from torch_flexattn.kernels.triton.arithmetic import floor_div, floor_mod, power, round_half_even, tanh


@triton.jit
def run(scores, grads, {places}{results}, b, h, q_first, M: tl.constexpr, N: tl.constexpr):
    rows = tl.arange(0, M)[:, None]
    kv_idx = tl.arange(0, N)[None, :]
    q_idx = rows + q_first
    at = rows * N + kv_idx
    score = tl.load(scores + at)
    grad = tl.load(grads + at)
{body}
'''


def source(program: Program) -> str:
    names = {"b": "b", "h": "h", "q": "q_idx", "kv": "kv_idx", "score": "score", "grad": "grad"}
    printed = print_program(program, "x", names)
    places = []
    for number, (_, dims) in enumerate(program.captures):
        places += [f"c{number}", *(f"c{number}_n{d}" for d in range(dims)), *(f"c{number}_s{d}" for d in range(dims))]
    places += [f"s{number}" for number in range(len(program.scalars))]
    lines = [*printed.outside, *printed.inside]
    for number, (name, output) in enumerate(zip(printed.outputs, program.outputs)):
        dtype = program.nodes[output].dtype
        wide = "tl.float32" if dtype in ("float16", "bfloat16") else "tl.int32" if dtype == "bool" else TYPES[dtype]
        lines.append(f"tl.store(out{number} + at, tl.zeros([M, N], {wide}) + tl.cast({name}, {wide}))")
    body = "\n".join(f"    {line}" for line in lines)
    results = ", ".join(f"out{n}" for n in range(len(program.outputs)))
    return KERNEL.format(places="".join(f"{p}, " for p in places), results=results, body=body)


def by_triton(program: Program, captures=(), scalars=(), score: Tensor | None = None, q_first: int = 0) -> list[Tensor]:
    score = torch.zeros(ROWS, KEYS) if score is None else score
    outs = []
    for output in program.outputs:
        dtype = program.nodes[output].dtype
        wide = {"float16": torch.float32, "bfloat16": torch.float32, "bool": torch.int32}.get(
            dtype, getattr(torch, dtype)
        )
        outs.append(torch.empty(ROWS, KEYS, dtype=wide, device=DEVICE))
    places = [p for c in captures for p in (c.to(DEVICE), *c.shape, *c.stride())]
    grads = torch.full((ROWS, KEYS), 0.7, device=DEVICE)
    load(source(program)).run[1,](score.to(DEVICE), grads, *places, *scalars, *outs, 1, 2, q_first, M=ROWS, N=KEYS)
    return [o.cpu() for o in outs]


def by_torch(program: Program, captures=(), scalars=(), score: Tensor | None = None, q_first: int = 0) -> list[Tensor]:
    score = torch.zeros(ROWS, KEYS) if score is None else score
    inputs = {
        "score": score,
        "grad": torch.full((ROWS, KEYS), 0.7),
        "b": torch.tensor(1, dtype=torch.int32),
        "h": torch.tensor(2, dtype=torch.int32),
        "q": torch.arange(ROWS, dtype=torch.int32)[:, None] + q_first,
        "kv": torch.arange(KEYS, dtype=torch.int32)[None, :],
    }
    here = [c.cpu() for c in captures]
    return [r.expand(ROWS, KEYS) for r in evaluate(program, inputs, here, scalars)]


def compare(
    program: Program, captures=(), scalars=(), score: Tensor | None = None, slack: float = 1e-6, **options
) -> None:
    found = by_triton(program, captures, scalars, score, **options)
    for a, b in zip(found, by_torch(program, captures, scalars, score, **options), strict=True):
        if b.is_floating_point():
            torch.testing.assert_close(a.double(), b.double(), rtol=slack, atol=slack, equal_nan=True)
        else:
            assert torch.equal(a.long(), b.long())


def of_two(op: str, dtype: str, result: str | None = None) -> Program:
    """``op`` of table 0 at the query and table 1 at the key."""
    read = f"captures {dtype}[1] {dtype}[1]\nscalars\n%0 = q int32\n%1 = kv int32\n%2 = gather {dtype} 0 %0\n"
    read += f"%3 = gather {dtype} 1 %1\n"
    return parse(f"{read}%4 = {op} {result or dtype} %2 %3\nreturn %4")


def of_one(op: str, dtype: str, result: str | None = None) -> Program:
    read = f"captures {dtype}[1]\nscalars\n%0 = q int32\n%1 = gather {dtype} 0 %0\n"
    return parse(f"{read}%2 = {op} {result or dtype} %1\nreturn %2")


INTEGERS = torch.tensor([-17, -9, -8, -7, -4, -3, -2, -1, 0, 1, 2, 3, 4, 7, 9, 16])
NOT_ZERO = torch.tensor([-17, -9, -8, -7, -4, -3, -2, -1, 5, 1, 2, 3, 4, 7, 9, 16])
FLOATS = torch.tensor([-3.5, -2.5, -2.0, -1.5, -1.0, -0.5, -0.25, -0.0, 0.0, 0.25, 0.5, 1.0, 1.5, 2.5, 3.0, 4.5])
BOOLS = torch.arange(16) % 3 == 0
WHOLE = ("add", "sub", "mul", "min", "max", "and", "or", "xor")


@pytest.mark.parametrize("op", [*WHOLE, "floordiv", "mod", "shl", "shr", "eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_of_two(op: str, dtype: str) -> None:
    left, right = (t.to(getattr(torch, dtype)) for t in (INTEGERS, NOT_ZERO))
    if op.startswith("sh"):
        right = right.abs()
    compare(of_two(op, dtype, "bool" if op in ("eq", "ne", "lt", "le", "gt", "ge") else None), (left, right))


@pytest.mark.parametrize("op", ["neg", "abs", "sign", "not"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_of_one(op: str, dtype: str) -> None:
    compare(of_one(op, dtype), (INTEGERS.to(getattr(torch, dtype)),))


@pytest.mark.parametrize("op", ["and", "or", "xor", "eq", "ne"])
def test_bools(op: str) -> None:
    compare(of_two(op, "bool"), (BOOLS, BOOLS.flip(0)))
    compare(of_one("not", "bool"), (BOOLS,))


@pytest.mark.parametrize(
    "op", ["add", "sub", "mul", "div", "floordiv", "mod", "pow", "min", "max", "eq", "ne", "lt", "le", "gt", "ge"]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floats_of_two(op: str, dtype: str) -> None:
    left, right = (t.to(getattr(torch, dtype)) for t in (FLOATS, torch.where(FLOATS == 0, 0.75, FLOATS)))
    left = left + 0.0  # -0.0 to a negative power is +∞ in Triton
    compare(
        of_two(op, dtype, "bool" if op in ("eq", "ne", "lt", "le", "gt", "ge") else None), (left, right), slack=2e-6
    )


@pytest.mark.parametrize(
    "op",
    [
        "neg",
        "abs",
        "sign",
        "detach",
        "exp",
        "exp2",
        "expm1",
        "sin",
        "cos",
        "tanh",
        "tanh_approx",
        "erf",
        "sigmoid",
        "floor",
        "ceil",
        "round",
        "trunc",
    ],
)
def test_floats_of_one(op: str) -> None:
    compare(of_one(op, "float32"), (FLOATS,), slack=2e-6)


@pytest.mark.parametrize("op", ["log", "log2", "log1p", "sqrt", "rsqrt"])
def test_floats_above_zero(op: str) -> None:
    compare(of_one(op, "float32"), (FLOATS.abs() + 0.125,))


FLOATING = (
    "neg", "abs", "sign", "detach", "exp", "exp2", "expm1", "sin", "cos", "tanh", "tanh_approx", "erf", "sigmoid",
    "floor", "ceil", "round", "trunc", "log", "log2", "log1p", "sqrt", "rsqrt",
)  # fmt: skip


@pytest.mark.parametrize("op", FLOATING)
def test_half_precision_is_computed_in_single(op: str) -> None:
    compare(of_one(op, "float16"), ((FLOATS.abs() + 0.125).half(),), slack=1e-3)


def test_extremes_of_floats() -> None:
    large = torch.tensor([-1e30, -200.0, -90.0, -30.0, 30.0, 90.0, 200.0, 1e30, *[0.0] * 8])
    for op in ("tanh", "sigmoid"):
        compare(of_one(op, "float32"), (large,))
    infinite = torch.tensor([math.inf, -math.inf, math.nan, 1.0] * 4)
    for op in ("tanh", "sigmoid", "neg", "abs", "floor", "ceil", "exp"):
        compare(of_one(op, "float32"), (infinite,))
    for op in ("min", "max"):
        compare(of_two(op, "float32"), (infinite, infinite.flip(0)))


def test_every_operation_is_printed() -> None:
    """The lists above leave none out."""
    tested = {
        *WHOLE,
        "floordiv",
        "mod",
        "shl",
        "shr",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "neg",
        "abs",
        "sign",
        "detach",
        "not",
        "div",
        "pow",
        "exp",
        "exp2",
        "expm1",
        "sin",
        "cos",
        "tanh",
        "tanh_approx",
        "erf",
        "sigmoid",
        "floor",
        "ceil",
        "round",
        "trunc",
        "log",
        "log2",
        "log1p",
        "sqrt",
        "rsqrt",
        "where",
    }
    assert set(OPERATIONS) == tested
    compare(
        parse(
            "captures int32[1]\nscalars\n%0 = q int32\n%1 = kv int32\n%2 = gt bool %0 %1\n%3 = gather int32 0 %1\n"
            "%4 = where int32 %2 %0 %3\nreturn %4"
        ),
        (INTEGERS.int(),),
    )


KINDS = ("bool", "int32", "int64", "float16", "bfloat16", "float32", "float64")


@pytest.mark.parametrize(("source_type", "target"), [p for p in itertools.product(KINDS, KINDS) if p[0] != p[1]])
def test_casts(source_type: str, target: str) -> None:
    table = BOOLS if source_type == "bool" else INTEGERS if source_type.startswith("int") else FLOATS
    compare(of_one("cast", source_type, target), (table.to(getattr(torch, source_type)),))


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_gathers_count_from_the_end_and_give_0_outside(index: str) -> None:
    shift = torch.tensor([-30, -17, -16, -15, -1, 0, 1, 2, 5, 9, 14, 15, 16, 17, 40, 2**20]).to(getattr(torch, index))
    table = torch.randn(16, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE)  # a copy forgets its strides
    text = (
        f"captures float32[2] {index}[1]\nscalars\n%0 = q int32\n%1 = kv int32\n%2 = gather {index} 1 %0\n"
        f"%3 = gather {index} 1 %1\n"
        "%4 = gather float32 0 %2 %3\n%5 = gather float32 0 %0 %3\n%6 = gather float32 0 %2 %1\nreturn %4 %5 %6"
    )
    for layout in (table, table.T, table.repeat(2, 2)[::2, ::2], table[:, :1].expand(16, 16)):
        compare(parse(text), (layout, shift))
    compare(
        parse("captures float32[0] int64[0]\nscalars\n%0 = gather float32 0\n%1 = gather int64 1\nreturn %0 %1"),
        (torch.tensor(2.5), torch.tensor(7)),
    )


def test_offsets_beyond_32_bits_of_a_strided_table() -> None:
    table = torch.empty(3, 2**30, dtype=torch.bool)  # pages that nothing touches take no memory
    table[2, :KEYS] = BOOLS
    mod = mask_mod(lambda b, h, q, kv: table[2 + 0 * q, kv])
    assert is_large(table)
    assert not is_large(table[:1])
    assert "cast int64" not in mod.program.text
    wide = reaching(mod)
    compare(wide.program, wide.captures, wide.scalars)
    assert reaching(mask_mod(lambda b, h, q, kv: FLOATS[q] > 0)).program.text.count("int64") == 0


def test_scalars_in_the_type_they_are_used_in() -> None:
    for dtype, value in (("int32", 3), ("int64", 2**40), ("float32", 0.1)):
        for used in KINDS[1:]:
            if (used == "int32" and value == 2**40) or (
                (used.startswith("float") or used == "bfloat16") and value == 2**40
            ):
                continue
            slack = 1e-2 if used == "bfloat16" else 1e-6  # the interpreter cuts its digits off
            compare(parse(f"captures\nscalars {dtype}\n%0 = scalar {used} 0\nreturn %0"), (), (value,), slack=slack)


MODS = {
    "alibi": lambda s, b, h, q, kv: s - 0.5 ** (h + 1.0) * (q - kv).abs(),
    "softcap": lambda s, b, h, q, kv: 20 * torch.tanh(s / 20),
    "gelu": lambda s, b, h, q, kv: F.gelu(s),
    "softplus": lambda s, b, h, q, kv: F.softplus(s),
    "silu": lambda s, b, h, q, kv: F.silu(s),
    "relu": lambda s, b, h, q, kv: F.relu(s),
    "clamp": lambda s, b, h, q, kv: s.clamp(-1, 0.5),
    "leaky": lambda s, b, h, q, kv: F.leaky_relu(s),
    "power": lambda s, b, h, q, kv: s.abs() ** 1.5 + (s + 5) ** -1,
    "floor": lambda s, b, h, q, kv: s * ((q - 9) // (kv - 20)) + (q - 9) % -5,
    "fmod": lambda s, b, h, q, kv: torch.fmod(s, 0.7),
    "where": lambda s, b, h, q, kv: torch.where((q - 3) // 4 == (kv - 5) // 4, s, -s),
    "cosine": lambda s, b, h, q, kv: s * torch.cos(q - kv),
    "fmin": lambda s, b, h, q, kv: torch.fmin(s, torch.fmax(s * 2, kv - 8)),
}


@pytest.mark.parametrize("name", MODS)
def test_modifications_and_their_derivatives(name: str) -> None:
    score = torch.randn(ROWS, KEYS, generator=torch.Generator().manual_seed(0)) * 2
    traced = trace(MODS[name], "score")
    compare(traced.program, traced.captures, traced.scalars, score, slack=1e-5)
    derivative = differentiate(traced.program, [False] * len(traced.captures)).program
    compare(derivative, traced.captures, traced.scalars, score, slack=2e-5)
    compare(traced.program, traced.captures, traced.scalars, score, slack=1e-5, q_first=100)


def test_products_that_wrap_are_divided_as_in_pytorch() -> None:
    table = torch.randn(16, generator=torch.Generator().manual_seed(0))
    for function in (
        lambda s, b, h, q, kv: ((q * 268435399 + kv * 12345679) % 1000).float(),
        lambda s, b, h, q, kv: ((q * 268435399 * (kv + 1)) // 77777).float(),
        lambda s, b, h, q, kv: table[(q * 268435399) % 16] + table[(q * 2**30 * 2) // 2**28],
        lambda s, b, h, q, kv: ((q.long() * 2**31 + kv).int() % 7).float(),
    ):
        traced = trace(function, "score")
        compare(traced.program, traced.captures, traced.scalars)


def test_places() -> None:
    assert place_of(frozenset()) == "once"
    assert place_of(frozenset({"b", "h"})) == "once"
    assert place_of(frozenset({"q", "h"})) == "kept"
    assert place_of(frozenset({"kv"})) == "moving"
    assert place_of(frozenset({"kv"}), "kv") == "kept"
    assert place_of(frozenset({"q", "kv"}), "kv") == place_of(frozenset({"score"})) == "inner"
    table = torch.zeros(4, 16)
    mask = trace(lambda b, h, q, kv: table[h, q] + table[b, h] >= table[h, kv], "mask").program
    lines = print_program(mask, "x", {"b": "b", "h": "h", "q": "q_idx", "kv": "kv_idx"}).lines
    assert [len(lines[place]) for place in PLACES] == [1, 2, 1, 1]
    assert NAMES[table.dtype] == "float32"
    assert "test_printer.py:" in lines["inner"][0]
