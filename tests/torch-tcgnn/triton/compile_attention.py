"""Compile the attention kernels for one architecture, without a GPU: `compile_attention.py 90` prints JSON.

Tiles are those that a launch takes for the widths named; the merges of pieces are there as well. A process of its own,
as `compile_kernels.py` beside it.
"""

from __future__ import annotations

import json
import sys

import triton
import triton.language as tl
from compile_kernels import resources
from torch_tcgnn.kernels.triton import attention_additive, attention_dot, attention_gatv2, attention_merge
from torch_tcgnn.kernels.triton.attention import COUNTS, ITEMS
from torch_tcgnn.kernels.triton.attention_launch import tile
from torch_tcgnn.kernels.triton.tile import NUM_WARPS
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

KERNELS = {
    "additive": (attention_additive, "SLOPE"), "gatv2": (attention_gatv2, "SLOPE"), "dot": (attention_dot, "SCALE"),
}  # fmt: skip
INDICES = ("col", "edge", *ITEMS)
NUMBERS = (*COUNTS, "one_width", "other_width")
FLOATS = ("lse", "delta")
MERGES = {
    "merge/softmax": (attention_merge.merge_softmax_kernel, {"HEADS": 8, "FEATURES": 8, "BLOCK_P": 128, "BLOCK_F": 8}),
    "merge/softmax/wide": (
        attention_merge.merge_softmax_kernel, {"HEADS": 1, "FEATURES": 1433, "BLOCK_P": 1, "BLOCK_F": 2048},
    ),
    "merge/sum": (attention_merge.add_pieces_kernel, {"BLOCK_P": 64, "BLOCK_C": 32, "other": None, "other_part": None}),
    "merge/sums": (attention_merge.add_pieces_kernel, {"BLOCK_P": 64, "BLOCK_C": 32}),
}  # fmt: skip


def cases():
    """``name, form, step, type of features, heads, features, with edges and dropout, with cut rows``."""
    for form in KERNELS:
        for step in ("forward", "rows", "columns"):
            yield f"{form}/{step}/fp32/8x8", form, step, "fp32", 8, 8, False, False
            yield f"{form}/{step}/fp32/8x8/cut", form, step, "fp32", 8, 8, False, True
            yield f"{form}/{step}/bf16/4x32/edges+dropout", form, step, "bf16", 4, 32, True, True


def compile_case(arch: int, form: str, step: str, dtype: str, heads: int, features: int, full: bool, cut: bool):
    module, factor = KERNELS[form]
    kernel = getattr(module, f"{form}_{step}_kernel")
    size = tile(heads, features, 1 if form == "additive" or (form == "gatv2" and step == "forward") else 2)
    constants = {
        factor: 0.2, "KEEP": 2.5 if full else 1.0, "ACC": tl.float32,
        "BLOCK_E": size.entries, "BLOCK_H": size.heads, "BLOCK_F": size.features,
        "HEADS": heads, "FEATURES": features,
    }  # fmt: skip
    if form == "dot":
        constants |= {"BLOCK_D": size.features, "DEPTH": features}
    if not full:
        absent = ("logit", "grad_logit", "feature", "grad_feature", "seed", "edge")
        constants |= {name: None for name in absent if name in kernel.arg_names}
    if not cut:
        constants |= {name: None for name in kernel.arg_names if name.endswith("_part") and name != "att_part"}
    return compile_kernel(arch, kernel, constants, dtype, size.warps)


def compile_kernel(arch: int, kernel, constants: dict, dtype: str, warps: int):
    signature, attributes = {}, {}
    for position, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name == "limit":
            signature[name] = "i64"
        elif name in NUMBERS:
            signature[name] = "i32"
        else:
            partial = name in FLOATS or name.endswith("_part")
            kind = "i32" if name in INDICES else "i64" if name == "seed" else "fp32" if partial else dtype
            signature[name] = f"*{kind}"
            if name not in ITEMS:
                attributes[(position,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps})


def main(arch: int) -> None:
    made = {name: compile_case(arch, *how) for name, *how in cases()}
    for name, (kernel, constants) in MERGES.items():
        made[name] = compile_kernel(arch, kernel, constants | {"ACC": tl.float32}, "fp32", NUM_WARPS)
    found = {}
    for name, compiled in made.items():
        ptx = compiled.asm["ptx"]
        found[name] = {
            "cubin_bytes": len(compiled.asm["cubin"]),
            "atomics": ptx.count("atom.") + ptx.count("red.global"),
            "wide_loads": ptx.count(".v4.b32") + ptx.count(".v2.b64"),
            "resources": resources(compiled.asm["cubin"]),
        }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]))
