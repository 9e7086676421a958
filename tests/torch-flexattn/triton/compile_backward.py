"""Compiles deterministic backward kernels for GPUs that need not be there; run by a test in a process of its own.

Prints, for each, the shared memory of a program and which atomic additions the code makes.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import torch
import triton
from torch_flexattn import masks, score_mod
from torch_flexattn.differentiate import differentiate
from torch_flexattn.kernels.launch.files import load
from torch_flexattn.kernels.triton import backward_source, query_source
from torch_flexattn.kernels.triton.score_gradient import Gradient
from torch_flexattn.kernels.triton.tiles import Tiles, deterministic_tiles
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TYPES = {
    r"(q|k|v|do|dk|dv)_ptr": "*bf16", r"(lse|delta|dq)_ptr|[cg]\d+": "*fp32", r"(col|row)_ptr|runs|kv_lens|q_offsets":
    "*i32", r"scale|kept": "fp32", r"seed|limit": "i64",
}  # fmt: skip
TABLE, PAIRS = torch.zeros(4, 64, requires_grad=True), torch.zeros(64, 64, requires_grad=True)


def build(kernel: Any, arch: int, tiles: Tiles) -> None:
    constants: dict[str, Any] = {
        "BLOCK_M": tiles.rows, "BLOCK_N": tiles.keys, "MASK_M": 128, "MASK_N": 128, "WHOLE_M": False, "WHOLE_N": False,
        "PRECISION": "ieee", "STAGES": tiles.stages, "INSIDE": False,
    }  # fmt: skip
    names = kernel.arg_names
    types = dict.fromkeys(names, "i32")
    for name in names:
        types[name] = next((kind for pattern, kind in TYPES.items() if re.fullmatch(pattern, name)), types[name])
    types |= {name: "*i64" for name in names if f"{name}_first" in names} | dict.fromkeys(constants, "constexpr")
    aligned = [name for name in names if types[name].startswith("*") or re.match(r"(q|k|v|do)_s", name)]
    source = ASTSource(
        kernel,
        signature=types,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": tiles.warps})
    added = sorted(set(re.findall(r"(?:atom|red)\.global\S*\.add\S*\.(\w+)", compiled.asm["ptx"])))
    print(kernel.__name__, arch, compiled.metadata.shared, *added)


if __name__ == "__main__":
    score = score_mod(lambda s, b, h, i, j: s + TABLE[h, (i - j).abs() // 3] + PAIRS[i, j])
    sizes: dict[str, Any] = {"width": 128, "value_width": 128, "mask": masks.causal().program, "lens": True}
    of_keys, of_queries = deterministic_tiles(128, 2, (128, 128), True)
    derivative, without = (differentiate(score.program, [needed, needed]) for needed in (True, False))
    kernel = backward_source.Backward(
        **sizes, tile=(of_keys.keys, of_keys.rows), score=derivative, queries=False, exact=frozenset({0})
    )
    build(load(backward_source.source(kernel)).backward, 80, of_keys)
    kernel = Gradient(**sizes, tile=(of_queries.keys, of_queries.rows), score=without)
    build(load(query_source.source(kernel)).query_gradient, 90, of_queries)
    sys.stdout.write("compiled\n")
