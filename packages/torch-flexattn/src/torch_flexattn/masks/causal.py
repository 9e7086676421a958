"""No look into the future: causal masks, and those that see a prefix as a whole."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..errors import InputError
from ..factory_arguments import IntTable, check_choice, check_count, check_int_table, check_range
from ..mods import MaskMod, mask_mod
from ..program import Builder, Program
from ..tables import by_batch
from .lengths import LENGTH_GAP


def _from_corner() -> Program:
    build = Builder(scalars=["int32"])
    last = build.add("add", "int32", build.add("q", "int32"), build.add("scalar", "int32", value=0))
    program = build.finish([build.add("ge", "bool", last, build.add("kv", "int32"))])
    program.text  # noqa: B018 - written now, as Dynamo can read but not write it
    return program


FROM_CORNER = _from_corner()


def causal(
    align: Literal["top_left", "bottom_right"] = "top_left", *, q_len: int | None = None, kv_len: int | None = None
) -> MaskMod:
    """Query ``i`` sees keys ``j ≤ i``; from the bottom right corner, ``j ≤ i + kv_len - q_len``.

    Args:
        align: ``"top_left"``: the first query sees the first key; ``"bottom_right"``: the last query sees the last key.
        q_len: number of queries, for ``"bottom_right"``; default: that of the call.
        kv_len: number of keys, likewise.

    Raises:
        InputError: another ``align``, negative lengths, one length without the other, or lengths for ``"top_left"``.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(3), torch.tensor(0)
        >>> causal()(zero, zero, i[:, None], i).int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)

    Reference:
        Vaswani et al. 2017, section 3.2.3.
    """
    check_choice("align", align, ("top_left", "bottom_right"))
    if (q_len is None) != (kv_len is None):
        raise InputError(f"q_len and kv_len go together, got q_len={q_len} and kv_len={kv_len}")
    if align == "top_left":
        if q_len is not None:
            raise InputError(f'q_len and kv_len are for align="bottom_right", got q_len={q_len} and kv_len={kv_len}')
        return mask_mod(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)
    if q_len is None:
        return MaskMod(FROM_CORNER, (), (LENGTH_GAP,))  # type: ignore[arg-type]
    gap = check_count("kv_len", kv_len) - check_count("q_len", q_len)
    if torch.compiler.is_dynamo_compiling():  # where a mask that is combined must be a function
        return mask_mod(lambda b, h, q_idx, kv_idx: q_idx + gap >= kv_idx)
    return MaskMod(FROM_CORNER, (), (gap,))


def prefix_lm(p: int | IntTable) -> MaskMod:
    """The first ``p`` keys are seen by all; after them it is causal: ``j < p or i ≥ j``.

    Args:
        p: length of the prefix, or ``[B]``, one a sequence.

    Raises:
        InputError: negative, or not ``[B]``.
        KindError: no integers.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(3), torch.tensor(0)
        >>> prefix_lm(2)(zero, zero, i[:, None], i).int()
        tensor([[1, 1, 0],
                [1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)

    Reference:
        Raffel et al. 2020 (T5), section 3.2.1.
    """
    length = by_batch(per_batch("p", p))
    return mask_mod(lambda b, h, q_idx, kv_idx: (kv_idx < length(b)) | (q_idx >= kv_idx))


def per_batch(name: str, value: int | IntTable) -> int | Tensor:
    """A count, or a table ``[B]`` of counts.

    Raises:
        InputError: negative, or not ``[B]``.

    Example:
        >>> per_batch("p", 3)
        3
    """
    if not isinstance(value, Tensor | list | tuple):
        return check_count(name, value)
    if isinstance(value, Tensor) and value.dim() == 0:
        return check_count(name, value.item())
    table = check_int_table(name, value, "[B]", [1])
    check_range(name, table, 0)
    return table
