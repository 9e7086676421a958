"""Windows with tokens that see all and are seen by all."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError
from ..factory_arguments import check_bool_table, check_count, check_int_table, check_range
from ..mods import MaskMod, mask_mod
from ..tables import Read, by_token
from .blocks import block_sparse


def global_local(w: int, n_global: int | None = None, *, is_global: Tensor | None = None) -> MaskMod:
    """``w`` neighbours on each side, and global tokens: ``|i - j| ≤ w or global(i) or global(j)``.

    Args:
        w: reach of the window on each side.
        n_global: the first so many tokens are global.
        is_global: instead, bool ``[S]`` or ``[B, S]``.

    Raises:
        InputError: negative numbers, both or none of ``n_global`` and ``is_global``, a wrong shape.
        KindError: no integer, no bools.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(4), torch.tensor(0)
        >>> global_local(0, 1)(zero, zero, i[:, None], i).int()
        tensor([[1, 1, 1, 1],
                [1, 1, 0, 0],
                [1, 0, 1, 0],
                [1, 0, 0, 1]], dtype=torch.int32)

    Reference:
        Beltagy et al. 2020 (Longformer), section 3.1; Ainslie et al. 2020 (ETC), section 3.2.
    """
    w, is_marked = check_count("w", w), _marked(n_global, is_global)

    def mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        near = (q_idx - kv_idx <= w) & (kv_idx - q_idx <= w)
        return near | is_marked(b, q_idx) | is_marked(b, kv_idx)

    return mask_mod(mask)


def longformer(
    window: int,
    n_global: int | None = None,
    *,
    is_global: Tensor | None = None,
    dilation: int | Tensor = 1,
) -> MaskMod:
    """``window // 2`` neighbours on each side, every ``dilation``-th token, and global tokens.

    ``(|i - j| ≤ window // 2 · d and (i - j) % d = 0) or global(i) or global(j)``.

    Args:
        window: number of neighbours, both sides together.
        n_global: the first so many tokens are global.
        is_global: instead, bool ``[S]`` or ``[B, S]``.
        dilation: ``d``, or ``[H]``, one a head.

    Raises:
        InputError: numbers below 0 (dilation: below 1), both or none of ``n_global`` and ``is_global``, a wrong shape.
        KindError: no integer, no bools.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(6), torch.tensor(0)
        >>> longformer(2, 1, dilation=2)(zero, zero, torch.tensor(4), i).int()
        tensor([1, 0, 1, 0, 1, 0], dtype=torch.int32)

    Reference:
        Beltagy et al. 2020 (Longformer), section 3.1.
    """
    side, is_marked = check_count("window", window) // 2, _marked(n_global, is_global)
    if isinstance(dilation, Tensor) and dilation.dim():
        steps = check_int_table("dilation", dilation, "[H]", [1])
        check_range("dilation", steps, 1)

        def step(h: Tensor) -> int | Tensor:
            return steps[h]
    else:
        one = check_count("dilation", dilation, 1)
        if one == 1:
            return global_local(side, n_global, is_global=is_global)

        def step(h: Tensor) -> int | Tensor:
            return one

    def mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        d, back = step(h), q_idx - kv_idx
        near = (back <= side * d) & (-back <= side * d) & (back % d == 0)
        return near | is_marked(b, q_idx) | is_marked(b, kv_idx)

    return mask_mod(mask)


def bigbird(
    length: int,
    block: int = 64,
    *,
    n_window: int = 3,
    n_global: int = 2,
    n_random: int = 3,
    heads: int = 1,
    seed: int = 0,
) -> MaskMod:
    """Blocks of tokens: neighbours, global ones, and random ones that differ from head to head.

    Args:
        length: number of tokens.
        block: tokens a block.
        n_window: neighbouring blocks a block sees, itself included; odd.
        n_global: the first so many blocks see all and are seen by all.
        n_random: further blocks a block sees, drawn without replacement among the others (all of them, if they are
            fewer).
        heads: number of heads with their own draw; 1: all have the same.
        seed: of the draw.

    Raises:
        InputError: numbers too small, ``n_window`` even.
        KindError: no integer.

    Example:
        >>> import torch
        >>> mask = bigbird(10, 1, n_window=1, n_global=1, n_random=2)
        >>> i, zero = torch.arange(10), torch.tensor(0)
        >>> mask(zero, zero, i[:, None], i).sum(1)
        tensor([10,  4,  4,  4,  4,  4,  4,  4,  4,  4])

    Reference:
        Zaheer et al. 2020 (BigBird), section 2 and appendix D.
    """
    length, block = check_count("length", length, 1), check_count("block", block, 1)
    n_window, n_global = check_count("n_window", n_window, 1), check_count("n_global", n_global)
    n_random, heads = check_count("n_random", n_random), check_count("heads", heads, 1)
    if n_window % 2 == 0:
        raise InputError(f"n_window must be odd: a block and as many on each side, got {n_window}")
    count = -(-length // block)
    number = torch.arange(count)
    fixed = (number[:, None] - number).abs() <= n_window // 2
    fixed |= (number[:, None] < n_global) | (number < n_global)
    generator = torch.Generator().manual_seed(check_count("seed", seed))
    draw = torch.rand(heads, count, count, generator=generator, device="cpu").to(number.device)
    order = draw.masked_fill(fixed, -1).argsort(-1, descending=True)
    chosen = torch.zeros(heads, count, count, dtype=torch.bool)
    chosen.scatter_(-1, order[..., :n_random], True)
    return block_sparse((fixed | chosen)[0] if heads == 1 else fixed | chosen, block)


def _marked(n_global: int | None, is_global: Tensor | None) -> Read:
    """``(b, x) -> bool``: whether token ``x`` is global."""
    if (n_global is None) == (is_global is None):
        given = "neither" if n_global is None else "both"
        raise InputError(f"one of n_global and is_global must be given, got {given}")
    if is_global is not None:
        return by_token(check_bool_table("is_global", is_global, "[S] or [B, S]", [1, 2]))
    first = check_count("n_global", n_global)
    return lambda b, x: x < first
