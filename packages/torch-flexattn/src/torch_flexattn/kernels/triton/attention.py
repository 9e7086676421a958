"""Launches the generated kernels: chooses tiles, fills the arguments."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from ...block_mask import BlockMask
from ...differentiate import Derivative, differentiate
from ...mods import Mod, ScoreMod
from ...program import Program
from ..dropout import threshold
from . import backward_source, forward_source
from .index_width import reaching
from .sources import load

LEAST = 16
"""Features and rows of a tile, at least."""


@dataclass(frozen=True)
class Tiles:
    """How a kernel cuts its work.

    Attributes:
        rows: queries of a tile.
        keys: keys of a tile.
        warps: of a program.
        stages: of the pipeline that fetches tiles.
    """

    rows: int
    keys: int
    warps: int
    stages: int


def forward_tiles(width: int, element_bytes: int, block: tuple[int, int]) -> Tiles:
    """Tiles of the forward kernel: what fits into shared memory; which are fast is not measured yet."""
    if element_bytes > 2:
        tiles = Tiles(64, 32, 4, 2) if width <= 128 else Tiles(32, 32, 4, 1)
    elif width <= 128:
        tiles = Tiles(128, 64, 4, 2)
    else:
        tiles = Tiles(64, 64, 4, 2)
    return _inside(tiles, block)


def backward_tiles(width: int, element_bytes: int, block: tuple[int, int]) -> Tiles:
    """Tiles of the backward kernel, likewise."""
    if element_bytes > 2:
        tiles = Tiles(32, 32, 4, 1)
    elif width <= 128:
        tiles = Tiles(64, 128, 8, 2)
    else:
        tiles = Tiles(32, 64, 8, 1)
    return _inside(tiles, block)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: BlockMask | None,
    score: ScoreMod | None,
    scale: float,
    q_offset: Tensor | int = 0,
    kv_lens: Tensor | None = None,
    sinks: Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int = 0,
    check: bool = True,
    want_max: bool = True,
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Attention over the runs of a block mask; arguments and results as those of ``kernels.cpu.forward.forward``.

    ``check`` is not looked at: a captured tensor that is read out of range gives 0. ``tiles`` fixes the tiles.
    """
    (batch, heads, rows, width), width_v = q.shape, v.shape[3]
    order = sorted(range(3), key=lambda d: -q.stride(d))
    out = torch.empty_permuted((batch, heads, rows, width_v), (*order, 3), dtype=q.dtype, device=q.device)
    lse = torch.empty(batch, heads, rows, dtype=torch.float32, device=q.device)
    largest = torch.empty_like(lse) if want_max else None
    if lse.numel() == 0:
        return out, lse, largest
    q, k, v = (_last_together(t) for t in (q, k, v))
    row_ptr, runs, block, strides = _runs(mask, rows, k.shape[2], q.device)
    tiles = tiles or forward_tiles(max(width, width_v), q.element_size(), block)
    score, mod = reaching(score), reaching(None if mask is None else mask.mod)
    kernel = forward_source.Forward(
        width=width,
        value_width=width_v,
        score=None if score is None else score.program,
        mask=None if mod is None else mod.program,
        lens=kv_lens is not None,
        offsets=isinstance(q_offset, Tensor),
        sinks=sinks is not None,
        dropout=dropout_p > 0,
        maxima=want_max,
    )
    lens = kv_lens if kv_lens is None else kv_lens.to(torch.int32)
    offsets = q_offset.to(torch.int32) if isinstance(q_offset, Tensor) else None
    load(forward_source.source(kernel)).forward[-(-rows // tiles.rows), batch * heads](
        q, k, v, out, lse, largest, row_ptr, runs, lens, offsets, sinks,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
        heads, heads // k.shape[1], k.shape[0], rows, k.shape[2], *strides, scale,
        0 if offsets is not None else q_offset, seed, threshold(dropout_p), 1 / (1 - dropout_p),
        *_places((score, mod)),
        BLOCK_M=tiles.rows, BLOCK_N=tiles.keys, MASK_M=block[0], MASK_N=block[1], WHOLE_M=rows % tiles.rows == 0,
        WHOLE_N=kv_lens is None and k.shape[2] % tiles.keys == 0, PRECISION=_precision(q), STAGES=tiles.stages,
        num_warps=tiles.warps,
    )  # fmt: skip
    return out, lse, largest


def backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    mask: BlockMask | None,
    score: ScoreMod | None,
    scale: float,
    q_offset: Tensor | int = 0,
    kv_lens: Tensor | None = None,
    sinks: Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int = 0,
    check: bool = True,
    needed: Sequence[bool] | None = None,
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor | None], Tensor | None]:
    """Gradients of :func:`forward`; arguments and results as those of ``kernels.cpu.backward.backward``.

    Sums of ``grad_q`` and of captured tensors' gradients are made by atomic additions in float32.
    """
    (batch, heads, rows, width), (_, kv_heads, keys, _), width_v = q.shape, k.shape, v.shape[3]
    captures = () if score is None else score.captures
    needed = [c.requires_grad for c in captures] if needed is None else list(needed)
    of_captures = [
        torch.zeros(c.shape, dtype=torch.float32, device=c.device) if n else None for c, n in zip(captures, needed)
    ]
    grad_q = torch.zeros(batch, heads, rows, width, dtype=torch.float32, device=q.device)
    grad_k = torch.empty(
        batch, kv_heads, keys, width, dtype=torch.float32 if k.shape[0] < batch else k.dtype, device=k.device
    )
    grad_v = torch.empty(batch, kv_heads, keys, width_v, dtype=grad_k.dtype, device=k.device)
    delta = torch.empty_like(lse)
    if grad_k.numel() or grad_q.numel():
        q, k, v, grad_out = (_last_together(t) for t in (q, k, v, grad_out))
        row_ptr, runs, block, strides = _runs(mask, rows, keys, q.device, columns=True)
        tiles = tiles or backward_tiles(max(width, width_v), q.element_size(), block)
        score, mod = reaching(score), reaching(None if mask is None else mask.mod)
        derivative = None if score is None else _derivative(score.program, tuple(needed))
        kernel = backward_source.Backward(
            width=width,
            value_width=width_v,
            score=derivative,
            mask=None if mod is None else mod.program,
            lens=kv_lens is not None,
            offsets=isinstance(q_offset, Tensor),
            dropout=dropout_p > 0,
        )
        module = load(backward_source.source(kernel))
        if rows:
            module.delta[-(-rows // 64), batch * heads](
                out, grad_out, grad_lse, delta, *out.stride()[:3], *grad_out.stride()[:3], heads, rows,
                EV=width_v, EV_PAD=_padded(width_v), HAS_DLSE=grad_lse is not None, BLOCK_M=64,
            )  # fmt: skip
        scattered = sorted({s.capture for s in derivative.scatters}) if derivative is not None else []
        offsets = q_offset.to(torch.int32) if isinstance(q_offset, Tensor) else None
        if keys:
            module.backward[-(-keys // tiles.keys), batch * kv_heads](
                q, k, v, grad_out, lse, delta, grad_q, grad_k, grad_v, row_ptr, runs,
                None if kv_lens is None else kv_lens.to(torch.int32), offsets,
                *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *grad_out.stride()[:3],
                heads, heads // kv_heads, k.shape[0], rows, keys, *strides, scale,
                0 if offsets is not None else q_offset, seed, threshold(dropout_p), 1 / (1 - dropout_p),
                *_places((score, mod)),
                *(a for n in scattered for a in (of_captures[n], *of_captures[n].stride())),  # type: ignore[union-attr]
                BLOCK_M=tiles.rows, BLOCK_N=tiles.keys, MASK_M=block[0], MASK_N=block[1],
                WHOLE_M=rows % tiles.rows == 0, WHOLE_N=keys % tiles.keys == 0,
                PRECISION=_precision(q), STAGES=tiles.stages, num_warps=tiles.warps,
            )  # fmt: skip
    if k.shape[0] < batch:
        grad_k, grad_v = (g.sum(0, keepdim=True) for g in (grad_k, grad_v))
    results = [None if g is None else g.to(c.dtype) for g, c in zip(of_captures, captures)]
    return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype), results, _of_sinks(sinks, lse, delta, grad_lse)


def _of_sinks(sinks: Tensor | None, lse: Tensor, delta: Tensor, grad_lse: Tensor | None) -> Tensor | None:
    """``Σ softmax weight of the sink · (grad_lse − Σ out · grad_out)``, which is ``−delta``."""
    if sinks is None:
        return None
    share = torch.exp(sinks.float().view(1, -1, 1) - lse).masked_fill(lse == float("-inf"), 0)
    return -(share * delta).sum((0, 2)).to(sinks.dtype)


@functools.lru_cache(maxsize=1024)
def _derivative(program: Program, needed: tuple[bool, ...]) -> Derivative:
    return differentiate(program, needed)


@functools.lru_cache(maxsize=64)
def _everything(rows: int, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Runs of a mask that hides nothing."""
    row_ptr = torch.arange(rows + 1, dtype=torch.int32, device=device)
    runs = torch.tensor([[0, columns << 1 | 1]], dtype=torch.int32, device=device).repeat(rows, 1)
    return row_ptr, runs


def _runs(
    mask: BlockMask | None, rows: int, keys: int, device: torch.device, columns: bool = False
) -> tuple[Tensor, Tensor, tuple[int, int], tuple[int, int]]:
    """Runs by rows or by columns, the block, and how many of them lie between batches and between heads."""
    if mask is None:
        block = (128, 128)
        counts = -(-rows // block[0]), -(-keys // block[1])
        return *_everything(*(counts[::-1] if columns else counts), device), block, (0, 0)
    pointers, runs = mask.transpose_runs() if columns else (mask.row_ptr, mask.runs)
    count = mask.geometry.columns if columns else mask.geometry.rows
    batches, heads = mask.shape[:2]
    return pointers, runs, mask.block, (count * heads if batches > 1 else 0, count if heads > 1 else 0)


def _places(mods: Sequence[Mod | None]) -> list[Any]:
    """Captured tensors with sizes and strides, and scalars, of each mod."""
    places: list[Any] = []
    for mod in mods:
        if mod is not None:
            for capture in mod.captures:
                places += [capture.detach(), *capture.shape, *capture.stride()]
            places += mod.scalars
    return places


def _inside(tiles: Tiles, block: tuple[int, int]) -> Tiles:
    """Tiles that divide a block."""
    rows = min(tiles.rows, block[0] & -block[0])
    keys = min(tiles.keys, block[1] & -block[1])
    return Tiles(rows, keys, tiles.warps, tiles.stages)


def _padded(width: int) -> int:
    return max(triton.next_power_of_2(width), LEAST)


def _precision(q: Tensor) -> str:
    """Of float32 products; TF32 where PyTorch's switch allows it."""
    allowed = q.is_cuda and torch.backends.cuda.matmul.fp32_precision == "tf32"
    return "tf32" if allowed else "ieee"


def _last_together(t: Tensor) -> Tensor:
    """With features side by side; other strides are free."""
    return t if t.stride(3) == 1 or t.shape[3] == 1 else t.contiguous()
