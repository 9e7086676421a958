"""Masks that are given as tables: of blocks, of block numbers, of every position."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError
from ..factory_arguments import check_bool_table, check_count, check_int_table, check_per_axis, check_range
from ..mods import MaskMod, mask_mod
from ..tables import by_position


def block_sparse(blocks: Tensor, block: int | tuple[int, int] = 128) -> MaskMod:
    """Whole blocks are visible or not: ``blocks[i // rows, j // columns]``.

    Args:
        blocks: bool ``[rows, columns]``, ``[H, rows, columns]`` or ``[B, H, rows, columns]``; a dimension of size 1
            stands for any size.
        block: ``(rows, columns)`` of a block, or one number for both.

    Raises:
        InputError: a wrong shape, a block below 1.
        KindError: no bools.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(4), torch.tensor(0)
        >>> block_sparse(torch.tensor([[True, False], [True, True]]), 2)(zero, zero, i[:, None], i).int()
        tensor([[1, 1, 0, 0],
                [1, 1, 0, 0],
                [1, 1, 1, 1],
                [1, 1, 1, 1]], dtype=torch.int32)

    Reference:
        Gray et al. 2017 (block-sparse kernels); Child et al. 2019 (Sparse Transformers), section 5.5.
    """
    shapes = "[rows, columns], [H, rows, columns] or [B, H, rows, columns]"
    read = by_position(check_bool_table("blocks", blocks, shapes, [2, 3, 4]))
    rows, columns = check_per_axis("block", block, 2)
    return mask_mod(lambda b, h, q_idx, kv_idx: read(b, h, q_idx // rows, kv_idx // columns))


def topk_blocks(indices: Tensor, block: int | tuple[int, int] = 128, *, columns: int | None = None) -> MaskMod:
    """Each block of queries sees the blocks of keys whose numbers are listed.

    Args:
        indices: integers ``[rows, n]``, ``[H, rows, n]`` or ``[B, H, rows, n]``, in any order; −1 stands for none.
        block: ``(rows, columns)`` of a block, or one number for both.
        columns: number of blocks of keys; default: up to the largest that is listed, for which this call waits if
            ``indices`` lie on another device than the CPU.

    Raises:
        InputError: a wrong shape, numbers below −1 or not below ``columns`` (checked on the CPU only).
        KindError: no integers.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(4), torch.tensor(0)
        >>> topk_blocks(torch.tensor([[0, -1], [1, 0]]), 2)(zero, zero, i[:, None], i).int()
        tensor([[1, 1, 0, 0],
                [1, 1, 0, 0],
                [1, 1, 1, 1],
                [1, 1, 1, 1]], dtype=torch.int32)

    Reference:
        Lu et al. 2025 (MoBA), section 2.2; Tang et al. 2024 (Quest), section 3.3.
    """
    shapes = "[rows, n], [H, rows, n] or [B, H, rows, n]"
    table = check_int_table("indices", indices, shapes, [2, 3, 4])
    if columns is None:
        columns = int(table.max()) + 1 if table.numel() else 0
    columns = check_count("columns", columns)
    check_range("indices", table, -1, columns - 1)
    # One more column takes what is listed as none.
    seen = torch.zeros(*table.shape[:-1], columns + 1, dtype=torch.bool, device=table.device)
    seen.scatter_(-1, torch.where(table < 0, columns, table).long(), True)
    return block_sparse(seen[..., :columns].contiguous(), block)


def from_dense(mask: Tensor) -> MaskMod:
    """A mask that is there, position by position.

    Args:
        mask: bool ``[L, S]``, ``[H, L, S]`` or ``[B, H, L, S]``; a dimension of size 1 stands for any size, so
            ``[B, 1, 1, S]`` says which keys a sequence has.

    Raises:
        InputError: a wrong shape.
        KindError: no bools.

    Example:
        >>> import torch
        >>> zero = torch.tensor(0)
        >>> from_dense(torch.tensor([[True, False, True]]))(zero, zero, torch.tensor(5), torch.arange(3)).int()
        tensor([1, 0, 1], dtype=torch.int32)

    Reference:
        ``attn_mask`` of ``torch.nn.functional.scaled_dot_product_attention``.
    """
    read = by_position(check_bool_table("mask", mask, "[L, S], [H, L, S] or [B, H, L, S]", [2, 3, 4]))
    if mask.numel() == 0:
        raise InputError(f"mask must not be empty, got {list(mask.shape)}")
    return mask_mod(lambda b, h, q_idx, kv_idx: read(b, h, q_idx, kv_idx))
