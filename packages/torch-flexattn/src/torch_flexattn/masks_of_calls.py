"""The block mask of a call, built once for a mask and remembered.

Equal programs over the same captured tensors, unchanged since (their version counters tell), with the same numbers and
lengths are the same mask, whichever function they came from.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes  # no public name

from .assembly import Assembly
from .block_mask import BlockMask
from .build import built
from .mods import MaskMod
from .reindex import Offset, reindexed
from .stats import COUNTS, building_mask
from .unwrapped import is_transformed, unwrapped

KEPT = 64
"""Masks that are remembered."""
KEPT_BYTES = 1 << 28
"""Of the tensors that they capture, which are kept alive with them."""

_masks: OrderedDict[Any, tuple[BlockMask, list[Tensor]]] = OrderedDict()
"""Each with the tensors that its key names by address."""
_lock = threading.Lock()
_generation = 0


def block_mask_of(
    mod: MaskMod,
    shape: tuple[int, int, int, int],
    block: tuple[int, int],
    device: torch.device,
    q_offset: Tensor | int = 0,
    check: bool = False,
) -> BlockMask:
    """The blocks of a mask whose queries are numbered from ``q_offset`` on; ``mod`` of the result is the mask itself.

    Args:
        mod: the mask.
        shape: batches, heads, queries, keys of the call.
        block: queries and keys of a block.
        device: where the call runs.
        q_offset: one number, or int ``[B]``.
        check: refuse visible positions that read a captured tensor out of range.
    """
    if is_transformed():  # what those wrapped is what a mask can be remembered by
        mod = MaskMod(mod.program, tuple(map(unwrapped, mod.captures)), mod.scalars)
        q_offset = unwrapped(q_offset) if isinstance(q_offset, Tensor) else q_offset
    tensors = [*mod.captures, *([] if isinstance(q_offset, int) else [q_offset])]
    known = all(not t.is_inference() for t in tensors)
    offset = q_offset if isinstance(q_offset, int) else None
    key = (
        mod.program, mod.scalars, offset, shape, block, device, check, torch.compiler.is_compiling(),
        *((id(t), t._version, tuple(t.shape)) for t in tensors if known),
    )  # fmt: skip
    if known:
        with _lock:
            found = _masks.get(key)
            if found is not None:
                _masks.move_to_end(key)
                COUNTS.masks_reused += 1
                return found[0]
    # Who watches operators sees every call alike: selective checkpointing keeps results by their order, and when it
    # computes a call again, its mask is known.
    with building_mask(device), _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
        seen = shifted(mod, q_offset)
        needs = seen.dependencies
        small = (shape[0] if "b" in needs else 1, shape[1] if "h" in needs else 1, *shape[2:])
        found = built(seen.to(device), small, block, device, check=check)
        if found.mod is not None and found.mod.program != mod.program:
            own = BlockMask(found.row_ptr, found.runs, found.shape, block, mod.to(device), found.listed)
            found = own
    if known:
        with _lock:
            _masks[key] = found, tensors
            while len(_masks) > 1 and (len(_masks) > KEPT or _captured_bytes() > KEPT_BYTES):
                _masks.popitem(last=False)
    return found


def _captured_bytes() -> int:
    """Of the tensors kept for remembered masks, each once."""
    held = {id(t): t.untyped_storage().nbytes() for _, tensors in _masks.values() for t in tensors}
    return sum(held.values())


def forget_masks() -> None:
    """Build every mask anew from now on.

    Example:
        >>> forget_masks()
    """
    global _generation
    with _lock:
        _masks.clear()
        _generation += 1


def generation() -> int:
    """How often masks were forgotten: what was remembered before counts no longer."""
    return _generation


def shifted(mod: MaskMod, q_offset: Tensor | int) -> MaskMod:
    """The mask as it looks to queries numbered from 0, where a call numbers them from ``q_offset`` on."""
    if isinstance(q_offset, int):
        return reindexed(mod, {"q": Offset(q_offset)})
    parts = Assembly()
    own = parts.gather(q_offset.to(torch.int32), parts.builder.add("b", "int32"))
    query = parts.builder.add("add", "int32", parts.builder.add("q", "int32"), own)
    outputs = parts.append(mod, q=query)
    return MaskMod(*parts.finish(*outputs))
