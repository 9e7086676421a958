"""Compile what launches compile, without a GPU: `compile_launches.py 90 few` prints JSON, an error (or "") a case.

The operators run on CPU tensors with every launch replaced by the compilation it would begin with: types, divisibility,
arguments that are 1 or absent, tiles and warps are those of a real launch. `few` takes cases that Triton's layout pass
has failed on ("mask type matches ptr type"), `grid` every row and block kernel over types, tiles and weights,
`attention` the attention kernels. A process of its own, because it must run without TRITON_INTERPRET.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module

import torch
import triton
from torch import Tensor
from torch_tcgnn import bitblock
from torch_tcgnn.adjacency import Adjacency, compress, transpose
from torch_tcgnn.kernels.triton.blocks_spmm import blocks_spmm
from torch_tcgnn.kernels.triton.csr_extremum import csr_extremum
from torch_tcgnn.kernels.triton.csr_sddmm import csr_sddmm
from torch_tcgnn.kernels.triton.csr_spmm import csr_spmm, segment_sum
from torch_tcgnn.kernels.triton.edge_softmax import edge_softmax
from torch_tcgnn.row_plan import plan_rows
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

Case = tuple[str, Callable[[], object]]
NODES = 24
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "fp64": torch.float64}


class Target:
    """What Triton asks of a driver in order to compile."""

    def __init__(self, arch: int) -> None:
        self.arch = arch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_instead_of_launching(arch: int) -> None:
    triton.runtime.driver.set_active(Target(arch))
    run = JITFunction.run

    def compile_only(kernel: JITFunction, *args: object, grid: object, warmup: bool, **options: object) -> None:
        run(kernel, *args, grid=grid, warmup=True, **options)

    JITFunction.run = compile_only


def adjacency(in_order: bool = False, cut: bool = False) -> Adjacency:
    """Of 80 entries, and a row of pieces on top with ``cut``; ``in_order``: without edge numbers."""
    torch.manual_seed(0)
    row = torch.cat([torch.zeros(600 if cut else 0, dtype=torch.int64), torch.randint(0, NODES, (80,))])
    col = torch.randint(0, NODES, row.shape)
    if in_order:
        row, col = row.sort()[0], torch.zeros_like(col)
    made = compress(row, col, NODES, NODES)
    assert (made.edge.numel() == 0) == in_order
    return made


def operands(a: Adjacency, dtype: str, width: int, weight: str) -> tuple[Tensor, Tensor | None]:
    """Features, and weights: ``"none"``, ``"e"`` (``[E]``) or ``"e2"`` … (``[E, 2]`` …)."""
    heads = int(weight[1:]) if weight[1:].isdigit() else 0
    x = torch.ones(NODES, *([heads] if heads else []), width, dtype=DTYPES[dtype])
    if weight == "none":
        return x, None
    return x, torch.ones(a.num_edges, *([heads] if heads else []), dtype=DTYPES[dtype])


def results(a: Adjacency, x: Tensor, wide: bool) -> Tensor:
    """Where sums of ``x`` go; ``wide``: in float32, whatever the features are."""
    return torch.empty(a.num_rows, *x.shape[1:], dtype=torch.float32 if wide else x.dtype)


def spmm(a: Adjacency, dtype: str, width: int, weight: str, wide: bool = False) -> None:
    x, weights = operands(a, dtype, width, weight)
    csr_spmm(a, x, weights, results(a, x, wide))


def extremum(a: Adjacency, dtype: str, width: int, weight: str) -> None:
    csr_extremum(a, *operands(a, dtype, width, weight), largest=True)


def sddmm(a: Adjacency, dtype: str, width: int, weight: str) -> None:
    x, _ = operands(a, dtype, width, weight)
    csr_sddmm(a, x, x)


def segments(a: Adjacency, dtype: str, width: int) -> None:
    values = torch.ones(a.num_edges, width, dtype=DTYPES[dtype])
    segment_sum(a, values, results(a, values, wide=False))


def softmax(a: Adjacency, dtype: str, heads: int) -> None:
    edge_softmax(a, torch.ones(a.num_edges, heads, dtype=DTYPES[dtype]))


def blocks(a: Adjacency, dtype: str, width: int, weight: str, precision: str, wide: bool = False) -> None:
    a = replace(a, blocks=bitblock.build(a.rowptr, a.col, NODES, max_blocks=2))
    x, weights = operands(a, dtype, width, weight)
    blocks_spmm(a, x, weights, precision, results(a, x, wide))


def attention(form: str, dtype: str, heads: int, width: int, full: bool) -> None:
    """Forward and backward; ``full``: with an edge operand, dropout, and rows and columns cut into pieces."""
    kernels = import_module(f"torch_tcgnn.kernels.triton.attention_{form}")
    a, node = adjacency(in_order=not full), (heads, width)
    a_t = transpose(a, NODES)
    if full:
        a, a_t = (replace(each, plan=plan_rows(each.rowptr, longest=2)) for each in (a, a_t))
    per_node, per_head, per_edge = (NODES, *node), (NODES, heads), (a.num_edges, *node)
    shapes = {
        "additive": [per_node, per_head, per_head, (a.num_edges, heads)],
        "gatv2": [per_node, per_node, node, per_edge],
        "dot": [per_node, per_node, per_node, per_edge],
    }[form]
    made = [torch.ones(s, dtype=DTYPES[dtype]) for s in shapes[: 4 if full else 3]] + [None] * (not full)
    factor, dropout, seed = 0.5, 0.5 * full, torch.tensor([3])
    out, lse = getattr(kernels, f"{form}_attention")(a, *made, factor, dropout, seed)
    backward = getattr(kernels, f"{form}_attention_backward")
    backward(a, a_t, *made, factor, dropout, seed, out, lse, out)


def few() -> Iterator[Case]:
    for kernel, dtype, width, weight in (
        (spmm, "fp32", 7, "e"), (spmm, "fp32", 32, "none"), (spmm, "fp16", 7, "e2"), (extremum, "fp32", 7, "e2"),
    ):  # fmt: skip
        yield name(kernel, dtype, width, weight), lambda k=kernel, how=(dtype, width, weight): k(adjacency(), *how)


def grid() -> Iterator[Case]:
    plain, in_order, cut = adjacency(), adjacency(in_order=True), adjacency(cut=True)
    widths, weights = (7, 8, 16, 32, 64, 128), ("none", "e", "e2")
    for dtype, width, weight in itertools.product(DTYPES, widths, weights):
        yield name(spmm, dtype, width, weight), lambda how=(dtype, width, weight): spmm(plain, *how)
        if dtype != "fp64":
            yield name(extremum, dtype, width, weight), lambda how=(dtype, width, weight): extremum(plain, *how)
    for width, weight in itertools.product(widths, weights):
        yield name(spmm, "fp32", width, weight, "in order"), lambda how=(width, weight): spmm(in_order, "fp32", *how)
        yield name(sddmm, "fp32", 4 * width, weight), lambda how=(4 * width, weight): sddmm(plain, "fp32", *how)
    for width in widths:
        for kernel in (spmm, extremum):
            yield name(kernel, "fp32", width, "cut"), lambda k=kernel, w=width: k(cut, "fp32", w, "e")
        yield name(segments, "fp16", width), lambda w=width: segments(plain, "fp16", w)
    for dtype, heads in itertools.product(DTYPES, (1, 3, 16)):
        yield name(softmax, dtype, heads), lambda how=(dtype, heads): softmax(plain, *how)
    kinds = ("fp32", "ieee", False), ("fp32", "tf32", False), ("fp16", "ieee", False), ("fp16", "ieee", True)
    for width, (dtype, *kind) in itertools.product((7, 32, 128), kinds):
        yield name(blocks, dtype, width, *kind), lambda how=(dtype, width, "e", *kind): blocks(plain, *how)
    for width, weight in itertools.product(widths, weights):
        how = "fp16", width, weight, True
        yield name(spmm, *how), lambda how=how: spmm(plain, *how)
    for width in widths:
        yield name(spmm, "fp16", width, "cut", "wide"), lambda w=width: spmm(cut, "fp16", w, "none", True)


def attentions() -> Iterator[Case]:
    shapes = ((8, 8), (3, 7), (1, 64))
    for how in itertools.product(("additive", "gatv2", "dot"), DTYPES, shapes, (False, True)):
        form, dtype, (heads, width), full = how
        yield name(attention, *how), lambda how=(form, dtype, heads, width, full): attention(*how)


def name(kernel: Callable, *how: object) -> str:
    return "/".join([kernel.__name__, *map(str, how)])


def main(arch: int, which: str) -> None:
    compile_instead_of_launching(arch)
    found = {}
    for case, launch in {"few": few, "grid": grid, "attention": attentions}[which]():
        found[case] = ""
        try:
            launch()
        except RuntimeError as error:
            found[case] = str(error)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
