"""A program as PyTorch: on any shapes of indices that broadcast, on any device.

The source is generated once a program and compiled by Python. A captured tensor is read as eager PyTorch reads it:
negative indices count from the end. An index that is out of range gives 0 and is reported beside the results: at a
position that is masked out it is allowed, so only the caller can tell whether it is an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .operations import OPERATIONS
from .program import INPUTS, Program

Evaluator = Callable[..., tuple[list[Tensor], Tensor | None]]
Gather = Callable[[Tensor, list[Tensor]], tuple[Tensor, Tensor | None]]


def evaluate(
    program: Program,
    inputs: dict[str, Tensor],
    captures: Sequence[Tensor] = (),
    scalars: Sequence[Any] = (),
) -> list[Tensor]:
    """The results of a program.

    Args:
        program: what to compute.
        inputs: by name, those of :data:`~torch_flexattn.program.INPUTS` that the program reads, of shapes that
            broadcast.
        captures: the captured tensors.
        scalars: the numbers that are filled in: Python's, or tensors of one number.

    Returns:
        One tensor an output, of the shape that the inputs it depends on broadcast to.
    """
    results, _ = evaluator(program)(inputs, captures, scalars)
    return results


@functools.lru_cache(maxsize=1024)
def evaluator(program: Program, *, read: Gather | None = None) -> Evaluator:
    """A function of ``(inputs, captures, scalars)``: the results, and where a gather was out of range (or ``None``).

    ``read``: how captured tensors are read, instead of :func:`gather`; one call may read them otherwise, by a fourth
    argument.
    """
    scope: dict[str, Any] = {"torch": torch, "_gather": read or gather, "_either": _either}
    exec(compile(source(program), f"<program {program.key}>", "exec"), scope)
    return scope["evaluate"]


def unchecked(table: Tensor, indices: list[Tensor]) -> tuple[Tensor, None]:
    """``table[indices]``, for what is recorded instead of computed."""
    return (table[tuple(indices)] if indices else table), None


def source(program: Program) -> str:
    """The generated function."""
    lines = ["def evaluate(inputs, captures, scalars, read=None):", "    out_of_range = None"]
    if any(node.op == "gather" for node in program.nodes):
        lines.append("    read = read or _gather")
    for number, node in enumerate(program.nodes):
        args = [f"v{a}" for a in node.args]
        if node.op in INPUTS:
            text = f'inputs["{node.op}"]'
        elif node.op == "const":
            text = f"torch.full((), {_literal(node.value)}, dtype=torch.{node.dtype}, device=device)"
        elif node.op == "scalar":
            text = f"torch.as_tensor(scalars[{node.value}], dtype=torch.{node.dtype}).to(device)"
        elif node.op == "cast":
            text = f"{args[0]}.to(torch.{node.dtype})"
        elif node.op == "gather":
            lines.append(f"    v{number}, bad = read(captures[{node.value}], [{', '.join(args)}])")
            lines.append("    out_of_range = _either(out_of_range, bad)")
            continue
        else:
            text = OPERATIONS[node.op].torch.format(*args)
        lines.append(f"    v{number} = {text}")
    lines.insert(2, "    device = next((t.device for t in (*inputs.values(), *captures)), None)")
    lines.append(f"    return [{', '.join(f'v{o}' for o in program.outputs)}], out_of_range")
    return "\n".join(lines) + "\n"


def _literal(value: Any) -> str:
    return f'float("{value}")' if value != value or value in (float("inf"), float("-inf")) else repr(value)


def gather(table: Tensor, indices: list[Tensor]) -> tuple[Tensor, Tensor | None]:
    """``table[indices]``, 0 where one is out of range, and where that is."""
    if not indices:
        return table, None
    wrong, inside = [], []
    for size, index in zip(table.shape, indices, strict=True):
        index = index.long()
        outside = (index < -size) | (index >= size)
        wrong.append(outside)
        inside.append(torch.where(outside, 0, torch.where(index < 0, index + size, index)))
    bad = functools.reduce(torch.bitwise_or, wrong)
    if 0 in table.shape:
        return table.new_zeros(bad.shape), bad
    return torch.where(bad, table.new_zeros(()), table[tuple(inside)]), bad


def _either(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return a if b is None else b if a is None else a | b
