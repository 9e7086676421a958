"""Compiles decode kernels for GPUs that need not be there; run by a test in a process of its own.

Prints, for each, the shared memory of a program, the bytes of registers that spilled, the registers, and how many outer
loops carry a number beside their sums.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import triton
from torch_flexattn import masks, scores
from torch_flexattn.kernels.launch.files import load
from torch_flexattn.kernels.triton import decode, decode_source, forward_source, row_blocks_source
from torch_flexattn.kernels.triton.decode_source import Decode
from torch_flexattn.kernels.triton.merge_kernel import merge_rows
from torch_flexattn.kernels.triton.row_runs_kernel import row_runs
from torch_flexattn.kernels.triton.tiles import SMALLEST, forward_tiles
from torch_flexattn.kernels.triton.write_pages_kernel import copy_tokens
from torch_flexattn.program import Program
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

EIGHT = {80: "*u8", 90: "*fp8e4nv"}
"""8-bit floats: as bytes where the GPU does not know them."""
POINTERS = {
    "out_ptr": "*bf16", "q_ptr": "*bf16", "k_ptr": "*bf16", "v_ptr": "*bf16", "sinks": "*fp32", "kinds": "*i8",
    "lse_ptr": "*fp32", "max_ptr": "*fp32", "sums": "*fp32", "k": "*bf16", "v": "*bf16",
    "k_pages": "*bf16", "v_pages": "*bf16", "a_ptr": "*fp32", "b_ptr": "*bf16",
    "a_lse_ptr": "*fp32", "b_lse_ptr": "*fp32",
    "lengths": "*i32", "descales": "*fp32", "row_ptr": "*i32",
}  # fmt: skip
NUMBERS = {"scale": "fp32", "kept": "fp32"}
CARRIED = re.compile(r"^    \S+ = scf\.for .* -> \(tensor.* i32[,)]", re.MULTILINE)


def build(
    kernel: Any,
    arch: int,
    ones: tuple[str, ...],
    options: dict[str, int],
    eight: tuple[str, ...] = (),
    **constants: Any,
) -> None:
    """``ones``: arguments that are 1, as is every last stride; ``eight``: tensors of 8-bit floats."""
    names = kernel.arg_names
    constants = constants | dict.fromkeys(ones, 1)
    tensors = ("run_begin", "run_end", "runs", "table", "slots", "kv_lens", "q_offsets", "begins", "ends")
    types = dict.fromkeys(names, "i32") | dict.fromkeys(tensors, "*i32") | POINTERS | NUMBERS
    types |= {name: "*fp32" for name in names if re.fullmatch(r"c\d+", name)}
    types |= dict.fromkeys(eight, EIGHT[arch])
    types |= dict.fromkeys(constants, "constexpr")
    free = [name for name in names if name not in constants]
    wide = [name for name in free if types[name].startswith("*") or re.match(r"[qkvoab]_s", name)]
    source = ASTSource(
        kernel,
        signature={name: types[name] for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in wide},
    )
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
    spilled = re.search(r"(\d+) bytes spill stores", said)
    registers = re.search(r"Used (\d+) registers", said)
    assert spilled is not None
    assert registers is not None
    carried = len(CARRIED.findall(compiled.asm["ttgir"]))
    print(kernel.__name__, arch, compiled.metadata.shared, spilled.group(1), registers.group(1), carried)


def decode_kernels(arch: int, kernel: Decode, size: int, **constants: Any) -> None:
    module = load(decode_source.source(kernel))
    tiles = decode.decode_tiles(max(kernel.width, kernel.value_width), 2, 4, SMALLEST)
    options = {"num_warps": tiles.warps, "num_stages": 3}
    constants = {
        "BLOCK_M": tiles.rows, "BLOCK_N": tiles.keys, "MASK_N": 128, "PAGE": size, "WHOLE_N": not kernel.lens,
        "PRECISION": "ieee", "STAGES": tiles.stages, **constants,
    }  # fmt: skip
    if kernel.paged:
        constants["PAGE"] = size
    eight = {"": (), "keys": ("k_ptr", "v_ptr"), "all": ("q_ptr", "k_ptr", "v_ptr")}[kernel.eight]
    build(module.decode, arch, ("q_len", "row_tiles"), options, eight, **constants)
    if kernel.shared:
        build(module.combine, arch, ("q_len",), {"num_warps": 4, "num_stages": 3}, PARTS=64, STEP=32)


def forward_of_8_bits(arch: int, score: Program, mask: Program) -> None:
    kernel = forward_source.Forward(128, 128, score, mask, eight="all", native=arch >= 89, descales=True)
    sizes = forward_tiles(128, 1, (128, 128), widening=True)
    build(
        load(forward_source.source(kernel)).forward, arch, (), {"num_warps": sizes.warps, "num_stages": 3},
        ("q_ptr", "k_ptr", "v_ptr"), BLOCK_M=sizes.rows, BLOCK_N=sizes.keys, MASK_M=128, MASK_N=128, WHOLE_M=True,
        WHOLE_N=True, PRECISION="ieee", STAGES=sizes.stages, INSIDE=True,
    )  # fmt: skip


if __name__ == "__main__":
    window = masks.causal() & masks.sliding_window(100)
    softcap, alibi = scores.softcap(20.0), scores.alibi(torch.ones(32))
    for arch in (80, 90):
        decode_kernels(arch, Decode(128, 128, shared=True), 1)
        decode_kernels(arch, Decode(128, 128, softcap.program, shared=True, lens=True, sinks=True, maxima=True), 1)
        paged = Decode(128, 128, alibi.program, window.program, True, "whole", True, True, "last", shared=True)
        decode_kernels(arch, paged, 64)
        decode_kernels(arch, replace(paged, paged="", slots=False, offset="each", fixed=2048), 1)
        decode_kernels(arch, Decode(192, 128, None, window.program, True, "keys", False, True, "last"), 16)
        decode_kernels(arch, replace(paged, score=None, eight="keys", descales=True), 64)
        forward_of_8_bits(arch, softcap.program, window.program)
        classify = load(row_blocks_source.source(window.program, slots=True, lens=True, offset="last")).classify
        options = {"num_warps": 4, "num_stages": 3}
        build(classify, arch, ("heads", "q_len"), options, ROWS=16, MASK_N=128)
        build(row_runs, arch, (), options, WIDTH=1024)
        sizes = {"WIDTH": 128, "VALUE_WIDTH": 128, "PAGE": 64, "PADDED": 128}
        build(copy_tokens, arch, ("k_se", "v_se"), {"num_warps": 1, "num_stages": 3}, **sizes)
        build(merge_rows, arch, (), options, WIDTH=128, PADDED=128, ROWS=32)
    build(copy_tokens, 80, ("k_se", "v_se"), {"num_warps": 1, "num_stages": 3}, ("k_pages", "v_pages"), **sizes)
    sys.stdout.write("compiled\n")
