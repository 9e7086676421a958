"""What lies near: windows, with holes, with sinks, and chunks."""

from __future__ import annotations

from torch import Tensor

from ..errors import InputError
from ..factory_arguments import check_count
from ..mods import MaskMod, mask_mod


def sliding_window(w: int | None = None, *, left: int | None = None, right: int | None = None) -> MaskMod:
    """The last ``w`` keys up to the query's own, ``0 ≤ i - j < w``; or ``-right ≤ i - j ≤ left``.

    Args:
        w: number of keys; ``sliding_window(w)`` is ``sliding_window(left=w - 1, right=0)``.
        left: how many keys before the query's own are seen; ``None``: all.
        right: how many keys after it; ``None``: all.

    Raises:
        InputError: ``w`` below 1, a negative side, ``w`` together with a side, or none of the three.
        KindError: no integer.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(4), torch.tensor(0)
        >>> sliding_window(2)(zero, zero, i[:, None], i).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 1, 1, 0],
                [0, 0, 1, 1]], dtype=torch.int32)
        >>> sliding_window(left=0, right=1)(zero, zero, torch.tensor(2), i).int()
        tensor([0, 0, 1, 1], dtype=torch.int32)

    Reference:
        Beltagy et al. 2020 (Longformer), section 3.1; Jiang et al. 2023 (Mistral 7B), section 2.
    """
    if w is not None:
        if left is not None or right is not None:
            raise InputError(f"w stands for left=w - 1 and right=0, got w={w} with left={left} and right={right}")
        width = check_count("w", w, 1)
        return mask_mod(lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx < width))
    before = None if left is None else check_count("left", left)
    after = None if right is None else check_count("right", right)
    if before is not None and after is not None:
        return mask_mod(lambda b, h, q_idx, kv_idx: (kv_idx - q_idx <= after) & (q_idx - kv_idx <= before))
    if before is not None:
        return mask_mod(lambda b, h, q_idx, kv_idx: q_idx - kv_idx <= before)
    if after is not None:
        return mask_mod(lambda b, h, q_idx, kv_idx: kv_idx - q_idx <= after)
    raise InputError("one of w, left and right must be given, got None for each")


def dilated(w: int, d: int) -> MaskMod:
    """Every ``d``-th of the last ``w`` keys: ``0 ≤ i - j < w and (i - j) % d = 0``.

    Args:
        w: reach, in keys.
        d: dilation.

    Raises:
        InputError: a number below 1.
        KindError: no integer.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(6), torch.tensor(0)
        >>> dilated(4, 2)(zero, zero, torch.tensor(5), i).int()
        tensor([0, 0, 0, 1, 0, 1], dtype=torch.int32)

    Reference:
        Beltagy et al. 2020 (Longformer), section 3.1.
    """
    w, d = check_count("w", w, 1), check_count("d", d, 1)

    def mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        back = q_idx - kv_idx
        return (back >= 0) & (back < w) & (back % d == 0)

    return mask_mod(mask)


def streaming(n_sink: int, w: int) -> MaskMod:
    """The last ``w`` keys and the first ``n_sink``: ``i ≥ j and (i - j < w or j < n_sink)``.

    Args:
        n_sink: number of keys that every later query sees.
        w: number of keys of the window.

    Raises:
        InputError: ``n_sink`` below 0 or ``w`` below 1.
        KindError: no integer.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(6), torch.tensor(0)
        >>> streaming(1, 2)(zero, zero, torch.tensor(4), i).int()
        tensor([1, 0, 0, 1, 1, 0], dtype=torch.int32)

    Reference:
        Xiao et al. 2024 (StreamingLLM), section 3.2.
    """
    n_sink, w = check_count("n_sink", n_sink), check_count("w", w, 1)

    def mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (q_idx >= kv_idx) & ((q_idx - kv_idx < w) | (kv_idx < n_sink))

    return mask_mod(mask)


def chunked(c: int) -> MaskMod:
    """Causal inside chunks of ``c`` tokens: ``i // c = j // c and i ≥ j``.

    Args:
        c: length of a chunk.

    Raises:
        InputError: below 1.
        KindError: no integer.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(4), torch.tensor(0)
        >>> chunked(2)(zero, zero, i[:, None], i).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 0, 1, 0],
                [0, 0, 1, 1]], dtype=torch.int32)

    Reference:
        Child et al. 2019 (Sparse Transformers), section 4.3; the local layers of Llama 4.
    """
    c = check_count("c", c, 1)
    # As an interval: the chunk of i begins at i // c · c, and j ≤ i cannot lie in a later one.
    return mask_mod(lambda b, h, q_idx, kv_idx: (kv_idx >= q_idx // c * c) & (q_idx >= kv_idx))
