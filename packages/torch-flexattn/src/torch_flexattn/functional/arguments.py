"""What the tensors and options of a call must be; every message names the argument and what it got."""

from __future__ import annotations

import inspect
import math
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as theirs

from ..block_mask import BlockMask
from ..errors import DtypeError, InputError, KindError
from ..fp8 import FP8
from ..ops.plain import is_autocast_on
from ..options import KernelOptions
from ..unwrapped import is_transformed, unwrapped

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def in_autocast_type(*features: Tensor) -> list[Tensor]:
    """Query, key and value in the type of autocast, where that is on, as in PyTorch's attention; float64 and
    8 bits stay."""
    if not all(isinstance(t, Tensor) for t in features) or not is_autocast_on(features[0]):
        return list(features)
    low = torch.get_autocast_dtype(features[0].device.type)
    return [t.to(low) if t.is_floating_point() and t.dtype not in (torch.float64, FP8) else t for t in features]


def check_features(q: Tensor, k: Tensor, v: Tensor, *, grouped: bool, eight_bits: bool = False) -> None:
    """Ranks, sizes, types and devices of query, key and value; ``eight_bits``: whether those may be of 8 bits, all or
    key and value alone.

    Raises:
        InputError: sizes or devices that do not fit; heads that differ without ``grouped``.
        KindError: no floating-point tensors.
        DtypeError: of different types.
    """
    named = {"query": q, "key": k, "value": v}
    types = (*FLOATING, FP8) if eight_bits else FLOATING
    for name, t in named.items():
        if not isinstance(t, Tensor):
            raise KindError(f"{name} must be a tensor, got {type(t).__name__}")
        if t.dim() != 4:
            raise InputError(f"{name} must have shape [batch, heads, length, features], got {tuple(t.shape)}")
        if t.layout != torch.strided:
            raise KindError(f"{name} must be a dense tensor, got one of layout {t.layout}")
        if t.dtype not in types:
            raise KindError(f"{name} must be {named_types(types)}, got {t.dtype}")
    shapes = f"query {tuple(q.shape)}, key {tuple(k.shape)}, value {tuple(v.shape)}"
    if k.dtype != v.dtype or k.dtype not in (q.dtype, FP8):
        but = f" (key and value may both be {FP8} beside another query)" if eight_bits else ""
        raise DtypeError(f"query, key and value must have one dtype, got {q.dtype}, {k.dtype}, {v.dtype}{but}")
    if not q.device == k.device == v.device:
        raise InputError(f"query, key and value must be on one device, got {q.device}, {k.device}, {v.device}")
    if q.shape[3] != k.shape[3] or q.shape[3] == 0:
        raise InputError(f"query and key must have equally many features, at least one: {shapes}")
    if k.shape[:3] != v.shape[:3]:
        raise InputError(f"key and value must have the same batch, heads and length: {shapes}")
    if k.shape[0] not in (1, q.shape[0]):
        raise InputError(f"key and value must have the batch of query, or 1: {shapes}")
    if q.shape[1] == k.shape[1]:
        return
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise InputError(f"the heads of query must be a multiple of those of key: {shapes}")
    if not grouped:
        raise InputError(f"query and key have different numbers of heads: pass enable_gqa=True ({shapes})")


def named_types(types: Sequence[torch.dtype]) -> str:
    """As messages list them."""
    *names, last = (str(dtype).removeprefix("torch.") for dtype in types)
    return f"{', '.join(names)} or {last}"


def check_masks(block_mask: object, mask_mod: object) -> None:
    """Raise where one of the two masks of a call is what the other may be, or neither.

    Raises:
        KindError: it is.
    """
    if isinstance(mask_mod, BlockMask | theirs.BlockMask):
        raise KindError("mask_mod must be a function, got a BlockMask: pass it as block_mask")
    if block_mask is None or callable(block_mask) or isinstance(block_mask, BlockMask | theirs.BlockMask):
        return
    hint = ": masks.from_dense(mask) makes a mask of a dense tensor" if isinstance(block_mask, Tensor) else ""
    raise KindError(f"block_mask must be a BlockMask or a mask, got {type(block_mask).__name__}{hint}")


def check_scale(scale: float | None, width: int) -> float:
    """The factor of the products.

    Raises:
        KindError: no number.
    """
    if scale is None:
        return 1 / math.sqrt(width)
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise KindError(f"scale must be a number, got {scale!r}")
    return float(scale)


def check_flag(name: str, value: bool) -> bool:
    """An option that is on or off.

    Raises:
        KindError: it is neither.
    """
    if not isinstance(value, bool):
        raise KindError(f"{name} must be True or False, got {value!r}")
    return value


def asked_modes(deterministic: bool | None, batch_invariant: bool) -> tuple[Hashable, ...]:
    """What tells calls of other modes apart, before :func:`check_modes` has looked at them."""
    switch = deterministic is None and torch.are_deterministic_algorithms_enabled()
    return switch, deterministic, type(deterministic), batch_invariant, type(batch_invariant)


def check_modes(
    deterministic: bool | None,
    batch_invariant: bool,
    backend: str,
    options: KernelOptions | None,
    dropout_p: float,
    seed: int | Tensor | None,
) -> bool:
    """Whether gradients must be equal in every run: as asked for, or as PyTorch's switch says.

    Raises:
        KindError: an option that is neither on nor off.
        InputError: what cannot be kept: without a seed, or with a place in the batch that decides what is dropped, or
            in PyTorch's own operations, which ``backend="reference"`` consists of, by Hopper's backward kernels, or
            by tiles that were found by timing another batch.
    """
    check_flag("batch_invariant", batch_invariant)
    switch = torch.are_deterministic_algorithms_enabled()
    if deterministic is not None and check_flag("deterministic", deterministic):
        if dropout_p and seed is None:
            raise InputError(f"deterministic=True with dropout_p={dropout_p} needs a seed, got seed=None")
        if backend == "reference" and not switch:
            raise InputError(
                "deterministic=True with backend='reference', whose gradients are PyTorch's: call "
                "torch.use_deterministic_algorithms(True), too"
            )
        if backend == "hopper":
            raise InputError(
                "deterministic=True with backend='hopper', whose backward kernels add in an order that varies: "
                "leave backend='auto'"
            )
    if batch_invariant and dropout_p:
        raise InputError(
            f"batch_invariant=True with dropout_p={dropout_p}: the place in the batch decides what is dropped"
        )
    if batch_invariant and backend == "reference":
        raise InputError("batch_invariant=True with backend='reference', whose products are those of a whole batch")
    if batch_invariant and options is not None and options.autotune:
        raise InputError(
            f"batch_invariant=True with kernel option autotune={options.autotune!r}, which finds tiles by timing a "
            "batch: give sizes, or neither"
        )
    return switch if deterministic is None else deterministic


def check_block_mask(mask: BlockMask, q: Tensor, k: Tensor) -> None:
    """Raise where a block mask was made for other inputs.

    Raises:
        InputError: other lengths, batches, heads or device.
    """
    batches, heads, queries, keys = mask.shape
    if (queries, keys) != (q.shape[2], k.shape[2]):
        raise InputError(
            f"block_mask is for {queries} queries and {keys} keys, but query has {q.shape[2]} and key {k.shape[2]}: "
            "cut it with block_mask.crop(q_len, kv_len), or pass mask_mod and no block mask"
        )
    if batches not in (1, q.shape[0]) or heads not in (1, q.shape[1]):
        raise InputError(
            f"block_mask is for batch {batches} and {heads} heads, but query has batch {q.shape[0]} and {q.shape[1]} "
            "heads"
        )
    if mask.device != q.device:
        raise InputError(f"block_mask is on {mask.device}, but query is on {q.device}: move it with .to()")


def check_offset(value: Tensor | int | None, q: Tensor) -> None:
    """Raise where ``q_offset`` is neither a number nor one for each batch entry; see :func:`check_per_batch`.

    Raises:
        KindError: another type.
        InputError: negative, or another shape or device; a query numbered 2³¹ or more.
    """
    if isinstance(value, bool) or not (value is None or isinstance(value, int | Tensor)):
        raise KindError(f"q_offset must be an integer or a tensor of them, got {type(value).__name__}")
    if isinstance(value, int):
        if value < 0:
            raise InputError(f"q_offset must not be negative, got {value}")
        high = value
    else:
        check_per_batch("q_offset", value, q)
        if value is None or value.device.type != "cpu" or not value.numel() or torch.compiler.is_compiling():
            return
        high = int(value.max())
    most = 2**31 - max(q.shape[2], 1)
    if high > most:
        raise InputError(f"q_offset must be at most {most} with {q.shape[2]} queries (indices are int32), got {high}")


def check_per_batch(name: str, value: Tensor | None, q: Tensor, *, most: int | None = None) -> None:
    """Raise where ``value`` is no integer tensor ``[B]``; its numbers are looked at on a CPU only.

    Raises:
        KindError: another type.
        InputError: another shape or device, a negative number, one above ``most``.
    """
    if value is None:
        return
    if not isinstance(value, Tensor) or value.dtype not in (torch.int32, torch.int64):
        got = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise KindError(f"{name} must be an int32 or int64 tensor, got {got}")
    if value.shape != q.shape[:1]:
        raise InputError(f"{name} must have shape ({q.shape[0]},), one a batch entry, got {tuple(value.shape)}")
    if value.device != q.device:
        raise InputError(f"{name} is on {value.device}, but query is on {q.device}")
    if value.device.type == "cpu" and value.numel() and not torch.compiler.is_compiling():
        low, high = (int(end) for end in value.aminmax())
        if low < 0:
            raise InputError(f"{name} must not be negative, got {low}")
        if most is not None and high > most:
            raise InputError(f"{name} must be at most {most}, the number of keys, got {high}")


def check_dropout(dropout_p: float) -> None:
    """Raise where ``dropout_p`` is no share below 1.

    Raises:
        InputError: it is not.
    """
    if isinstance(dropout_p, bool) or not isinstance(dropout_p, int | float) or not 0 <= dropout_p < 1:
        raise InputError(f"dropout_p must be in [0, 1), got {dropout_p!r}")


def check_sinks(sinks: Tensor | None, q: Tensor) -> None:
    """Raise where ``sinks`` are not one score a query head.

    Raises:
        InputError: another shape or device.
        KindError: no floating-point tensor.
    """
    if sinks is None:
        return
    if not isinstance(sinks, Tensor) or not sinks.is_floating_point():
        raise KindError(f"sinks must be a floating-point tensor, got {getattr(sinks, 'dtype', type(sinks).__name__)}")
    if sinks.shape != q.shape[1:2]:
        raise InputError(f"sinks must have shape ({q.shape[1]},), one a query head, got {tuple(sinks.shape)}")
    if sinks.device != q.device:
        raise InputError(f"sinks are on {sinks.device}, but query is on {q.device}")


def check_captures(name: str, captures: tuple[Tensor, ...], q: Tensor, *functions: Any) -> None:
    """Raise where a captured tensor (but for single numbers) is on another device.

    Args:
        name: of the modification.
        captures: what it captures.
        q: the queries.
        functions: what it was made of: where one is a function, the message can name the variable.

    Raises:
        InputError: it is.
        UnsupportedError: ``torch.vmap`` runs over one.
    """
    if is_transformed():
        for capture in captures:
            unwrapped(capture)
    for capture in captures:
        if capture.dim() and capture.device != q.device:
            raise InputError(
                f"{name} captures a tensor{_variable(functions, capture)} of shape {tuple(capture.shape)} on "
                f"{capture.device}, but query is on {q.device}: move it there"
            )


def _variable(functions: tuple[Any, ...], tensor: Tensor) -> str:
    """By which variable functions read a tensor, if they do so by one."""
    for function in functions:
        if inspect.isfunction(function):
            read = inspect.getclosurevars(function)
            for name, value in (*read.nonlocals.items(), *read.globals.items()):
                if value is tensor:
                    return f" {name}"
    return ""
