"""Compiles kernels for Hopper without a GPU; prints what the machine code is made of, a line a kernel.

A process of its own: Triton reads the environment when it is imported, and tests set its interpreter.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import torch
import triton.language as tl
from torch_flexattn import masks, scores
from torch_flexattn.differentiate import differentiate
from torch_flexattn.kernels.hopper import attention, backward_source, forward_source, wide_backward_source
from torch_flexattn.kernels.hopper.backward_tile import Backward
from torch_flexattn.kernels.launch.files import load
from torch_flexattn.kernels.triton.chunks import chunks
from triton.backends.compiler import GPUTarget
from triton.compiler import compile as compile_source
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

TYPES = {"int32": "i32", "int64": "i64", "float32": "fp32"}
CAUSAL = masks.causal().program
SOFTCAP = scores.softcap(20.0).program
RELATIVE = scores.relative_bias(torch.zeros(4, 511)).program
FORWARD = {
    "plain": forward_source.Forward(128, 128),
    "causal": forward_source.Forward(128, 128, None, CAUSAL),
    "softcap": forward_source.Forward(64, 64, SOFTCAP, CAUSAL),
    "table": forward_source.Forward(96, 128, RELATIVE, CAUSAL, offsets=True, sinks=True, maxima=True),
    "wide": forward_source.Forward(256, 256, None, CAUSAL),
    "eight": forward_source.Forward(128, 128, SOFTCAP, CAUSAL, maxima=True, eight=True, descales=True),
}
BACKWARD = {
    "causal": Backward(128, 128, 64, None, CAUSAL),
    "narrow": Backward(64, 72, 64, differentiate(SOFTCAP, ()), CAUSAL),
    "table": Backward(128, 128, 64, differentiate(RELATIVE, (True,)), CAUSAL),
    "wide": Backward(192, 128, 64, None, CAUSAL),
    "widest": Backward(256, 256, 64, None, CAUSAL),
}


KINDS = {"fp32": gl.float32, "bf16": gl.bfloat16, "fp16": gl.float16, "fp8e4nv": tl.float8e4nv}
OF_EIGHT = {"q": "fp8e4nv", "k": "fp8e4nv", "v": "fp16"}


def descriptor(name: str, rows: int, size: int, eight: bool) -> str:
    kind = OF_EIGHT[name] if eight else "fp32" if name == "dq" else "bf16"
    dtype = KINDS[kind]
    return (
        f"tensordesc<{kind}[1, 1, {rows}, {size}],{gl.NVMMASharedLayout.get_default_for([1, 1, rows, size], dtype)!r}>"
    )


def compiled(
    function: Any,
    programs: Any,
    constants: dict[str, Any],
    tiles: dict[str, list[tuple[int, int]]],
    eight: bool = False,
) -> Any:
    """The kernel, its arguments typed by their names; ``eight``: queries and keys of 8 bits."""
    captures = [TYPES[dtype] for program in programs for dtype, _ in program.captures]
    numbers = [TYPES[dtype] for program in programs for dtype in program.scalars]
    signature, attributes = {}, {}
    for place, name in enumerate(function.arg_names):
        described = re.fullmatch(r"([a-z]+)_desc(\d?)", name)
        if name in constants:
            signature[name] = "constexpr"
        elif described:
            rows, size = tiles[described[1]][int(described[2] or 0)]
            signature[name] = descriptor(described[1], rows, size, eight)
        elif name in ("out_ptr", "dk_ptr", "dv_ptr"):
            signature[name] = "*bf16"
        elif name in ("lse_ptr", "max_ptr", "sinks", "delta_ptr", "descales") or re.fullmatch(r"g\d+", name):
            signature[name] = "*fp32"
        elif name in ("row_ptr", "col_ptr", "runs", "q_offsets"):
            signature[name] = "*i32"
        elif re.fullmatch(r"c\d+", name):
            signature[name] = f"*{captures[int(name[1:])]}"
        elif re.fullmatch(r"s\d+", name):
            signature[name] = numbers[int(name[1:])]
        else:
            signature[name] = "fp32" if name == "scale" else "i32"
        if signature[name].startswith("*"):
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = GluonASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    return compile_source(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})


def report(name: str, kernel: Any) -> None:
    ptx = kernel.asm["ptx"]
    words = [ptx.count(w) for w in ("wgmma.mma_async", "cp.async.bulk.tensor", "cp.reduce.async.bulk", "setmaxnreg")]
    words.append(ptx.count(".f32.e4m3.e4m3"))
    sys.stdout.write(f"{name} {kernel.metadata.shared} {' '.join(map(str, words))}\n")


def main() -> None:
    common = {"MASK_M": 128, "MASK_N": 128, "WHOLE_M": True, "INSIDE": True, "REGISTERS": 240}
    for name, kernel in FORWARD.items():
        tiles = attention.forward_tiles(max(kernel.width, kernel.value_width), kernel.eight)
        sizes = {
            "q": [(64, c.size) for c in chunks(kernel.width)],
            "k": [(tiles.keys, c.size) for c in chunks(kernel.width)],
            "v": [(tiles.keys, c.size) for c in chunks(kernel.value_width)],
        }
        constants = common | {
            "BLOCK_N": tiles.keys,
            "STAGES": tiles.stages,
            "WHOLE_N": name != "table",
            "POSITIVE": True,
        }
        module = load(forward_source.source(kernel))
        report(f"forward-{name}", compiled(module.forward, kernel.programs, constants, sizes, kernel.eight))
    for name, kernel in BACKWARD.items():
        tiles = attention.backward_tiles(max(kernel.width, kernel.value_width))
        made: Any = backward_source if tiles.columns == backward_source.COLUMNS else wide_backward_source
        wide, values = chunks(kernel.width), chunks(kernel.value_width)
        sizes = {
            "q": [(tiles.rows, c.size) for c in wide], "do": [(tiles.rows, c.size) for c in values],
            "k": [(tiles.columns, c.size) for c in wide], "v": [(tiles.columns, c.size) for c in values],
            "dq": [(made.DQ_ROWS, size) for size in made.dq_sizes(kernel)],
        }  # fmt: skip
        constants = common | {"Q_STAGES": tiles.stages[0], "DO_STAGES": tiles.stages[1], "WHOLE_N": name != "narrow"}
        module = load(made.source(kernel))
        report(f"backward-{name}", compiled(module.backward, kernel.programs, constants, sizes))
    sys.stdout.write("compiled\n")


main()
