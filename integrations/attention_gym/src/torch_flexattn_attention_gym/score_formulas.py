"""Score modifications of attention-gym that torch-flexattn has, too: what each is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attn_gym import mods as theirs
from torch_flexattn import ScoreMod
from torch_flexattn import scores as ours

from .made_by import code_in


def softcap(values: dict[str, Any]) -> ScoreMod:
    """The cap; attention-gym's instruction of NVIDIA GPUs for an approximate tanh is fewer instructions here, too."""
    return ours.softcap(values["soft_cap"], approx=values["tanh"] is not torch.tanh)


FORMULAS: dict[Any, Callable[[dict[str, Any]], ScoreMod | None]] = {
    code_in(theirs.generate_tanh_softcap, "tanh_softcap"): softcap,
}
"""By the code of the function."""
