"""FlashAttention's own packages, where they are installed: version 2 (``flash-attn``) and 3.

Both take ``[B, S, H, E]``, in which the tensors are laid beforehand, and know no mask beside the future, windows and
documents, no score modification beside a cap. Version 3 is found under the name of its own build,
``flash_attn_interface``, or of the wheel of the forward pass alone, ``fa3_fwd_interface``.

Reference:
    Dao, *FlashAttention-2*, 2023; Shah et al., *FlashAttention-3*, 2024.
"""

from __future__ import annotations

import dataclasses
import importlib
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .pages import pages_of
from .peer import Peer, Run, needs_gpu
from .task import TakesNoPart, Task
from .variants import CAP, WINDOW

MODULES = {"fa2": ("flash_attn",), "fa3": ("flash_attn_interface", "fa3_fwd_interface")}
PLAIN: dict[str, dict[str, Any]] = {
    "noop": {},
    "causal": {"causal": True},
    "sliding_window": {"causal": True, "window_size": (WINDOW - 1, 0)},
    "softcap": {"softcap": CAP},
    "document": {"causal": True},
}
"""Arguments that mean our modifications; documents are sequences of different lengths in one row."""


def module_of(version: str) -> Any:
    """The module of a version.

    Raises:
        ImportError: none of its names can be imported; says why.
    """
    reasons = []
    for name in MODULES[version]:
        try:
            return importlib.import_module(name)
        except Exception as error:  # a wheel made for another PyTorch fails in any way
            reasons.append(f"{name}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
    raise ImportError(f"cannot be imported ({'; '.join(reasons)})")


def absent(version: str, device: torch.device) -> str:
    """Why a version cannot be measured on a device."""
    try:
        module_of(version)
    except ImportError as error:
        return str(error)
    return needs_gpu(device)


def laid(task: Task) -> Task:
    """In memory as ``[B, S, H, E]``, in shape as before, with leaves of its own."""

    def turned(features: Tensor) -> Tensor:
        found = features.detach().transpose(1, 2).contiguous().transpose(1, 2)
        return found.requires_grad_(features.requires_grad)

    return dataclasses.replace(task, q=turned(task.q), k=turned(task.k), v=turned(task.v))


def prepare(version: str, task: Task) -> Run:
    """The call of a version.

    Raises:
        TakesNoPart: it has no place for the modification, or for such pages.
    """
    case, of, module = task.case, task.variant, module_of(version)
    if case.mod not in PLAIN or (case.mod == "document" and case.queries != case.keys):
        raise TakesNoPart(f"it has no place for {case.mod}")
    named = PLAIN[case.mod]
    if case.page:
        if version == "fa2":
            raise TakesNoPart(f"its pages are multiples of 256 keys, not {case.page}")
        return _paged(module, named, task)
    q, k, v = (t.transpose(1, 2) for t in (task.q, task.k, task.v))
    if case.queries < case.keys and not case.backward:
        return lambda: _out(module.flash_attn_with_kvcache(q, k, v, **named))
    if case.mod == "document":
        assert of.bounds is not None
        starts = torch.arange(case.batch, dtype=torch.int32, device=q.device) * case.keys
        inside = (starts[:, None] + of.bounds[:-1]).flatten()
        bounds = torch.cat([inside, inside.new_full((1,), case.batch * case.keys)])
        longest = int(of.bounds.diff().max())
        rows = (t.flatten(0, 1) for t in (q, k, v))
        run = partial(module.flash_attn_varlen_func, *rows, bounds, bounds, longest, longest, **named)
        return lambda: _out(run().unflatten(0, (case.batch, case.keys)))
    return lambda: _out(module.flash_attn_func(q, k, v, **named))


def _paged(module: Any, named: dict[str, Any], task: Task) -> Run:
    case = task.case
    cut = pages_of(task, case.page, mixed=True)
    lens = torch.full((case.batch,), case.keys, dtype=torch.int32, device=task.q.device)
    q = task.q.transpose(1, 2)
    return lambda: _out(
        module.flash_attn_with_kvcache(q, cut.k, cut.v, cache_seqlens=lens, page_table=cut.table, **named)
    )


def _out(found: Any) -> Tensor:
    """``[B, H, S, E]``; some builds return sums beside it."""
    return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)


PEERS = {version: Peer(partial(prepare, version), partial(absent, version), laid) for version in MODULES}
