"""Calls like one before: what was checked and found then holds as long as nothing but data changes.

Checks, the recorded programs and the blocks of a mask cost a multiple of a launch. They depend on the shapes, strides
and types of the tensors, on the modifications (which do not change) and on the data of what a mask captures, whose
version counters tell of changes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import masks_of_calls
from ..block_mask import BlockMask
from ..call import Call
from ..filled import Mod
from ..mods import MaskMod, ScoreMod
from ..ops.plain import PLAIN, is_autocast_on, needs_grad
from ..stats import COUNTS
from ..unwrapped import is_transformed

KEPT = 64
"""Calls that are remembered."""
LARGEST = 1 << 24
"""Bytes beyond which nothing is remembered that would keep a captured tensor or a mask alive."""
KNOWN = (MaskMod, ScoreMod, BlockMask, type(None))

_calls: OrderedDict[Hashable, Remembered] = OrderedDict()
_seen: OrderedDict[Hashable, None] = OrderedDict()
"""Keys of calls whose masks had no blocks yet."""
_lock = threading.Lock()


@dataclass(frozen=True, eq=False)
class Remembered:
    """A call and what it was made of.

    Attributes:
        call: the call.
        captures: tensors that its modifications capture, with shape, strides and, of masks, version.
        reuses: whether the blocks of its mask were found for it.
    """

    call: Call
    captures: list[tuple[Tensor, tuple[int, ...], tuple[int, ...], int | None]]
    reuses: bool


def key_of(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, mods: tuple[Any, ...], q_offset: Any, kv_lens: Any,
    dropout_p: Any, scale: Any, *asked: Hashable,
) -> Any:  # fmt: skip
    """What calls like this one have in common; ``None`` where that cannot be told.

    Args:
        q: the queries.
        k: the keys.
        v: the values.
        sinks: of the call.
        mods: its score modification and masks; functions are not remembered, since what they read may change.
        q_offset: as of the call; tensors are not remembered, as are ``kv_lens``, dropout and its seeds.
        kv_lens: see above.
        dropout_p: see above.
        scale: of the products.
        asked: all else.
    """
    if kv_lens is not None or dropout_p != 0 or not (q_offset is None or type(q_offset) is int):
        return None
    if type(q) not in PLAIN or type(k) not in PLAIN or type(v) not in PLAIN:
        return None
    if q.is_nested or k.is_nested or v.is_nested:  # of the strided layout, whose sizes cannot be told
        return None
    for mod in mods:
        if type(mod) not in KNOWN:
            return None
    if torch.compiler.is_compiling() or is_autocast_on(q):
        return None
    score, kind = mods[0], None
    if sinks is not None:
        if type(sinks) not in PLAIN:
            return None
        kind = sinks.shape, sinks.stride(), sinks.dtype, sinks.device
    trained = needs_grad(q, k, v, sinks, *(() if score is None or not isinstance(score, Mod) else score.captures))
    return (
        q.shape, q.stride(), q.dtype, q.device, k.shape, k.stride(), k.dtype, k.device, v.shape, v.stride(), v.dtype,
        v.device, kind, mods, trained, q_offset, type(scale), scale, type(dropout_p), masks_of_calls.generation(),
        torch.backends.cuda.matmul.fp32_precision if q.dtype == torch.float32 and q.is_cuda else "", asked,
    )  # fmt: skip


def recall(key: Any) -> Call | None:
    """The call that was remembered under a key, if all that it was made of is unchanged."""
    found = _calls.get(key)
    if found is None:
        return None
    for tensor, shape, strides, version in found.captures:
        if tensor.shape != shape or tensor.stride() != strides or (version is not None and tensor._version != version):
            return None
    COUNTS.masks_reused += found.reuses
    return found.call


def is_repeated(key: Any) -> bool:
    """Whether a call like this one was made before, with a mask whose blocks the kernels looked for themselves."""
    return key in _seen


def remember(key: Any, call: Call, mods: tuple[Any, ...]) -> None:
    """Keep a call, unless its tensors cannot be watched or are large."""
    if is_transformed():
        return
    if isinstance(call.mask, MaskMod):
        with _lock:
            _seen[key] = None
            while len(_seen) > KEPT:
                _seen.popitem(last=False)
        return
    captures = []
    for mod in mods:
        of_mask = mod.mod if isinstance(mod, BlockMask) else mod
        for capture in of_mask.captures if isinstance(of_mask, Mod) else ():
            if capture.is_inference() or capture.untyped_storage().nbytes() > LARGEST:
                return
            version = None if isinstance(mod, ScoreMod) else capture._version
            captures.append((capture, tuple(capture.shape), capture.stride(), version))
    if isinstance(call.mask, BlockMask) and call.mask.memory_bytes() > LARGEST:
        return
    reuses = isinstance(call.mask, BlockMask) and call.mask not in mods
    with _lock:
        _calls[key] = Remembered(call, captures, reuses)
        while len(_calls) > KEPT:
            _calls.popitem(last=False)


def forget() -> None:
    """Look at every call anew from now on."""
    with _lock:
        _calls.clear()
        _seen.clear()
