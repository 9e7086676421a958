"""Scores made larger, smaller, or kept in bounds."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ..factory_arguments import check_number
from ..mods import ScoreMod, score_mod
from .arguments import one_number, per_head


def softcap(c: float, *, approx: bool = False) -> ScoreMod:
    """Scores stay between ``-c`` and ``c``: ``c · tanh(s / c)``.

    Args:
        c: the bound.
        approx: where the GPU has a faster tanh, take that: it is off by up to 2⁻¹¹ of the result. Elsewhere, and in
            functions made inside ``torch.compile``, nothing changes.

    Raises:
        InputError: ``c`` not above 0.
        KindError: no number.

    Example:
        >>> import torch
        >>> zero = torch.tensor(0)
        >>> softcap(20)(torch.tensor(40.0), zero, zero, zero, zero)
        tensor(19.2806)

    Reference:
        Gemma 2 (2024), section 2; Bello et al. 2017, for the form.
    """
    c = check_number("c", c, positive=True)
    exact = score_mod(lambda score, b, h, q_idx, kv_idx: c * torch.tanh(score / c))
    if not approx or torch.compiler.is_compiling():
        return exact
    nodes = tuple(replace(node, op="tanh_approx") if node.op == "tanh" else node for node in exact.program.nodes)
    return replace(exact, program=replace(exact.program, nodes=nodes))


def temperature(t: float | Tensor) -> ScoreMod:
    """Scores are divided by a temperature: ``s / t``.

    Args:
        t: a number above 0, a tensor of one, or ``[H]``, one a head. Gradients reach a tensor.

    Raises:
        InputError: not above 0, a wrong shape.
        KindError: neither a number nor a floating-point tensor.

    Example:
        >>> import torch
        >>> zero = torch.tensor(0)
        >>> temperature(2)(torch.tensor(3.0), zero, zero, zero, zero)
        tensor(1.5000)

    Reference:
        Hinton et al. 2015 (distillation), section 2.
    """
    if isinstance(t, Tensor) and t.dim():
        by_head = per_head("t", t)
        return score_mod(lambda score, b, h, q_idx, kv_idx: score / by_head(h))
    same = one_number("t", t, positive=True)
    return score_mod(lambda score, b, h, q_idx, kv_idx: score / same())


def logit_scale(log_scale: Tensor, *, most: float = 100.0) -> ScoreMod:
    """A learned factor a head: ``s · min(exp(log_scale[h]), most)``, for queries and keys of length 1.

    Args:
        log_scale: ``[H]``. Gradients reach it.
        most: the largest factor.

    Raises:
        InputError: a wrong shape, ``most`` not above 0.
        KindError: no floating-point tensor.

    Example:
        >>> import torch
        >>> zero = torch.tensor(0)
        >>> logit_scale(torch.tensor([2.0]).log())(torch.tensor(3.0), zero, zero, zero, zero)
        tensor(6.)

    Reference:
        Liu et al. 2022 (Swin Transformer V2), section 3.2.
    """
    factor = per_head("log_scale", log_scale)
    bound = math.log(check_number("most", most, positive=True))
    return score_mod(lambda score, b, h, q_idx, kv_idx: score * factor(h).clamp(max=bound).exp())
