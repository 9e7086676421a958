"""Biases that are a function of the distance alone, with few numbers or none to learn."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..errors import InputError
from ..factory_arguments import check_choice, check_count, check_float_table, check_number
from ..mods import ScoreMod, score_mod
from .arguments import one_number, per_head


def alibi(slopes: int | Tensor, *, symmetric: bool = False) -> ScoreMod:
    """Farther keys get less: ``s - slope[h] · (i - j)``, or, if ``symmetric``, ``s - slope[h] · |i - j|``.

    Args:
        slopes: ``[H]``, or the number of heads, for the slopes of :func:`alibi_slopes`. Gradients reach a tensor.
        symmetric: for attention that is not causal.

    Raises:
        InputError: no head, a wrong shape.
        KindError: neither an integer nor a floating-point tensor.

    Example:
        >>> import torch
        >>> j, zero = torch.arange(3), torch.tensor(0)
        >>> alibi(8)(torch.zeros(3), zero, zero, torch.tensor(2), j)
        tensor([-1.0000, -0.5000,  0.0000])

    Reference:
        Press et al. 2022 (ALiBi), section 3.
    """
    table = slopes if isinstance(slopes, Tensor) else alibi_slopes(check_count("slopes", slopes, 1))
    slope = per_head("slopes", table)
    if symmetric:
        return score_mod(lambda score, b, h, q_idx, kv_idx: score - slope(h) * (q_idx - kv_idx).abs())
    return score_mod(lambda score, b, h, q_idx, kv_idx: score - slope(h) * (q_idx - kv_idx))


def alibi_slopes(heads: int) -> Tensor:
    """The slopes of ALiBi: ``2^(-8/n), 2^(-16/n), …`` for ``n`` heads.

    If ``heads`` is no power of two, those of the next smaller power, then every other one of the next larger.

    Args:
        heads: number of heads ``H``.

    Returns:
        float32 ``[H]``.

    Raises:
        InputError: no head.
        KindError: no integer.

    Example:
        >>> alibi_slopes(4)
        tensor([0.2500, 0.0625, 0.0156, 0.0039])

    Reference:
        Press et al. 2022 (ALiBi), section 3 and the authors' code.
    """
    heads = check_count("heads", heads, 1)
    power = 2 ** (heads.bit_length() - 1)
    slopes = [2 ** (-8 * (n + 1) / power) for n in range(power)]
    slopes += [2 ** (-8 * (n + 1) / (2 * power)) for n in range(0, 2 * (heads - power), 2)]
    return torch.tensor(slopes)


def distance_decay(decay: int | Tensor) -> ScoreMod:
    """Weights of the softmax fall by ``decay[h]`` a step of distance: ``s + |i - j| · log(decay[h])``.

    Args:
        decay: ``[H]``, above 0, or the number of heads, for ``1 - 2^(-5-h)``. Gradients reach a tensor.

    Raises:
        InputError: no head, a wrong shape.
        KindError: neither an integer nor a floating-point tensor.

    Example:
        >>> import torch
        >>> j, zero = torch.arange(3), torch.tensor(0)
        >>> distance_decay(torch.tensor([0.5]))(torch.zeros(3), zero, zero, torch.tensor(2), j).exp()
        tensor([0.2500, 0.5000, 1.0000])

    Reference:
        Sun et al. 2023 (RetNet), section 2.1, for the decays.
    """
    if not isinstance(decay, Tensor):
        decay = 1 - 2.0 ** (-5 - torch.arange(check_count("decay", decay, 1)))
    rate = per_head("decay", decay)
    return score_mod(lambda score, b, h, q_idx, kv_idx: score + (q_idx - kv_idx).abs() * rate(h).log())


def sandwich(heads: int, length: int, *, dim: int = 128, base: float = 10000.0) -> ScoreMod:
    """Products of sinusoidal positions, by distance: ``s + Σ_k cos((i - j) / base^(2k/dim)) · H / (8 (h + 1))``.

    The sum is over ``k < dim / 2``; it is computed once, for each distance.

    Args:
        heads: number of heads ``H``.
        length: distances are below it.
        dim: of the sinusoidal positions, even.
        base: of their wavelengths.

    Raises:
        InputError: a number below 1, ``dim`` odd.
        KindError: no number.

    Example:
        >>> import torch
        >>> zero = torch.tensor(0)
        >>> sandwich(8, 16)(torch.tensor(1.0), zero, torch.tensor(1), zero, zero)
        tensor(33.)

    Reference:
        Chi et al. 2023 (Dissecting Transformer length extrapolation), section 5 and appendix.
    """
    heads, length, dim = check_count("heads", heads, 1), check_count("length", length, 1), check_count("dim", dim, 2)
    if dim % 2:
        raise InputError(f"dim must be even, got {dim}")
    check_number("base", base, positive=True)
    frequency = base ** (-2 * torch.arange(dim // 2, dtype=torch.float64) / dim)
    table = (torch.arange(length).unsqueeze(-1) * frequency).cos().sum(-1).float()
    compression = heads / (8 * torch.arange(1, heads + 1, dtype=torch.float64)).float()
    return score_mod(lambda score, b, h, q_idx, kv_idx: score + table[(q_idx - kv_idx).abs()] * compression[h])


def kerple(r1: Tensor, r2: Tensor, kind: Literal["log", "power"] = "log") -> ScoreMod:
    """Kernels of the distance: ``s - r1[h] · log(1 + r2[h] · |i - j|)``, or ``s - r1[h] · |i - j|^r2[h]``.

    Args:
        r1: ``[H]``, above 0. Gradients reach it.
        r2: ``[H]``, above 0; for ``"power"`` at most 2. Gradients reach it.
        kind: which of the two.

    Raises:
        InputError: a wrong shape, another ``kind``.
        KindError: no floating-point tensor.

    Example:
        >>> import torch
        >>> j, zero, one = torch.arange(3), torch.tensor(0), torch.ones(1)
        >>> kerple(one, one)(torch.zeros(3), zero, zero, torch.tensor(2), j)
        tensor([-1.0986, -0.6931,  0.0000])

    Reference:
        Chi et al. 2022 (KERPLE), section 4.
    """
    check_choice("kind", kind, ("log", "power"))
    first, second = per_head("r1", r1), per_head("r2", r2)
    if r1.shape != r2.shape:
        raise InputError(f"r1 and r2 must have one shape [H], got {list(r1.shape)} and {list(r2.shape)}")
    if kind == "log":
        return score_mod(
            lambda score, b, h, q_idx, kv_idx: score - first(h) * torch.log1p(second(h) * (q_idx - kv_idx).abs())
        )
    return score_mod(lambda score, b, h, q_idx, kv_idx: score - first(h) * torch.pow((q_idx - kv_idx).abs(), second(h)))


def fire(
    w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, *, c: float | Tensor = 0.1, threshold: float | Tensor = 512.0
) -> ScoreMod:
    """A small network of the relative distance: ``s + f(log(1 + |c| (i - j)) / log(1 + |c| max(i, threshold)))``.

    ``f(x)[h] = Σ_k w2[h, k] · relu(w1[k] · x + b1[k]) + b2[h]``. For causal attention; keys after the query count as if
    they were at it.

    Args:
        w1: ``[W]``, weights of the hidden units. Gradients reach all tensors.
        b1: ``[W]``, their biases.
        w2: ``[H, W]``, weights of the outputs, one a head.
        b2: ``[H]``, their biases.
        c: number, or tensor of one.
        threshold: up to which position distances are measured alike; number, or tensor of one.

    Raises:
        InputError: shapes that do not fit together.
        KindError: no floating-point tensor.

    Example:
        >>> import torch
        >>> one, zero = torch.ones(1), torch.tensor(0)
        >>> mod = fire(one, 0 * one, torch.ones(2, 1), torch.tensor([0.0, 5.0]), threshold=10.0)
        >>> mod(torch.tensor(0.0), zero, torch.tensor(1), torch.tensor(10), zero)
        tensor(6.)

    Reference:
        Li et al. 2024 (FIRE), section 3.2.
    """
    check_float_table("w1", w1, "[W]", [1])
    check_float_table("b1", b1, "[W]", [1])
    check_float_table("w2", w2, "[H, W]", [2])
    check_float_table("b2", b2, "[H]", [1])
    if b1.shape != w1.shape or w2.shape != (b2.shape[0], w1.shape[0]):
        shapes = ", ".join(str(list(t.shape)) for t in (w1, b1, w2, b2))
        raise InputError(f"w1, b1, w2, b2 must have the shapes [W], [W], [H, W], [H], got {shapes}")
    rate, least = one_number("c", c), one_number("threshold", threshold)

    def mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        scale = abs(rate())
        back = (q_idx - kv_idx).clamp(min=0)
        x = torch.log1p(scale * back) / torch.log1p(scale * torch.maximum(q_idx.float(), abs(least())))
        for unit in range(w1.shape[0]):
            score = score + w2[h, unit] * torch.relu(w1[unit] * x + b1[unit])
        return score + b2[h]

    return score_mod(mod)
