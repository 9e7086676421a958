"""From attention-gym's functions to modifications of torch-flexattn."""

from __future__ import annotations

import copy
import functools
import importlib.metadata
import inspect
import operator
import warnings
from collections.abc import Callable
from typing import Any, overload

from torch.nn.attention import flex_attention as theirs
from torch_flexattn import BlockMask, FlexAttentionError, MaskMod, ScoreMod, mask_mod, score_mod

from .made_by import AND, code_of, parts_of, values_in

FORMULAS_OF = "0.0.17"
"""The version of attention-gym whose formulas are known; of another one, functions are recorded as they are."""


@overload
def convert(mod: theirs.BlockMask) -> BlockMask: ...
@overload
def convert(mod: Callable[..., Any]) -> MaskMod | ScoreMod: ...
def convert(mod: theirs.BlockMask | Callable[..., Any]) -> BlockMask | MaskMod | ScoreMod:
    """A mask or score modification as one of torch-flexattn: native where :func:`native` knows it, else recorded.

    Args:
        mod: ``(b, h, q_idx, kv_idx) -> bool`` or ``(score, b, h, q_idx, kv_idx) -> score``, made by attention-gym, by
            PyTorch's ``and_masks`` and ``or_masks`` of such, or by hand; or PyTorch's block mask of one, whose blocks
            stay.

    Returns:
        A :class:`~torch_flexattn.MaskMod` of a function of four arguments, a :class:`~torch_flexattn.ScoreMod` of one
        of five, a :class:`~torch_flexattn.BlockMask` of a block mask.

    Raises:
        KindError: something else.
        UnsupportedModError: a function that does what a kernel cannot, with its line.

    Example:
        >>> from attn_gym.masks import generate_sliding_window
        >>> import torch
        >>> zero, i = torch.tensor(0), torch.arange(4)
        >>> convert(generate_sliding_window(1))(zero, zero, torch.tensor(2), i).int()
        tensor([0, 1, 1, 0], dtype=torch.int32)

    Reference:
        attention-gym (github.com/meta-pytorch/attention-gym), ``attn_gym.masks`` and ``attn_gym.mods``.
    """
    if isinstance(mod, theirs.BlockMask):
        mask: Any = copy.copy(mod)
        mask.mask_mod = native(mod.mask_mod) or mod.mask_mod
        return BlockMask.from_torch(mask)
    if isinstance(mod, MaskMod | ScoreMod):
        return mod
    return native(mod) or (score_mod(mod) if takes_a_score(mod) else mask_mod(mod))


def native(mod: Callable[..., Any]) -> MaskMod | ScoreMod | None:
    """The modification of torch-flexattn that has the formula of a function; ``None`` where there is none.

    What PyTorch's ``and_masks`` and ``or_masks`` put together is converted part by part, if one is known. Tables are
    made now, on the device of the tensors they are made from: of offsets that change later, convert the next mask.

    Args:
        mod: what a factory of attention-gym returned.

    Example:
        >>> from attn_gym.masks import generate_natten
        >>> native(generate_natten(4, 4, 3, 3)), native(generate_natten(6, 4, 3, 3))
        (MaskMod(...), None)

    Reference:
        The table in the package's README says what becomes what.
    """
    code = code_of(mod)
    if code is None or not formulas():
        return None
    parts = parts_of(mod)
    if parts:
        found = [native(part) for part in parts]
        if not any(found):
            return None
        masks = (one or mask_mod(part) for one, part in zip(found, parts, strict=True))
        return functools.reduce(operator.and_ if code is AND else operator.or_, masks)
    formula = formulas().get(code)
    try:
        return None if formula is None else formula(values_in(mod))
    except FlexAttentionError:  # numbers that attention-gym takes, and torch-flexattn's factory does not
        return None


@functools.cache
def formulas() -> dict[Any, Callable[[dict[str, Any]], MaskMod | ScoreMod | None]]:
    """All known formulas by the code of their functions; none, with a warning, of another version.

    Example:
        >>> len(formulas()) > 10
        True
    """
    version = importlib.metadata.version("attn-gym")
    if version != FORMULAS_OF:
        warnings.warn(
            f"attn-gym {version} is installed, and the formulas of {FORMULAS_OF} are known: its functions are recorded "
            "as they are, none becomes a native one",
            stacklevel=4,
        )
        return {}
    from . import mask_formulas, score_formulas

    return {**mask_formulas.FORMULAS, **score_formulas.FORMULAS}


def takes_a_score(mod: Callable[..., Any]) -> bool:
    """Whether a function takes a score and four indices, and not four indices alone.

    Example:
        >>> takes_a_score(lambda score, b, h, q_idx, kv_idx: score), takes_a_score(lambda b, h, q_idx, kv_idx: True)
        (True, False)
    """
    return takes(mod, 5) and not takes(mod, 4)


def takes(mod: Callable[..., Any], count: int) -> bool:
    """Whether something can be called with so many arguments.

    Example:
        >>> takes(takes, 2), takes(takes, 3), takes(None, 0)
        (True, False, False)
    """
    try:
        inspect.signature(mod).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True
