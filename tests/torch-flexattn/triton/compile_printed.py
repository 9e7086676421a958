"""Compiles printed programs for a GPU that need not be there; run by a test in a process of its own.

Triton's interpreter takes what its compiler does not: types of functions, constants where tensors are wanted.
"""

from __future__ import annotations

import itertools

import torch
from test_printer import FLOATING, MODS, of_two, source
from torch_flexattn.differentiate import differentiate
from torch_flexattn.kernels.launch.files import load
from torch_flexattn.program import Builder, Program
from torch_flexattn.trace import trace
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

TYPES = {
    "bool": "i1",
    "int32": "i32",
    "int64": "i64",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
}
STORED = {"float16": "fp32", "bfloat16": "fp32", "bool": "i32"}


def build(program: Program, ones: tuple[int, ...] = ()) -> None:
    """``ones``: scalars that are 1, which Triton makes constants."""
    kernel = load(source(program)).run
    types = {
        "scores": "*fp32",
        "grads": "*fp32",
        "b": "i32",
        "h": "i32",
        "q_first": "i32",
        "M": "constexpr",
        "N": "constexpr",
    }
    values = {"M": 16, "N": 16}
    for number, (dtype, dims) in enumerate(program.captures):
        types[f"c{number}"] = f"*{TYPES[dtype]}"
        types |= {f"c{number}_{kind}{d}": "i32" for kind, d in itertools.product("ns", range(dims))}
    for number, dtype in enumerate(program.scalars):
        types[f"s{number}"] = "constexpr" if number in ones else "fp32" if dtype.startswith("float") else TYPES[dtype]
        if number in ones:
            values[f"s{number}"] = 1
    for number, output in enumerate(program.outputs):
        dtype = program.nodes[output].dtype
        types[f"out{number}"] = f"*{STORED.get(dtype, TYPES[dtype])}"
    names = kernel.arg_names
    constants = {(names.index(name),): value for name, value in values.items()}
    code = ASTSource(kernel, signature={name: types[name] for name in names}, constexprs=constants)
    compile(code, target=GPUTarget("cuda", 80, 32), options={"num_warps": 4})


def all_of(dtype: str) -> Program:
    """Every operation of floats, of one type."""
    builder = Builder([(dtype, 1), (dtype, 1)])
    x, y = (builder.add("gather", dtype, builder.add(index, "int32"), value=n) for n, index in enumerate(("q", "kv")))
    outputs = [builder.add(op, dtype, x) for op in FLOATING]
    outputs += [
        builder.add(op, dtype, x, y) for op in ("add", "sub", "mul", "div", "floordiv", "mod", "pow", "min", "max")
    ]
    outputs += [builder.cast(x, other) for other in TYPES]
    total = builder.const(0.0, "float64")
    for output in outputs:
        total = builder.add("add", "float64", total, builder.cast(output, "float64"))
    return builder.finish([total])


if __name__ == "__main__":
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        build(all_of(dtype))
    for dtype, op in itertools.product(("int32", "int64"), ("floordiv", "mod", "shl", "shr", "min", "max", "xor")):
        build(of_two(op, dtype))
    window, factor = 3, 0.5
    half, brain, table = (torch.zeros(16, dtype=d) for d in (torch.float16, torch.bfloat16, torch.float32))

    def scalars(s, b, h, q, kv):
        return (
            s * window
            + half[q] * factor
            + brain[kv] * window
            + torch.where(q * window < kv, factor, s)
            + (q // window) % 5
        )

    def tables(s, b, h, q, kv):
        return torch.tanh(brain[q.long() * 2 - kv]) * s + torch.sigmoid(half[kv]) * table[(q - kv).abs()]

    for function in (scalars, tables, MODS["fmin"], MODS["floor"]):
        traced = trace(function, "score")
        build(traced.program, tuple(n for n, value in enumerate(traced.scalars) if isinstance(value, int)))
        build(differentiate(traced.program, [True] * len(traced.captures)).program)
    print("compiled")
