"""Layers whose modifications go where they go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

from torch import Tensor, nn

from ..mods import MaskMod, ScoreMod


class MovesMods(nn.Module):
    """A layer that keeps mods: what they capture follows it to another device.

    Parameters are left to the module that owns them, and types to whoever made the mod.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], *options: Any, **named: Any) -> Self:
        super()._apply(fn, *options, **named)
        for name, mod in vars(self).items():
            if isinstance(mod, MaskMod | ScoreMod):
                setattr(self, name, _moved(mod, fn))
        return self


def _moved(mod: MaskMod | ScoreMod, fn: Callable[[Tensor], Tensor]) -> MaskMod | ScoreMod:
    places = [c.device if isinstance(c, nn.Parameter) else fn(c.detach()).device for c in mod.captures]
    if all(c.device == place for c, place in zip(mod.captures, places)):
        return mod
    return replace(mod, captures=tuple(c.to(place) for c, place in zip(mod.captures, places)))
