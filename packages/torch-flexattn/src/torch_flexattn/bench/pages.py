"""Keys and values in pages, as other packages take them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .task import Task


class Pages(NamedTuple):
    """Keys and values cut into pages.

    Attributes:
        k: ``[pages, page, Hkv, E]``.
        v: ``[pages, page, Hkv, E]``.
        table: int32 ``[B, n]``: the page of each stretch of keys.
        last: keys of the last page of a sequence.
    """

    k: Tensor
    v: Tensor
    table: Tensor
    last: int


def pages_of(task: Task, page: int, *, mixed: bool) -> Pages:
    """The keys and values of a task in pages; what is left of the last page is 0.

    Args:
        task: of which ``k`` and ``v`` are ``[B, Hkv, S, E]``.
        page: keys of a page.
        mixed: pages of the sequences take turns, as where all grow together; else each has its own side by side.
    """
    batch, _, keys, _ = task.k.shape
    count = -(-keys // page)
    number = torch.arange(batch * count, dtype=torch.int32, device=task.k.device)
    table = number.view(count, batch).t().contiguous() if mixed else number.view(batch, count)

    def cut(features: Tensor) -> Tensor:
        found = features.transpose(1, 2)
        found = torch.nn.functional.pad(found, (0, 0, 0, 0, 0, count * page - keys))
        found = found.unflatten(1, (count, page))
        return (found.transpose(0, 1) if mixed else found).flatten(0, 1).contiguous()

    return Pages(cut(task.k), cut(task.v), table, keys - (count - 1) * page)
