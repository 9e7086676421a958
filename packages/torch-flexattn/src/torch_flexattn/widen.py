"""Programs in double precision: for float64 scores, where a program says float32."""

from __future__ import annotations

import functools

from .program import Node, Program


@functools.lru_cache(maxsize=1024)
def widened(program: Program) -> Program:
    """The program with every value that is computed in float32 computed in float64, its numbers with all their digits.

    Captured tensors keep their types, and are made float64 where they are read.

    Example:
        >>> from torch_flexattn import score_mod
        >>> print(widened(score_mod(lambda score, b, h, q_idx, kv_idx: score * 0.1).program).text)
        captures
        scalars
        %0 = score float64
        %1 = const float64 0.1
        %2 = mul float64 %0 %1
        return %2
    """
    nodes: list[Node] = []
    places: list[int] = []
    for node in program.nodes:
        args = tuple(places[a] for a in node.args)
        wide = node.dtype == "float32"
        if wide and node.op == "gather":
            nodes.append(Node("gather", "float32", args, node.value, node.line))
            nodes.append(Node("cast", "float64", (len(nodes) - 1,), None, node.line))
        else:
            nodes.append(Node(node.op, "float64" if wide else node.dtype, args, node.value, node.line))
        places.append(len(nodes) - 1)
    return Program(tuple(nodes), tuple(places[o] for o in program.outputs), program.captures, program.scalars)
