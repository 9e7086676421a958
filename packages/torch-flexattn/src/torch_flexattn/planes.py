"""Masks that hold for some heads, or are others for each batch entry."""

from __future__ import annotations

from collections.abc import Iterable

from .assembly import Assembly
from .errors import InputError, KindError
from .mods import MaskLike, MaskMod, mask_mod


def on_heads(mod: MaskMod, heads: Iterable[int]) -> MaskMod:
    """A mask that holds for some query heads; the others see what they would see without it.

    Args:
        mod: the mask.
        heads: numbers of the query heads.

    Raises:
        InputError: a negative number.
        KindError: no list of integers.

    Example:
        >>> import torch
        >>> zero, i = torch.tensor(0), torch.arange(3)
        >>> near = mask_mod(lambda b, h, q_idx, kv_idx: q_idx == kv_idx)
        >>> on_heads(near, [1, 2])(zero, i[:, None], zero, i)
        tensor([[ True,  True,  True],
                [ True, False, False],
                [ True, False, False]])
    """
    if not isinstance(heads, Iterable):
        raise KindError(f"heads must be a list of integers, got {heads!r}")
    parts = Assembly()
    others = parts.builder.add("not", "bool", _among(parts, "h", [_checked("heads", head) for head in heads]))
    (own,) = parts.append(mod)
    return MaskMod(*parts.finish(parts.builder.add("or", "bool", others, own)))


def per_batch(given: Iterable[MaskLike]) -> MaskMod:
    """A mask for each batch entry.

    Entries with the same mask share it: the program is as long as there are different masks. Batch entries behind the
    last mask see nothing.

    Args:
        given: the mask of batch entry 0, of entry 1, …

    Raises:
        InputError: none.
        KindError: something that is no mask.

    Example:
        >>> import torch
        >>> zero, i = torch.tensor(0), torch.arange(3)
        >>> past = mask_mod(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)
        >>> per_batch([past, ~past])(i[:2, None], zero, torch.tensor(1), i)
        tensor([[ True,  True, False],
                [False, False,  True]])
    """
    masks = [mask_mod(mask) for mask in given]
    if not masks:
        raise InputError("masks must hold a mask for each batch entry, got []")
    entries: dict[object, list[int]] = {}
    for entry, mask in enumerate(masks):
        entries.setdefault((mask.program, mask.scalars, *map(id, mask.captures)), []).append(entry)
    parts = Assembly()
    seen = parts.builder.const(False, "bool")
    for shared in entries.values():
        (own,) = parts.append(masks[shared[0]])
        here = parts.builder.add("and", "bool", _among(parts, "b", shared), own)
        seen = parts.builder.add("or", "bool", seen, here)
    return MaskMod(*parts.finish(seen))


def _among(parts: Assembly, name: str, numbers: list[int]) -> int:
    """Whether an index is one of these numbers; neighbouring ones are a range, whose ends are filled in at run time."""
    builder = parts.builder
    index, found = builder.add(name, "int32"), builder.const(False, "bool")
    numbers = sorted(set(numbers))
    gaps = [n for n in range(1, len(numbers)) if numbers[n] > numbers[n - 1] + 1]
    for begin, end in zip([0, *gaps], [*gaps, len(numbers)]):
        if begin < end:
            above = builder.add("ge", "bool", index, parts.number(numbers[begin]))
            below = builder.add("le", "bool", index, parts.number(numbers[end - 1]))
            found = builder.add("or", "bool", found, builder.add("and", "bool", above, below))
    return found


def _checked(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise KindError(f"{name} must be integers, got {value!r}")
    if value < 0:
        raise InputError(f"{name} must not be negative, got {value}")
    return value
