"""The cells of a score modification: what becomes of one score at every query and key.

A long one is sampled: a cell shows the value at its middle position.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import InputError, OutOfRangeError
from ..evaluate import evaluator
from ..factory_arguments import check_count, check_number
from ..masks.lengths import with_lengths
from ..mods import MaskLike, ScoreLike, mask_mod, score_mod
from .cells import Cells, Colour, Key, chosen, steps

RISING: tuple[Colour, ...] = ((247, 251, 255), (158, 202, 225), (49, 130, 189), (8, 48, 107))
"""Colours from the least to the greatest value of one sign."""
AROUND_ZERO: tuple[Colour, ...] = ((178, 24, 43), (244, 165, 130), (247, 247, 247), (146, 197, 222), (33, 102, 172))
"""Colours from negative to positive values, 0 in the middle."""
MASKED: Colour = (196, 196, 196)
NOT_A_NUMBER: Colour = (214, 39, 214)
SHADES = "░▒▓█"
RESPONSE = (-100.0, -30.0, -10.0, -3.0, -1.0, 0.0, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Scores at which a modification that depends on the score alone is shown."""


def score_cells(
    score: ScoreLike,
    q_len: int | None,
    kv_len: int | None = None,
    *,
    batch: int = 0,
    head: int = 0,
    value: float = 0.0,
    mask: MaskLike | None = None,
    most: int = 32,
) -> Cells:
    """The cells of a score modification.

    Args:
        score: the modification, or a function ``(score, b, h, q_idx, kv_idx) -> score``.
        q_len: queries.
        kv_len: keys; default: ``q_len``.
        batch: which batch entry is shown.
        head: which head.
        value: the score that is modified, the same everywhere.
        mask: where it hides a position, nothing is shown.
        most: cells in each direction, at most.

    Raises:
        InputError: no ``q_len``, a negative number.
        KindError: no score modification.
        OutOfRangeError: a position that is shown reads a captured tensor out of range.
    """
    if q_len is None:
        raise InputError("q_len must be given for a score modification, got None")
    sizes = check_count("q_len", q_len), check_count("kv_len", q_len if kv_len is None else kv_len)
    value = check_number("value", value)
    mod = score_mod(score)
    where = torch.tensor(check_count("batch", batch)), torch.tensor(check_count("head", head))
    cell = steps(sizes[0], most), steps(sizes[1], most)
    device = next((c.device for c in mod.captures if c.dim()), torch.device("cpu"))
    q, kv = (_middles(size, step).to(device) for size, step in zip(sizes, cell))
    b, h = (x.to(device) for x in where)
    inputs = {"score": torch.tensor(value, device=device), "b": b, "h": h, "q": q[:, None], "kv": kv}
    shape = q.shape[0], kv.shape[0]
    with torch.no_grad():
        (modified,), bad = evaluator(mod.program)(inputs, mod.captures, mod.scalars)
        values = modified.double().cpu().expand(shape)
        hidden = values == float("-inf")
        if mask is not None:
            seen = with_lengths(mask_mod(mask), *sizes).to(device)(b, h, q[:, None], kv)
            hidden = hidden | ~seen.cpu()
    if bad is not None:
        _refuse_bad_reads(bad.cpu().expand(shape) & ~hidden, q.cpu(), kv.cpu(), batch, head)
    low, high = _ends(values, hidden)
    at = _normal(values, low, high)
    colours = _coloured(at, AROUND_ZERO if low < 0 < high else RISING)
    shown = ~hidden & values.isfinite()
    colours[~shown] = torch.tensor(NOT_A_NUMBER, dtype=torch.uint8)
    colours[hidden] = torch.tensor(MASKED, dtype=torch.uint8)
    shade = (values - low) / (high - low) * len(SHADES) if high > low else torch.zeros_like(values)
    index = torch.where(shown, shade.nan_to_num().clamp(0, len(SHADES) - 1).long() + 2, 1)
    characters = chosen("·?" + SHADES, torch.where(hidden, 0, index))
    title = f"score {value:g} modified, of {sizes[0]} queries × {sizes[1]} keys, batch {batch}, head {head}"
    keys = _keys(low, high, hidden, shown)
    legend = (
        f"░▒▓█ from {low:.4g} to {high:.4g}"
        + "  · masked" * bool(hidden.any())
        + "  ? not finite" * bool((~shown & ~hidden).any())
    )
    return Cells(title, colours, characters, sizes, cell, keys, legend, _notes(mod, cell, batch, head))


def _refuse_bad_reads(bad: Tensor, q: Tensor, kv: Tensor, batch: int, head: int) -> None:
    found = bad.nonzero()[:1].tolist()
    if found:
        ((row, column),) = found
        raise OutOfRangeError(
            f"score_mod reads a captured tensor out of range at b={batch}, h={head}, q_idx={int(q[row])}, "
            f"kv_idx={int(kv[column])}"
        )


def _middles(size: int, step: int) -> Tensor:
    """The middle position of each cell, int32."""
    first = torch.arange(0, size, step, dtype=torch.int32)
    return (first + (first + step).clamp(max=size) - 1) // 2


def _ends(values: Tensor, hidden: Tensor) -> tuple[float, float]:
    shown = values[~hidden & values.isfinite()]
    return (float(shown.min()), float(shown.max())) if shown.numel() else (0.0, 0.0)


def _normal(values: Tensor, low: float, high: float) -> Tensor:
    """Values from 0 to 1; where they have both signs, 0 becomes 0.5."""
    if low < 0 < high:
        reach = max(-low, high)
        return (values / reach + 1) / 2
    return (values - low) / (high - low) if high > low else torch.zeros_like(values)


def _coloured(at: Tensor, colours: Sequence[Colour]) -> Tensor:
    """Between the nearest two of ``colours``."""
    table = torch.tensor(colours, dtype=torch.float64)
    place = at.nan_to_num(0, 1, 0).clamp(0, 1) * (len(colours) - 1)
    below = place.floor().clamp(max=len(colours) - 2).long()
    share = (place - below)[:, :, None]
    return (table[below] * (1 - share) + table[below + 1] * share).round().to(torch.uint8)


def _keys(low: float, high: float, hidden: Tensor, shown: Tensor) -> tuple[Key, ...]:
    values = sorted({low, (low + high) / 2, high} | ({0.0} if low < 0 < high else set()))
    at = _normal(torch.tensor([values], dtype=torch.float64), low, high)
    colours = _coloured(at, AROUND_ZERO if low < 0 < high else RISING)[0].tolist()
    keys = [Key((c[0], c[1], c[2]), f"{v:.4g}") for v, c in zip(values, colours)]
    if bool(hidden.any()):
        keys.append(Key(MASKED, "masked"))
    if bool((~shown & ~hidden).any()):
        keys.append(Key(NOT_A_NUMBER, "not finite"))
    return tuple(keys)


def _notes(mod: ScoreLike, cell: tuple[int, int], batch: int, head: int) -> tuple[str, ...]:
    mod = score_mod(mod)
    sampled = (
        "a cell is a position" if cell == (1, 1) else f"a cell shows the middle of {cell[0]} × {cell[1]} positions"
    )
    if not mod.dependencies & {"q", "kv"} and "score" in mod.dependencies:
        device = next((c.device for c in mod.captures if c.dim()), torch.device("cpu"))
        zero, b, h = (torch.tensor(n, device=device) for n in (0, batch, head))
        with torch.no_grad():
            results = mod(torch.tensor(RESPONSE, device=device), b, h, zero, zero).tolist()
        return sampled, "scores become " + ", ".join(f"{a:g} → {r:.4g}" for a, r in zip(RESPONSE, results))
    return (sampled,)
