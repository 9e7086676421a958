"""Several sequences in one row, or rows that are padded."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from ..errors import InputError
from ..factory_arguments import (
    IntTable,
    check_bool_table,
    check_choice,
    check_count,
    check_increasing,
    check_int_table,
    check_range,
)
from ..mods import MaskMod, mask_mod
from ..tables import by_batch, by_token, in_single_runs, run_bounds, segment_bounds


def document(
    cu_seqlens: IntTable | None = None,
    *,
    doc_ids: IntTable | None = None,
    causal: bool = False,
    total: int | None = None,
) -> MaskMod:
    """A query sees the keys of its own document: ``doc(i) = doc(j)``, and, if ``causal``, ``i ≥ j``.

    Documents that are not interrupted become an interval a query, ``start(i) ≤ j < end(i)``.

    Args:
        cu_seqlens: ``[n + 1]``: where each of ``n`` documents begins, and where the last one ends.
        doc_ids: instead, the number of the document of each token, ``[S]`` or ``[B, S]``. Where the tensor lies on
            another device than the CPU, this call waits for it.
        causal: no look into the future.
        total: number of tokens; default: the last of ``cu_seqlens``, for which this call waits if that lies on another
            device than the CPU.

    Raises:
        InputError: both or none of ``cu_seqlens`` and ``doc_ids``; bounds that do not begin with 0, fall, or do not end
            with ``total`` (checked on the CPU only); a wrong shape.
        KindError: no integers.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(4), torch.tensor(0)
        >>> document([0, 1, 4], causal=True)(zero, zero, i[:, None], i).int()
        tensor([[1, 0, 0, 0],
                [0, 1, 0, 0],
                [0, 1, 1, 0],
                [0, 1, 1, 1]], dtype=torch.int32)

    Reference:
        Krell et al. 2021 (efficient sequence packing), section 3.2; FlexAttention (MLSys 2025), section 3.
    """
    if (cu_seqlens is None) == (doc_ids is None):
        given = "neither" if cu_seqlens is None else "both"
        raise InputError(f"one of cu_seqlens and doc_ids must be given, got {given}")
    if cu_seqlens is not None:
        bounds = check_int_table("cu_seqlens", cu_seqlens, "[n + 1]", [1])
        total = None if total is None else check_count("total", total)
        check_increasing("cu_seqlens", bounds, reach=total)
        starts, ends = segment_bounds(bounds, int(bounds[-1]) if total is None else total)
    else:
        ids = check_int_table("doc_ids", doc_ids, "[S] or [B, S]", [1, 2])  # type: ignore[arg-type]
        if total is not None:
            raise InputError(f"total goes with cu_seqlens; doc_ids has one number a token, got total={total}")
        if not in_single_runs(ids):
            return _scattered(ids, causal)
        starts, ends = run_bounds(ids)
    start, end = by_token(starts), by_token(ends)
    if causal:
        return mask_mod(lambda b, h, q_idx, kv_idx: (kv_idx >= start(b, q_idx)) & (q_idx >= kv_idx))
    return mask_mod(lambda b, h, q_idx, kv_idx: (kv_idx >= start(b, q_idx)) & (kv_idx < end(b, q_idx)))


def _scattered(ids: Tensor, causal: bool) -> MaskMod:
    doc = by_token(ids)
    if causal:
        return mask_mod(lambda b, h, q_idx, kv_idx: (doc(b, q_idx) == doc(b, kv_idx)) & (q_idx >= kv_idx))
    return mask_mod(lambda b, h, q_idx, kv_idx: doc(b, q_idx) == doc(b, kv_idx))


def padding(lens: IntTable) -> MaskMod:
    """Keys after the end of their sequence are not seen: ``j < lens[b]``.

    Args:
        lens: ``[B]``.

    Raises:
        InputError: negative, or not ``[B]``.
        KindError: no integers.

    Example:
        >>> import torch
        >>> b, j, zero = torch.arange(2)[:, None], torch.arange(3), torch.tensor(0)
        >>> padding([3, 1])(b, zero, zero, j).int()
        tensor([[1, 1, 1],
                [1, 0, 0]], dtype=torch.int32)

    Reference:
        ``key_padding_mask`` of ``torch.nn.MultiheadAttention``, with lengths.
    """
    table = check_int_table("lens", lens, "[B]", [1])
    check_range("lens", table, 0)
    length = by_batch(table)
    return mask_mod(lambda b, h, q_idx, kv_idx: kv_idx < length(b))


def shared_prefix(
    prefix_len: int, lens: IntTable, *, prefix: Literal["bidirectional", "causal"] = "bidirectional"
) -> MaskMod:
    """One prefix, then several continuations that do not see each other: ``j < P or (group(i) = group(j) and i ≥ j)``.

    Args:
        prefix_len: ``P``, length of the prefix.
        lens: ``[n]``: lengths of the continuations, which follow the prefix in one row.
        prefix: whether its tokens see all of it, or, as a decoder that computed it alone, only what is before them.

    Raises:
        InputError: negative lengths, another ``prefix``.
        KindError: no integers.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(4), torch.tensor(0)
        >>> shared_prefix(1, [1, 2])(zero, zero, i[:, None], i).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [1, 0, 1, 0],
                [1, 0, 1, 1]], dtype=torch.int32)

    Reference:
        Juravsky et al. 2024 (Hydragen), section 3.1.
    """
    prefix_len = check_count("prefix_len", prefix_len)
    sizes = check_int_table("lens", lens, "[n]", [1])
    check_range("lens", sizes, 0)
    check_choice("prefix", prefix, ("bidirectional", "causal"))
    bounds = sizes.new_zeros(sizes.numel() + 2)
    bounds[1] = prefix_len
    bounds[2:] = prefix_len + sizes.cumsum(0)
    start, _ = segment_bounds(bounds, int(bounds[-1]))
    if prefix == "causal":
        return mask_mod(
            lambda b, h, q_idx, kv_idx: ((kv_idx < prefix_len) | (kv_idx >= start[q_idx])) & (q_idx >= kv_idx)
        )
    return mask_mod(lambda b, h, q_idx, kv_idx: (kv_idx < prefix_len) | ((kv_idx >= start[q_idx]) & (q_idx >= kv_idx)))


def multi_turn_packed(cu_seqlens: IntTable, cu_turns: IntTable, transient: Tensor | None = None) -> MaskMod:
    """Conversations of several turns in one row; a turn may hold tokens that later turns no longer see.

    Causal inside a conversation; a ``transient`` key (of a reasoning that is dropped once its turn is over) is seen by
    its own turn alone.

    Args:
        cu_seqlens: ``[n + 1]``: where each conversation begins, and where the last one ends.
        cu_turns: ``[m + 1]``: likewise of the turns; each conversation begins with a new one.
        transient: bool ``[S]``; default: none is.

    Raises:
        InputError: bounds that do not begin with 0, fall, or do not fit together (checked on the CPU only); a
            ``transient`` of another length.
        KindError: no integers, no bools.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(4), torch.tensor(0)
        >>> mask = multi_turn_packed([0, 4], [0, 2, 4], torch.tensor([False, True, False, False]))
        >>> mask(zero, zero, i[:, None], i).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [1, 0, 1, 0],
                [1, 0, 1, 1]], dtype=torch.int32)

    Reference:
        Krell et al. 2021 (packing), and how chat templates drop earlier turns' reasoning.
    """
    conversations = check_int_table("cu_seqlens", cu_seqlens, "[n + 1]", [1])
    turns = check_int_table("cu_turns", cu_turns, "[m + 1]", [1])
    check_increasing("cu_seqlens", conversations)
    total = int(conversations[-1])
    check_increasing("cu_turns", turns, reach=total)
    if conversations.device.type == turns.device.type == "cpu":
        missing = [c for c in conversations.tolist() if c not in set(turns.tolist())]
        if missing:
            raise InputError(f"cu_turns must hold every bound of cu_seqlens, got none at {missing[0]}")
    start, _ = segment_bounds(conversations, total)
    if transient is None:
        return mask_mod(lambda b, h, q_idx, kv_idx: (kv_idx >= start[q_idx]) & (q_idx >= kv_idx))
    dropped = check_bool_table("transient", transient, "[S]", [1])
    if dropped.shape[0] != total:
        raise InputError(f"transient must have one value for each of {total} tokens, got {list(dropped.shape)}")
    turn_start, _ = segment_bounds(turns, total)

    def mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        kept = (kv_idx >= start[q_idx]) & ~dropped[kv_idx]
        return (q_idx >= kv_idx) & (kept | (kv_idx >= turn_start[q_idx]))

    return mask_mod(mask)
