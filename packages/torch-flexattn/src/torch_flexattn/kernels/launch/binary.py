"""Machine code of kernels, made by Triton or found on disk."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...stats import COUNTS
from .files import cache_dir, written
from .kernel import Kernel
from .signature import CONSTANT, Kind

FORMAT = "1"
"""Of the files, and of what is in them."""
PARAMETERS = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w\d+)[^,\n]*?_param_\d+(?:\[(\d+)\])?")


@dataclass(frozen=True)
class Binary:
    """A compiled kernel.

    Attributes:
        code: for the driver.
        name: of the kernel in it.
        shared: bytes of shared memory.
        threads: of a program.
        parameters: bytes of each.
        boxes: what the copy engine takes at once of each tensor described to it, and how it shuffles that.
    """

    code: bytes
    name: str
    shared: int
    threads: int
    parameters: tuple[int, ...]
    boxes: tuple[tuple[tuple[int, ...], int], ...]


def binary(
    kernel: Kernel, kinds: Sequence[Kind], constants: dict[str, Any], warps: int, stages: int, arch: int
) -> Binary:
    """The kernel for arguments of some kinds.

    Args:
        kernel: the source.
        kinds: of the arguments (see ``signature``).
        constants: further arguments, which are part of the kernel.
        warps: of a program, but for those that the source adds.
        stages: of pipelines that the compiler makes where the source does not say.
        arch: compute capability, 90 for 9.0.
    """
    told = [FORMAT, compiler_version(), kernel.digest, arch, warps, stages, *kinds, *sorted(constants.items())]
    digest = hashlib.sha256(repr(told).encode()).hexdigest()[:24]
    path = cache_dir() / f"kernel_{digest}.cubin"
    found = _read(path)
    if found is None:
        found = compiled(kernel, kinds, constants, warps, stages, arch)
        _write(path, found)
    COUNTS.kernels_loaded += 1
    return found


@functools.cache
def compiler_version() -> str:
    """Triton's, without importing it where its files say it."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        import triton

        return str(triton.__version__)


def compiled(
    kernel: Kernel, kinds: Sequence[Kind], constants: dict[str, Any], warps: int, stages: int, arch: int
) -> Binary:
    """See :func:`binary`; made anew."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compile_source

    signature, fixed, hints = {}, dict(constants), {}
    for place, (name, kind) in enumerate(zip(kernel.names, kinds, strict=True)):
        if kind[0] == CONSTANT:
            fixed[name] = kind[1]
        signature[name] = _described(*kind[1:]) if kind[0] == "tensordesc" else kind[0]
        if kind[1] is True:
            hints[(place,)] = [["tt.divisibility", 16]]
    signature |= dict.fromkeys(constants, CONSTANT)
    function = kernel.function
    order = {name: signature[name] for name in function.arg_names}
    maker: Any = ASTSource
    if kernel.language == "gluon":
        from triton.experimental.gluon._runtime import GluonASTSource

        maker = GluonASTSource
    source = maker(fn=function, signature=order, constexprs=fixed, attrs=hints)
    built = compile_source(
        source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps, "num_stages": stages}
    )
    about = built.metadata
    if about.global_scratch_size or about.profile_scratch_size:
        raise NotImplementedError(f"{kernel.name} asks for scratch memory, which no kernel of this package should")
    return Binary(
        code=built.asm["cubin"],
        name=about.name,
        shared=about.shared,
        threads=32 * about.num_warps,
        parameters=_parameters(built.asm["ptx"]),
        boxes=tuple((tuple(of["block_size"]), of["swizzle"]) for of in about.tensordesc_meta or ()),
    )


def _described(dtype: Any, box: tuple[int, ...]) -> str:
    """The type of a tensor described to the copy engine."""
    import torch
    import triton.language as tl
    from triton.experimental.gluon import language as gl

    name, element = {
        torch.float8_e4m3fn: ("fp8e4nv", tl.float8e4nv),
        torch.float16: ("fp16", gl.float16),
        torch.bfloat16: ("bf16", gl.bfloat16),
        torch.float32: ("fp32", gl.float32),
    }[dtype]
    return f"tensordesc<{name}{list(box)},{gl.NVMMASharedLayout.get_default_for(list(box), element)!r}>"


def _parameters(ptx: str) -> tuple[int, ...]:
    """Bytes of each parameter, as the kernel declares them."""
    head = ptx[ptx.index(".entry") :]
    head = head[: head.index("{")]
    return tuple(int(kind[1:]) // 8 * int(length or 1) for kind, length in PARAMETERS.findall(head.replace(".ptr", "")))


def _read(path: Path) -> Binary | None:
    """What a file holds; ``None`` where there is none that can be read, or it is damaged."""
    try:
        header, _, code = path.read_bytes().partition(b"\n")
        about = json.loads(header)
        if about.pop("digest") != hashlib.sha256(code).hexdigest():
            raise ValueError("its digest does not fit")
        boxes = tuple((tuple(box), swizzle) for box, swizzle in about.pop("boxes"))
        return Binary(code=code, parameters=tuple(about.pop("parameters")), boxes=boxes, **about)
    except OSError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        warnings.warn(f"{path.name} in the folder of kernels is damaged ({error}); it is made anew", stacklevel=2)
        return None


def _write(path: Path, made: Binary) -> None:
    about = asdict(made)
    code = about.pop("code")
    header = json.dumps(about | {"digest": hashlib.sha256(code).hexdigest()})
    written(path, header.encode() + b"\n" + code)
