"""``paged_append``: new keys and values into their pages.

It changes the pool, and its schema says so: code that writes to pages and reads them can be compiled.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..fp8 import as_bits, rounded_to_fp8
from ..kernels.choose import why_not_triton
from .library import LIBRARY
from .plain import on_device, plain_eager

LIBRARY.define(
    "paged_append(Tensor(a!) k_pages, Tensor(b!) v_pages, Tensor table, Tensor lengths, Tensor slots, Tensor k, "
    "Tensor v, Tensor? descales) -> ()"
)


def paged_append(
    k_pages: Tensor,
    v_pages: Tensor,
    table: Tensor,
    lengths: Tensor,
    slots: Tensor,
    k: Tensor,
    v: Tensor,
    descales: Tensor | None = None,
) -> None:
    """Write the last tokens of slots.

    Args:
        k_pages: ``[pages, page size, Hkv, E]``.
        v_pages: ``[pages, page size, Hkv, Ev]``.
        table: int32 ``[slots, pages of a sequence]``.
        lengths: int32 ``[slots]``, the new tokens counted in.
        slots: int32 ``[n]``, distinct.
        k: ``[n, Hkv, L, E]``.
        v: ``[n, Hkv, L, Ev]``.
        descales: float32 ``[2, Hkv]``, where pages are of 8 bits: what is stored is a number over that of its head.
    """
    tensors = (k_pages, v_pages, table, lengths, slots, k.detach(), v.detach(), descales)
    run = _write if plain_eager(*tensors) else torch.ops.torch_flexattn.paged_append
    run(*tensors)


def _write(
    k_pages: Tensor,
    v_pages: Tensor,
    table: Tensor,
    lengths: Tensor,
    slots: Tensor,
    k: Tensor,
    v: Tensor,
    descales: Tensor | None,
) -> None:
    if k_pages.is_cuda and why_not_triton(k_pages.device, k.dtype, check=False) is None:
        from ..kernels.triton import write_pages

        with on_device(k):
            write_pages.write(k, v, k_pages, v_pages, table, lengths, slots, descales)
        return
    if descales is not None:
        k, v = (as_bits(rounded_to_fp8(t, of[:, None, None])) for t, of in zip((k, v), descales))
    tokens, size = k.shape[2], k_pages.shape[1]
    place = (lengths[slots] - tokens)[:, None] + torch.arange(tokens, dtype=torch.int32, device=k.device)
    page = table[slots[:, None], place // size]
    row = (page.long() * size + place % size).flatten()
    for pages, new in zip(map(as_bits, (k_pages, v_pages)), (k, v)):
        pages.view(-1, *pages.shape[2:]).index_copy_(0, row, new.transpose(1, 2).flatten(0, 1))


def _fake(k_pages: Tensor, v_pages: Tensor, *rest: Tensor | None) -> None:
    """Nothing comes back."""


for device in ("CPU", "CUDA"):
    LIBRARY.impl("paged_append", _write, device)
torch.library.register_fake("torch_flexattn::paged_append", _fake, lib=LIBRARY)
