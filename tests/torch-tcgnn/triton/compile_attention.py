"""Compile the attention kernels for one architecture, without a GPU: `compile_attention.py 90` prints JSON.

Tiles are those that a launch takes for the widths named; a process of its own, as `compile_kernels.py` beside it.
"""

from __future__ import annotations

import json
import sys

import triton
import triton.language as tl
from compile_kernels import resources
from torch_tcgnn.kernels.triton import attention_additive, attention_dot, attention_gatv2
from torch_tcgnn.kernels.triton.attention import tile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

KERNELS = {
    "additive": (attention_additive, "SLOPE"), "gatv2": (attention_gatv2, "SLOPE"), "dot": (attention_dot, "SCALE"),
}  # fmt: skip
INDICES = ("rowptr", "col", "edge")
FLOATS = ("lse", "delta", "grad_att")


def cases():
    """``name, kernel, type of features, heads, features, with edges and dropout``."""
    for form in KERNELS:
        for step in ("forward", "rows", "columns"):
            yield f"{form}/{step}/fp32/8x8", form, step, "fp32", 8, 8, False
            yield f"{form}/{step}/bf16/4x32/edges+dropout", form, step, "bf16", 4, 32, True


def compile_case(arch: int, form: str, step: str, dtype: str, heads: int, features: int, full: bool):
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
    signature, attributes = {}, {}
    for position, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name == "limit":
            signature[name] = "i64"
        else:
            kind = "i32" if name in INDICES else "i64" if name == "seed" else "fp32" if name in FLOATS else dtype
            signature[name] = f"*{kind}"
            attributes[(position,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": size.warps})


def main(arch: int) -> None:
    found = {}
    for name, *how in cases():
        compiled = compile_case(arch, *how)
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
