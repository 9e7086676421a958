"""Compiles the kernels of selected blocks for GPUs that need not be there; run by a test in a process of its own.

Prints, for each, the shared memory of a program, the bytes of registers that spilled, the registers, and how many
products of tensor cores there are.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from torch_flexattn.kernels.triton import selected, selected_keys_kernel, selected_queries_kernel
from torch_flexattn.kernels.triton.tiles import Tiles
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

IN_FLOAT32 = ("lse_ptr", "dlse_ptr", "delta_ptr", "dk_ptr", "dv_ptr", "sums_ptr")
INTEGERS = {"blocks_ptr": "*i32", "queries_ptr": "*i32", "begin_ptr": "*i64", "first_ptr": "*i64", "owner_ptr": "*i64"}


def build(kernel: Any, name: str, arch: int, tiles: Any, **constants: Any) -> None:
    names = kernel.arg_names
    types = dict.fromkeys(names, "i32") | {n: "*bf16" for n in names if n.endswith("_ptr")}
    types |= {n: "*fp32" for n in names if n in IN_FLOAT32} | {n: t for n, t in INTEGERS.items() if n in names}
    types |= dict.fromkeys(constants, "constexpr")
    if "scale" in names:
        types["scale"] = "fp32"
    wide = [n for n in names if types[n].startswith("*") or re.match(r"(q|k|v|o|do|dq)_s", n)]
    source = ASTSource(
        kernel,
        signature={n: types[n] for n in names},
        constexprs={(names.index(n),): value for n, value in constants.items()},
        attrs={(names.index(n),): [["tt.divisibility", 16]] for n in wide},
    )
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    with tempfile.TemporaryDirectory() as folder:
        ptx = Path(folder) / "kernel.ptx"
        ptx.write_text(compiled.asm["ptx"])
        target = re.search(r"\.target (\w+)", compiled.asm["ptx"])
        assert target is not None
        said = subprocess.run(
            [triton.knobs.nvidia.ptxas.path, "-v", f"--gpu-name={target.group(1)}", str(ptx), "-o", f"{folder}/out"],
            capture_output=True, text=True, check=True,
        ).stderr  # fmt: skip
    spilled, registers = re.search(r"(\d+) bytes spill stores", said), re.search(r"Used (\d+) registers", said)
    assert spilled is not None
    assert registers is not None
    products = len(re.findall(r"mma\.sync|wgmma\.mma_async", compiled.asm["ptx"]))
    print(name, arch, compiled.metadata.shared, spilled.group(1), registers.group(1), products)


def build_all(arch: int, group: int, width: int, width_v: int) -> None:
    sizes = {
        "GROUP": group, "WIDTH": width, "PADDED": triton.next_power_of_2(width), "VALUE_WIDTH": width_v,
        "VALUE_PADDED": triton.next_power_of_2(width_v), "BLOCK": 64, "CAUSAL": True, "PRECISION": "ieee",
    }  # fmt: skip
    tiles = selected.query_tiles(width, width_v, 2, group, 64)
    lists = {"COUNT": 16, "LISTED": 16, "BLOCK_M": tiles.rows, "BLOCK_N": tiles.keys}
    label = f"{group}x{width}x{width_v}"
    build(selected_queries_kernel.forward, f"forward/{label}", arch, tiles, **sizes, **lists)
    build(selected_queries_kernel.backward, f"backward/{label}", arch, tiles, **sizes, **lists, HAS_LSE=False)
    tiles = selected.key_tiles(width, width_v, 2, 64)
    build(
        selected_keys_kernel.segment, f"segment/{label}", arch, tiles, **sizes, BLOCK_M=tiles.rows, BLOCK_N=tiles.keys
    )


if __name__ == "__main__":
    build_all(80, 3, 64, 64)
    build_all(90, 16, 192, 128)  # as in the paper
    sums = {"WIDTH": 192, "PADDED": 256, "BLOCK": 64, "ROWS": selected.LEAST}
    build(selected_keys_kernel.add_segments, "add", 90, Tiles(selected.LEAST, 64, 2, 1), **sums)
    sys.stdout.write("compiled\n")
