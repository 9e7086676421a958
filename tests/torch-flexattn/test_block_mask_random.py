"""Masks written at random have, as block masks, the runs that looking at every position gives."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch_flexattn.analysis import exact_tiles, quadtree, reads
from torch_flexattn.build import create_block_mask
from torch_flexattn.mods import MaskMod
from torch_flexattn.program import Builder

INTEGER_OPERATIONS = (
    *("add", "sub", "sub", "mul", "floordiv", "mod", "min", "max", "neg", "abs", "sign", "gather", "gather"),
    *("shl", "shr", "and", "or", "not", "where", "wide", "bool", "large", "square"),
)


@dataclass
class Case:
    """A mask with its sizes."""

    mod: MaskMod
    sizes: tuple[int, int, int, int]
    block: tuple[int, int]

    def __repr__(self) -> str:
        captures = [(c.dtype, c.tolist()) for c in self.mod.captures]
        return f"{self.sizes} in {self.block}:\n{self.mod.program.text}\n{captures} {self.mod.scalars}"


def brute_force(
    mod: MaskMod, sizes: tuple[int, int, int, int], block: tuple[int, int]
) -> tuple[list[int], list[list[int]]]:
    """``row_ptr`` and ``runs`` from the dense mask."""
    needs = mod.dependencies
    sizes = (sizes[0] if "b" in needs else 1, sizes[1] if "h" in needs else 1, *sizes[2:])
    indices = [
        torch.arange(n, dtype=torch.int32).view([-1 if k == d else 1 for k in range(4)]) for d, n in enumerate(sizes)
    ]
    return runs_of(mod(*indices).flatten(0, 1), block)


def runs_of(dense: Tensor, block: tuple[int, int]) -> tuple[list[int], list[list[int]]]:
    """The same of a dense mask ``[planes, queries, keys]``."""
    planes, queries, keys = dense.shape
    rows, columns = -(-queries // block[0]), -(-keys // block[1])
    row_ptr, runs = [0], []
    for plane in range(planes):
        for r in range(rows):
            kinds = []
            for c in range(columns):
                tile = dense[plane, r * block[0] : (r + 1) * block[0], c * block[1] : (c + 1) * block[1]]
                kinds.append(2 if bool(tile.all()) else 1 if bool(tile.any()) else 0)
            start = 0
            for c in range(1, columns + 1):
                if c == columns or kinds[c] != kinds[start]:
                    if kinds[start]:
                        runs.append([start, c << 1 | (kinds[start] == 2)])
                    start = c
            row_ptr.append(len(runs))
    return row_ptr, runs


class Writer:
    """Writes one random mask."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.builder = Builder()
        self.captures: list[Tensor] = []
        self.scalars: list[int | float] = []

    def case(self) -> Case:
        r = self.random
        lengths = [r.choice([1, r.randint(2, 40), r.randint(40, 300), 128, 256]) for _ in range(2)]
        if r.random() < 0.5:
            lengths[1] = lengths[0]
        self.sizes = (r.choice([1, 2, 3]), r.choice([1, 2]), *lengths)
        self.inputs = {name: self.builder.add(name, "int32") for name in ("b", "h", "q", "kv")}
        block = tuple(r.choice([16, 16, 32, 48, 64, 128]) for _ in range(2))
        program = self.builder.finish([self.mask(r.choice([0, 1, 1, 2, 3]))])
        return Case(MaskMod(program, tuple(self.captures), tuple(self.scalars)), self.sizes, block)

    # bools

    def mask(self, depth: int) -> int:
        r = self.random
        if depth == 0:
            return r.choice([self.known_form, self.known_form, self.comparison, self.table_of_bools])()
        op = r.choice(["and", "and", "or", "not", "xor", "where"])
        if op == "not":
            return self.add("not", "bool", self.mask(depth - 1))
        if op == "where":
            return self.add("where", "bool", *(self.mask(depth - 1) for _ in range(3)))
        return self.add(op, "bool", self.mask(depth - 1), self.mask(r.randrange(depth)))

    def known_form(self) -> int:
        q, kv, r = self.inputs["q"], self.inputs["kv"], self.random
        distance = self.add("sub", "int32", q, kv)
        form = r.randrange(9)
        if form == 0:
            return self.add("ge", "bool", q, kv)
        if form == 1:
            return self.add("lt", "bool", self.add("abs", "int32", distance), self.number(60))
        if form == 2:
            return self.add("lt", "bool", kv, self.number(200))
        if form == 3:  # documents
            ids = self.capture(torch.randint(0, 4, (max(self.sizes[2:]),), generator=self.generator).sort().values)
            return self.add("eq", "bool", *(self.read(ids, i) for i in (q, kv)))
        if form == 4:  # lengths of batches
            lengths = self.capture(torch.randint(0, self.sizes[3] + 1, (self.sizes[0],), generator=self.generator))
            return self.add("lt", "bool", self.cast(kv, self.dtype(lengths)), self.read(lengths, self.inputs["b"]))
        if form == 5:  # a table of blocks
            size = r.choice([16, 32, 40])
            shape = [-(-n // size) for n in self.sizes[2:]]
            blocks = self.capture(torch.rand(shape, generator=self.generator) < 0.5)
            return self.read(blocks, *(self.add("floordiv", "int32", i, self.const(size)) for i in (q, kv)))
        if form == 6:  # dilated
            period = self.const(r.randint(1, 9))
            return self.add("eq", "bool", self.add("mod", "int32", distance, period), self.const(0))
        if form == 7:  # chunks
            chunk = self.const(r.choice([3, 16, 50, 64, -7]))
            return self.add("eq", "bool", *(self.add("floordiv", "int32", i, chunk) for i in (q, kv)))
        starts = self.capture(torch.randint(-20, 200, (self.sizes[2],), generator=self.generator, dtype=torch.int32))
        return self.add("ge", "bool", kv, self.read(starts, q))

    def comparison(self) -> int:
        op = self.random.choice(["lt", "le", "gt", "ge", "eq", "ne"])
        if self.random.random() < 0.25:
            return self.add(op, "bool", self.floating(3), self.floating(self.random.randrange(2)))
        return self.add(op, "bool", self.integer(2), self.integer(self.random.randrange(3)))

    def table_of_bools(self) -> int:
        table = self.capture(torch.rand(self.random.randint(1, 300), generator=self.generator) < 0.7)
        return self.read(table, self.integer(1))

    # numbers

    def floating(self, depth: int) -> int:
        """A float32."""
        r = self.random
        if depth == 0:
            if r.random() < 0.5:
                return self.builder.const(r.choice([r.uniform(-100, 100), 0.5, 3.0, 1e38, float("inf")]), "float32")
            values = torch.randn(300, generator=self.generator).cumsum(0) * 5
            values[r.randrange(300)] = r.choice([float("nan"), float("inf"), -float("inf"), 1.0])
            return self.read(self.capture(values), self.inputs[r.choice(["q", "kv"])])
        op = r.choice(["cast", "cast", "add", "sub", "sub", "mul", "square", "div", "neg", "abs", "min", "max", "where",
                       "sqrt", "floor", "ceil", "trunc", "round", "tanh"])  # fmt: skip
        if op == "cast":
            return self.cast(self.integer(2), "float32")
        a = self.floating(depth - 1)
        if op == "square":
            return self.add("mul", "float32", a, a)
        if op == "where":
            return self.add("where", "float32", self.mask(0), a, self.floating(depth - 1))
        one = ("neg", "abs", "sqrt", "floor", "ceil", "trunc", "round", "tanh")
        return self.add(op, "float32", a, *([] if op in one else [self.floating(r.randrange(depth))]))

    def integer(self, depth: int) -> int:
        """An int32."""
        r = self.random
        if depth == 0 or r.random() < 0.2:
            if r.random() < 0.2:
                return self.number(r.choice([5, 100, 1000]))
            return self.inputs[r.choice(["q", "q", "q", "kv", "kv", "kv", "b", "h"])]
        op = r.choice(INTEGER_OPERATIONS)
        a = self.integer(depth - 1)
        if op in ("neg", "abs", "sign", "not"):
            return self.add(op, "int32", a)
        if op == "square":
            return self.add("mul", "int32", a, a)
        if op in ("floordiv", "mod") and r.random() < 0.2:  # another divisor a head
            divisors = self.capture(torch.randint(1, 40, (2,), generator=self.generator, dtype=torch.int32))
            return self.add(op, "int32", a, self.read(divisors, self.inputs["h"]))
        if op in ("floordiv", "mod"):
            return self.add(op, "int32", a, self.const(r.choice([1, 2, 3, 7, 16, 32, 100, -1, -3, -16])))
        if op in ("shl", "shr"):
            return self.add(op, "int32", a, self.const(r.randrange(5)))
        if op == "and":
            return self.add(op, "int32", a, self.const(r.choice([0, 1, 7, 15, 31, 12, -8])))
        if op == "gather":
            size = r.choice([*self.sizes[2:], sum(self.sizes[2:]), r.randint(1, 300)])
            table = self.capture(torch.randint(-50, 300, (size,), generator=self.generator, dtype=torch.int32))
            return self.read(table, a)
        if op == "where":
            return self.add("where", "int32", self.mask(0), a, self.integer(depth - 1))
        if op == "wide":
            wide = self.add(
                "mul", "int64", self.cast(a, "int64"), self.builder.const(r.choice([3, 2**20, 2**40]), "int64")
            )
            return self.cast(wide, "int32")
        if op == "bool":
            return self.cast(self.mask(0), "int32")
        if op == "large":
            return self.add("mul", "int32", a, self.const(r.choice([2**20, 2**24 + 3, -(2**30)])))
        return self.add(op, "int32", a, self.integer(depth - 1))

    def number(self, largest: int) -> int:
        value = self.random.randint(-3, largest)
        if self.random.random() < 0.5:
            return self.const(value)
        self.scalars.append(value)
        self.builder.scalars.append("int32")
        return self.builder.add("scalar", "int32", value=len(self.scalars) - 1)

    def const(self, value: int) -> int:
        return self.builder.const(value, "int32")

    def capture(self, tensor: Tensor) -> int:
        self.captures.append(tensor)
        self.builder.captures.append((str(tensor.dtype).removeprefix("torch."), tensor.dim()))
        return len(self.captures) - 1

    def read(self, table: int, *indices: int) -> int:
        return self.add("gather", self.dtype(table), *indices, value=table)

    def dtype(self, table: int) -> str:
        return self.builder.captures[table][0]

    def cast(self, a: int, dtype: str) -> int:
        return self.builder.cast(a, dtype)

    def add(self, op: str, dtype: str, *args: int, value: int | None = None) -> int:
        return self.builder.add(op, dtype, *args, value=value)


LEVELS = ((1 << 18, 1 << 20, 4), (4, 64, 1), (7, 300, 2))
"""First, most boxes at once, and bits of a split: small ones make small masks go through many levels."""
DEFAULT, SWEEP = range(1500), range(1500, 16500)


def check(seeds: range, monkeypatch: pytest.MonkeyPatch) -> int:
    """Compare the runs of masks; how many have any."""
    with_runs = 0
    for seed in seeds:
        case = Writer(seed).case()
        expected = brute_force(case.mod, case.sizes, case.block)
        with_runs += bool(expected[1])
        levels = LEVELS[seed % len(LEVELS)]
        monkeypatch.setattr(exact_tiles, "WORTH_HINTS", 0 if seed % 2 else 1 << 22)
        monkeypatch.setattr(reads, "LARGEST", 0 if seed % 5 == 0 else 1 << 22)
        first, *others = levels
        monkeypatch.setitem(quadtree.FIRST, "cpu", first)
        for name, value in zip(("AT_A_TIME", "SPLIT_BITS"), others, strict=True):
            monkeypatch.setattr(quadtree, name, value)
        for method in ("exact", "analytic") if seed % 3 == 0 else ("analytic",):
            mask = create_block_mask(case.mod, *case.sizes, BLOCK_SIZE=case.block, method=method, check=False)
            assert (mask.row_ptr.tolist(), mask.runs.tolist()) == expected, f"seed {seed}, {method}, {levels}:\n{case}"
        planes = (
            case.sizes[0] if "b" in case.mod.dependencies else 1,
            case.sizes[1] if "h" in case.mod.dependencies else 1,
        )
        assert mask.shape == (*planes, *case.sizes[2:])
        dense = mask.to_element_mask().flatten(0, 1).transpose(1, 2)
        columns = [part.tolist() for part in mask.transpose_runs()]
        assert columns == list(runs_of(dense, case.block[::-1])), f"transposed, seed {seed}:\n{case}"
    return with_runs


@pytest.mark.parametrize("part", range(10))
def test_runs_of_random_masks_equal_brute_force(part, monkeypatch):
    assert check(DEFAULT[part::10], monkeypatch) > 75  # most show something


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_runs_of_many_random_masks_equal_brute_force(part, monkeypatch):
    assert check(SWEEP[part::10], monkeypatch) > 750
