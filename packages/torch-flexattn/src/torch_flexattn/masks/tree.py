"""Trees of guessed tokens, which one pass verifies."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError
from ..factory_arguments import IntTable, check_int_table, check_range, is_read
from ..mods import MaskMod, mask_mod
from ..tables import by_batch, by_token
from .causal import per_batch


def tree(parents: IntTable, prefix_len: int | IntTable = 0) -> MaskMod:
    """A node sees the tokens before the tree, its ancestors and itself; the tokens before the tree are causal.

    Token ``prefix_len + a`` is node ``a``. Where queries are the nodes alone, they begin at ``q_offset=prefix_len``.

    Args:
        parents: ``[n]`` or ``[B, n]``: of each node, its parent, which comes before it; −1: a root.
        prefix_len: number of tokens before the tree, or ``[B]``.

    Raises:
        InputError: a parent that does not come before its node, or is below −1; a wrong shape; a negative prefix.
        KindError: no integers.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(4), torch.tensor(0)
        >>> tree([-1, 0, 0, 1])(zero, zero, i[:, None], i).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [1, 0, 1, 0],
                [1, 1, 0, 1]], dtype=torch.int32)

    Reference:
        Miao et al. 2024 (SpecInfer), section 4.2; Cai et al. 2024 (Medusa), section 2.1.2.
    """
    table = check_int_table("parents", parents, "[n] or [B, n]", [1, 2])
    check_range("parents", table, -1)
    if is_read(table) and bool((table >= torch.arange(table.shape[-1], dtype=torch.int32, device=table.device)).any()):
        wrong = (table >= torch.arange(table.shape[-1], dtype=torch.int32, device=table.device)).nonzero()[0]
        raise InputError(f"parents must come before their nodes, got {int(table[tuple(wrong)])} of {int(wrong[-1])}")
    first = by_batch(per_batch("prefix_len", prefix_len))
    related = _ancestors(table)
    if table.shape[-1] <= 64:
        bits = by_token(_packed(related, 64).squeeze(-1))

        def mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            node, other = q_idx - first(b), kv_idx - first(b)
            own = (bits(b, node.clamp(min=0)) >> other.clamp(0, 63)) & 1  # kernels have no shift by other than 0 … 63
            return (q_idx >= kv_idx) & ((other < 0) | (own != 0))

        return mask_mod(mask)
    words = _packed(related, 32).to(torch.int32)
    one_tree = words.dim() == 2

    def mask_of_many(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        node, other = (q_idx - first(b)).clamp(min=0), kv_idx - first(b)
        place = other.clamp(min=0)
        word = words[node, place // 32] if one_tree else words[b, node, place // 32]
        return (q_idx >= kv_idx) & ((other < 0) | ((word >> (place % 32)) & 1 != 0))

    return mask_mod(mask_of_many)


def _ancestors(parents: Tensor) -> Tensor:
    """Bool ``[..., n, n]``: whether the second node is the first or an ancestor of it."""
    n = parents.shape[-1]
    related = torch.zeros(*parents.shape, n + 1, device=parents.device)
    related.scatter_(-1, torch.where(parents < 0, n, parents).long().unsqueeze(-1), 1)  # roots: one column more
    related = related[..., :n] + torch.eye(n, device=parents.device)
    for _ in range(max(n - 1, 0).bit_length()):  # each step doubles the distance that is covered
        related = (related @ related > 0).float()
    return related > 0


def _packed(related: Tensor, width: int) -> Tensor:
    """int64 ``[..., n, words]``: bit ``m % width`` of word ``m // width`` for each second node ``m``."""
    n = related.shape[-1]
    words = -(-n // width)
    bits = torch.zeros(*related.shape[:-1], words * width, dtype=torch.int64, device=related.device)
    bits[..., :n] = related
    place = torch.arange(width, device=related.device)
    packed = (bits.view(*related.shape[:-1], words, width) << place).sum(-1)
    return packed if width == 64 else torch.where(packed < 2**31, packed, packed - 2**32)
