"""Launcher of ``translate.cu``: bit blocks of a pattern on a GPU by four kernels, with one question to the device."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ...bitblock import WIDTH, Select, Translate, Translation, exclusive_scan
from ..device import on_device
from . import nvrtc
from .csr_spmm import INDEX

HEIGHT = 8
THREADS = 256


def translator_on(device: torch.device) -> Translate | None:
    """:func:`translate` where CUDA C++ runs on ``device``, else ``None``."""
    return translate if device.type == "cuda" and nvrtc.unavailable() is None else None


def macros(index: torch.dtype) -> tuple[tuple[str, str], ...]:
    """Those of the source, for pointers of type ``index``."""
    return ("Index", INDEX[index]), ("THREADS", str(THREADS))


def translate(rowptr: Tensor, col: Tensor, height: int, select: Select | None) -> Translation | None:
    """What sorting finds too, tensor by tensor; arguments as those of :func:`~torch_tcgnn.bitblock.build`.

    ``None``, and sorting has to do it, where windows are not of 8 rows, where there is no entry, and where the columns
    of a row do not strictly ascend: duplicates share a slot.
    """
    if height != HEIGHT or col.dtype != torch.int32 or col.shape[0] == 0:
        return None
    with on_device(col):
        return _translate(rowptr.contiguous(), col.contiguous(), select)


def _translate(rowptr: Tensor, col: Tensor, select: Select | None) -> Translation | None:
    launch = functools.partial(_launch, rowptr.dtype, col.device)
    num_rows, num_entries = rowptr.shape[0] - 1, col.shape[0]
    num_windows = -(-num_rows // HEIGHT)
    rows = rowptr.data_ptr(), col.data_ptr()
    fresh, unsorted = torch.empty_like(col, dtype=rowptr.dtype), rowptr.new_zeros(1, dtype=torch.int64)
    launch("bitblock_mark", num_entries, *rows, num_rows, num_entries, fresh.data_ptr(), unsorted.data_ptr())
    torch.cumsum(fresh, 0, dtype=fresh.dtype, out=fresh)
    entries, blocks = rowptr.new_empty(num_windows), rowptr.new_empty(num_windows, dtype=torch.int64)
    launch("bitblock_windows", num_windows, rows[0], fresh.data_ptr(), num_rows, entries.data_ptr(), blocks.data_ptr())

    chosen = win_slot = None
    if select is not None:
        chosen = select(entries, blocks)
        blocks = blocks * chosen
        win_slot = exclusive_scan(entries * chosen)
    win_ptr = exclusive_scan(blocks)
    asked = [unsorted[0], win_ptr[-1], blocks.amax()]
    if select is not None:
        asked += [win_slot[-1], chosen.sum()]
    is_unsorted, num_blocks, longest, *among_chosen = torch.stack(asked).tolist()
    if is_unsorted:
        return None
    num_slots, num_chosen = among_chosen or (num_entries, num_windows)

    block_col = col.new_full((num_blocks, WIDTH), -1)
    block_mask = rowptr.new_empty(num_blocks, 1, dtype=torch.int64)
    slot_entry = rowptr.new_empty(num_slots)
    block_slot = rowptr.new_empty(num_blocks + 1) if num_blocks else rowptr.new_zeros(1)
    if num_blocks:
        place = win_ptr.data_ptr()
        launch(
            "bitblock_columns", num_entries, *rows, fresh.data_ptr(), place, num_rows, num_entries, block_col.data_ptr()
        )
        launch(
            "bitblock_slots", num_blocks * HEIGHT, *rows, place, 0 if win_slot is None else win_slot.data_ptr(),
            block_col.data_ptr(), num_rows, num_windows, num_blocks, block_mask.data_ptr(), block_slot.data_ptr(),
            slot_entry.data_ptr(),
        )  # fmt: skip
    return Translation(
        win_ptr=win_ptr,
        longest=longest,
        chosen=None if num_chosen == num_windows else chosen,
        block_col=block_col,
        block_mask=block_mask,
        block_slot=block_slot,
        slot_entry=slot_entry,
        slot_ptr=slot_entry[:0],
    )


def _launch(index: torch.dtype, device: torch.device, name: str, threads: int, *arguments: int) -> None:
    config = nvrtc.launch_config((-(-threads // THREADS), 1, 1), THREADS)
    nvrtc.launcher()(nvrtc.current_stream(device), config, _kernel(index, name, device.index), *arguments)


@functools.cache
def _kernel(index: torch.dtype, name: str, device: int) -> Any:
    return nvrtc.kernel("translate.cu", macros(index), name, device)
