"""A block mask as a node of PyTorch's trees: its tensors are leaves, everything else is what must be equal.

So ``torch.compile`` and ``torch.export`` take masks as arguments, and the program travels as text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch.utils._pytree as pytree

from .mods import MaskMod
from .program import parse


def register(kind: type) -> None:
    """Make ``BlockMask`` a node.

    Args:
        kind: the class.
    """

    def unflatten(leaves: Iterable[Any], context: tuple[Any, ...]) -> Any:
        row_ptr, runs, *captures = leaves
        shape, block, listed, room, fixed = context
        mod = None if fixed is None else MaskMod(fixed[0], tuple(captures), fixed[1])
        return kind(row_ptr, runs, shape, block, mod, listed, room)

    pytree.register_pytree_node(
        kind,
        _flatten,
        unflatten,
        serialized_type_name="torch_flexattn.BlockMask",
        flatten_with_keys_fn=_flatten_with_keys,
        to_dumpable_context=_dumped,
        from_dumpable_context=_loaded,
    )


def _flatten(mask: Any) -> tuple[list[Any], tuple[Any, ...]]:
    mod = mask.mod
    leaves = [mask.row_ptr, mask.runs, *(() if mod is None else mod.captures)]
    fixed = None if mod is None else (mod.program, mod.scalars)
    return leaves, (mask.shape, mask.block, mask.listed, mask.room, fixed)


def _flatten_with_keys(mask: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
    leaves, context = _flatten(mask)
    names = [pytree.GetAttrKey("row_ptr"), pytree.GetAttrKey("runs")]
    keys = [*names, *(pytree.SequenceKey(n) for n in range(len(leaves) - len(names)))]
    return list(zip(keys, leaves, strict=True)), context


def _dumped(context: tuple[Any, ...]) -> list[Any]:
    shape, block, listed, room, fixed = context
    return [list(shape), list(block), listed, room, None if fixed is None else [fixed[0].text, list(fixed[1])]]


def _loaded(dumped: list[Any]) -> tuple[Any, ...]:
    shape, block, listed, room, fixed = dumped
    return tuple(shape), tuple(block), listed, room, None if fixed is None else (parse(fixed[0]), tuple(fixed[1]))
