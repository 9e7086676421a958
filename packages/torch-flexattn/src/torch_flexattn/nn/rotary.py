"""Rotary position embeddings: queries and keys turned by angles that grow with their positions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..errors import InputError

KINDS = ("linear", "ntk", "llama3")


@dataclass(frozen=True)
class RopeScaling:
    """How rotations change for rows longer than a model was trained on.

    Attributes:
        kind: ``"linear"``: all angles by ``1/factor``; ``"ntk"``: the base by ``factor^(E/(E - 2))``; ``"llama3"``:
            wave lengths beyond ``trained_length / low`` by ``1/factor``, those below ``trained_length / high`` not at
            all, between them in part.
        factor: at least 1.
        trained_length: positions the model was trained on; of ``"llama3"``.
        low: of ``"llama3"``.
        high: of ``"llama3"``.

    Raises:
        InputError: an unknown kind, a factor below 1, ``low`` not below ``high``.

    Example:
        >>> RopeScaling("linear", 4.0).factor
        4.0

    Reference:
        Chen et al. 2023 (position interpolation); Peng et al. 2023 (YaRN), section 3.1, for NTK-aware; Llama 3.1.
    """

    kind: Literal["linear", "ntk", "llama3"]
    factor: float
    trained_length: int = 8192
    low: float = 1.0
    high: float = 4.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"kind must be one of {', '.join(KINDS)}; got {self.kind!r}")
        if not self.factor >= 1:
            raise InputError(f"factor must be at least 1, got {self.factor!r}")
        if not 0 < self.low < self.high:
            raise InputError(f"low must be above 0 and below high, got low={self.low!r} and high={self.high!r}")


def frequencies(width: int, base: float, scaling: RopeScaling | None, like: Tensor) -> Tensor:
    """Radians a position of each pair of features, ``[width / 2]``; float32, or float64 for float64.

    They are made in each call, from the numbers: a buffer would lose digits where a module becomes 16 bits wide.

    Args:
        width: even number of features.
        base: of the wave lengths.
        scaling: for longer rows.
        like: gives device and type.
    """
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    if scaling is not None and scaling.kind == "ntk":
        base = base * scaling.factor ** (width / (width - 2)) if width > 2 else base
    steps = torch.arange(0, width, 2, device=like.device, dtype=dtype) / width
    turned = torch.exp(steps * -math.log(base))
    if scaling is None or scaling.kind == "ntk":
        return turned
    if scaling.kind == "linear":
        return turned / scaling.factor
    waves = scaling.trained_length / (2 * math.pi / turned)  # of them fit into the trained length
    kept = ((waves - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
    return turned * (kept + (1 - kept) / scaling.factor)


def rotate(x: Tensor, positions: Tensor, turned: Tensor) -> Tensor:
    """Turn the pairs ``(x_n, x_{n + E/2})`` by ``positions · turned_n``.

    Args:
        x: ``[B, H, L, E]``.
        positions: integers ``[L]`` or ``[B, L]``.
        turned: ``[E / 2]``, from :func:`frequencies`.

    Returns:
        As ``x``.
    """
    angles = positions.to(turned.dtype).unsqueeze(-1) * turned
    if angles.dim() == 3:
        angles = angles.unsqueeze(1)
    cos, sin = angles.cos(), angles.sin()
    first, second = x.to(turned.dtype).chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)
