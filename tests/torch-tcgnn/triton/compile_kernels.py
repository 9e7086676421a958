"""Compile every Triton kernel to machine code for one architecture, without a GPU: `compile_kernels.py 90` prints JSON.

A process of its own, because it must run without TRITON_INTERPRET. Pointers carry the divisibility that a launch with
aligned tensors has: without it Triton emits other code than what runs. Row sizes carry none: ``VEC`` says it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
import triton.language as tl
from torch_tcgnn.kernels.triton import blocks_spmm, csr_extremum, csr_sddmm, csr_spmm, edge_softmax
from torch_tcgnn.row_plan import TRIP
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
POINTERS = {
    "pieces": "i32", "wide": "i32", "short": "i32", "rowptr": "i32", "col": "i32", "edge": "i32", "partial": "fp32",
    "partial_arg": "i64", "out_arg": "i64", "items": "i32", "block_col": "i32", "block_mask": "i64",
    "block_slot": "i32", "splits": "i32",
}  # fmt: skip
FEATURES = ("out", "x", "weight", "values", "a", "b", "logits")
WALK = {"UNROLL": TRIP, "ACC": tl.float32}


def cases():
    """``name, kernel, type of features, constants, warps``; constants that are None drop an argument."""
    plain = {"weight": None, "edge": None, "HEADED": False}
    for dtype, vec in (("fp32", 4), ("fp16", 8), ("bf16", 8)):
        constants = {"VEC": vec, "ROWS": vec, "BLOCK_F": 128, **WALK}
        yield f"spmm/{dtype}", csr_spmm.csr_spmm_kernel, dtype, constants | plain, 4
        yield f"spmm/{dtype}/weighted", csr_spmm.csr_spmm_kernel, dtype, constants | {"HEADED": False}, 4
        blocks = {"VEC": vec, "row_order": None, "SPLIT": True, "STEP": blocks_spmm.STEP, "BLOCK_F": 128}
        yield f"blocks/{dtype}/weighted", blocks_spmm.blocks_spmm_kernel, dtype, blocks, 4
        yield f"blocks/{dtype}", blocks_spmm.blocks_spmm_kernel, dtype, blocks | {"values": None}, 4
    four = {"VEC": 4, "ROWS": 8, "BLOCK_F": 64, **WALK}
    yield "spmm/heads", csr_spmm.csr_spmm_kernel, "fp32", four | {"HEADED": True}, 4
    one = {"VEC": 1, "ROWS": 2, "BLOCK_F": 64, **WALK}
    yield "spmm/unaligned", csr_spmm.csr_spmm_kernel, "fp32", one | {"HEADED": False}, 4
    double = {"VEC": 2, "ROWS": 2, "BLOCK_F": 128, "UNROLL": TRIP, "ACC": tl.float64}
    yield "spmm/fp64", csr_spmm.csr_spmm_kernel, "fp64", double | plain | {"partial": None}, 4
    wide = {"VEC": 4, "ROWS": 4, "BLOCK_F": 128, **WALK}
    extremum = wide | {"x_arg": None, "HEADED": False, "LARGEST": True}
    yield "extremum", csr_extremum.csr_extremum_kernel, "fp32", extremum, 4
    yield "sddmm", csr_sddmm.csr_sddmm_kernel, "fp32", wide | {"WHOLE": True}, 4
    long = {"VEC": 4, "WHOLE": False, "ROWS": 2, "BLOCK_F": 512, "ACC": tl.float32, "UNROLL": 1}
    yield "sddmm/long", csr_sddmm.csr_sddmm_kernel, "fp32", long, 4
    yield "softmax", edge_softmax.edge_softmax_kernel, "fp32", {"ROWS": 16, "BLOCK_H": 8, **WALK}, 4
    yield "add_partial", blocks_spmm.add_partial_kernel, "fp32", {"row_order": None, "BLOCK_F": 128}, 4
    small = {"VEC": 1, "row_order": None, "SPLIT": True, "STEP": blocks_spmm.STEP, "BLOCK_F": 16, "values": None}
    yield "blocks/narrow", blocks_spmm.blocks_spmm_kernel, "fp32", small, 1


def compile_case(arch: int, kernel, dtype: str, constants: dict, warps: int):
    signature, attributes = {}, {}
    for position, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name in POINTERS or name in FEATURES:
            signature[name] = "*" + POINTERS.get(name, dtype)
            attributes[(position,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "i32"
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps})


def resources(cubin: bytes) -> dict[str, int] | None:
    """Registers, stack and local bytes as cuobjdump reports them; None without cuobjdump."""
    if not (TOOLS / "cuobjdump").exists():
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        env = os.environ | {"PATH": f"{TOOLS}{os.pathsep}{os.environ.get('PATH', '')}"}
        command = [str(TOOLS / "cuobjdump"), "-res-usage", str(path)]
        text = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    return {key.lower(): int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}


def main(arch: int) -> None:
    found = {}
    for name, kernel, *how in cases():
        compiled = compile_case(arch, kernel, *how)
        ptx = compiled.asm["ptx"]
        found[name] = {
            "cubin_bytes": len(compiled.asm["cubin"]),
            "mma": sorted(set(re.findall(r"(?:mma\.sync|wgmma)\S+", ptx))),
            "wide_loads": len(re.findall(r"ld\.global\S*\.v4\.b32|cp\.async\.c[ag]\S* .*0x10", ptx)),
            "resources": resources(compiled.asm["cubin"]),
        }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]))
