"""Sequences of different lengths, packed one after the other: attention inside each, without padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..assembly import Assembly
from ..errors import FlexAttentionError, InputError, KindError
from ..filled import Mod
from ..masks.lengths import LengthGap
from ..mods import MaskLike, MaskMod, ScoreLike, ScoreMod
from ..mods import mask_mod as as_mask
from ..mods import score_mod as as_score
from ..options import KernelOptions
from .arguments import check_flag
from .attention import Backend, flex_attention
from .auxiliary import AuxOutput, AuxRequest
from .jagged import attend as of_sequences
from .jagged import is_nested
from .sequences import Sequences, sequences


def flex_attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    score_mod: ScoreLike | None = None,
    mask_mod: MaskLike | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    *,
    return_aux: AuxRequest | None = None,
    sinks: Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int | Tensor | None = None,
    kernel_options: KernelOptions | Mapping[str, Any] | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    deterministic: bool | None = None,
    batch_invariant: bool = False,
    backend: Backend = "auto",
    check: bool | None = None,
) -> Any:
    """Attention of packed sequences: queries of sequence ``b`` see keys of sequence ``b`` alone.

    Mods see the number of the sequence as ``b``, and positions inside it, so one mod serves packed and padded inputs;
    ``masks.causal("bottom_right")`` lets the last query of each sequence see its last key.

    Args:
        query: ``[T, Hq, E]``: the queries of all sequences, one sequence after the other. Jagged nested tensors
            ``[B, j, Hq, E]`` or ``[B, Hq, j, E]`` carry their ``cu_seqlens``, and give one of the same layout.
        key: ``[U, Hkv, E]``: their keys, in the same order.
        value: ``[U, Hkv, Ev]``.
        cu_seqlens_q: int ``[N + 1]``: where sequences begin and end among the queries: 0, …, ``T``.
        cu_seqlens_k: int ``[N + 1]``: the same among the keys: 0, …, ``U``.
        max_seqlen_q: the longest sequence of queries; taken because other functions of this kind need it. Nothing
            depends on it.
        max_seqlen_k: the longest sequence of keys, likewise.
        score_mod: as of :func:`flex_attention`.
        mask_mod: ``(b, h, q_idx, kv_idx) -> bool``, True where visible, inside a sequence.
        scale: as of :func:`flex_attention`, as are the options after it.
        enable_gqa: allow ``Hq`` to be a multiple of ``Hkv``.
        return_lse: return ``(out, lse)``, ``lse`` ``[T, Hq]``.
        return_aux: return ``(out, AuxOutput)``, each ``[T, Hq]``.
        sinks: ``[Hq]``.
        dropout_p: share of the softmax that is dropped, drawn by positions in the packed tensors.
        seed: of the dropout.
        kernel_options: of :func:`flex_attention`.
        q_descale: of 8-bit queries: float32 ``[Hq]``, ``[Hkv]`` or ``[]``, the same for all sequences.
        k_descale: of 8-bit keys: float32 ``[Hkv]`` or ``[]``.
        v_descale: of 8-bit values, likewise.
        deterministic: as of :func:`flex_attention`.
        batch_invariant: bits of a sequence's output do not depend on the others, on their number, or on its place:
            sequences are copied apart first, each to the beginning of a block. On a CPU, NaN or an infinity of one
            sequence may still change bits of others.
        backend: of :func:`flex_attention`.
        check: of :func:`flex_attention`.

    Returns:
        ``[T, Hq, Ev]``, or what ``return_lse`` or ``return_aux`` say.

    Raises:
        InputError: shapes that do not fit; ``cu_seqlens`` that do not begin at 0, fall, or do not end at the length; a
            sequence longer than ``max_seqlen`` (on a CPU).
        KindError: ``cu_seqlens`` that are no int32 or int64 tensors, or are given for nested ones.

    Example:
        >>> import torch
        >>> from torch_flexattn import flex_attention_varlen, masks
        >>> q, k, v = (torch.randn(7, 2, 8) for _ in range(3))
        >>> starts = torch.tensor([0, 3, 7])
        >>> flex_attention_varlen(q, k, v, starts, starts, mask_mod=masks.causal()).shape
        torch.Size([7, 2, 8])

    Reference:
        FlexAttention (MLSys 2025), section 3; packed inputs as in FlashAttention's ``varlen`` functions.
    """
    if is_nested(query) or is_nested(key) or is_nested(value):
        for name, given in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
            if given is not None:
                raise KindError(f"{name} must be left out for nested tensors, got {type(given).__name__}")
        return of_sequences(
            flex_attention_varlen, query, key, value, return_lse=return_lse, return_aux=return_aux, score_mod=score_mod,
            mask_mod=mask_mod, scale=scale, enable_gqa=enable_gqa, sinks=sinks, dropout_p=dropout_p, seed=seed,
            kernel_options=kernel_options, deterministic=deterministic, batch_invariant=batch_invariant,
            backend=backend, check=check,
        )  # fmt: skip
    for name, t in (("query", query), ("key", key), ("value", value)):
        if not isinstance(t, Tensor) or t.dim() != 3:
            shape = tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__
            raise InputError(f"{name} must have shape [tokens, heads, features], got {shape}")
    apart = check_flag("batch_invariant", batch_invariant)
    of_q = sequences("cu_seqlens_q", cu_seqlens_q, query, apart=apart)
    of_k = sequences("cu_seqlens_k", cu_seqlens_k, key, apart=apart)
    _check_longest("max_seqlen_q", max_seqlen_q, of_q)
    _check_longest("max_seqlen_k", max_seqlen_k, of_k)
    if of_q.begins.shape != of_k.begins.shape:
        raise InputError(
            f"cu_seqlens_q and cu_seqlens_k must have as many sequences, got {of_q.begins.shape[0]} and "
            f"{of_k.begins.shape[0]}"
        )
    mask = _inside(of_q, of_k)
    score: Any = None
    if torch.compiler.is_dynamo_compiling():  # which reads functions, and cannot read what writes programs
        mask = mask if mask_mod is None else mask & _inlined(as_mask(mask_mod), of_q, of_k)
        score = None if score_mod is None else _inlined(as_score(score_mod), of_q, of_k)
    else:
        mask = mask if mask_mod is None else mask & MaskMod(*_by_sequence(as_mask(mask_mod), of_q, of_k))
        score = None if score_mod is None else ScoreMod(*_by_sequence(as_score(score_mod), of_q, of_k))
    q, k, v = of_q.laid_out(query), of_k.laid_out(key), of_k.laid_out(value)
    try:
        found = flex_attention(
            q, k, v, score, mask, scale, enable_gqa, return_lse, return_aux=return_aux, sinks=sinks,
            dropout_p=dropout_p, seed=seed, kernel_options=kernel_options, q_descale=q_descale, k_descale=k_descale,
            v_descale=v_descale, deterministic=deterministic, batch_invariant=batch_invariant, backend=backend,
            check=check,
        )  # fmt: skip
    except FlexAttentionError as error:
        if error.place is None:
            raise
        raise _in_its_sequence(error, score_mod, mask_mod, of_q, of_k) from None
    if return_aux is not None:
        out, aux = found
        return of_q.packed(out), AuxOutput(*(None if t is None else of_q.packed(t) for t in aux))
    return tuple(of_q.packed(t) for t in found) if return_lse else of_q.packed(found)


def _check_longest(name: str, longest: int | None, of: Sequences) -> None:
    if longest is None:
        return
    if isinstance(longest, bool) or not isinstance(longest, int):
        raise KindError(f"{name} must be an integer, got {longest!r}")
    lengths = of.lengths
    found = int(lengths.max()) if lengths.device.type == "cpu" and lengths.numel() else 0
    if longest < found:
        raise InputError(f"{name} must be at least {found}, the longest sequence, got {longest}")


def _in_its_sequence(
    error: FlexAttentionError, score: ScoreLike | None, mask: MaskLike | None, of_q: Sequences, of_k: Sequences
) -> FlexAttentionError:
    """An error of reads out of range at a position of the pack, told of the sequence that has it."""
    assert error.place is not None
    _, head, query, key = error.place
    name = str(error).partition(" ")[0]
    mod = as_score(score) if name == "score_mod" and score is not None else as_mask(mask)  # type: ignore[arg-type]
    shapes = ", ".join(str(tuple(c.shape)) for c in mod.captures)
    number = int(of_q.number[query])
    place = number, head, query - int(of_q.first[query]), key - int(of_k.first[key])
    where = ", ".join(f"{axis}={at}" for axis, at in zip(("h", "q_idx", "kv_idx"), place[1:]))
    lengths = f"{int(of_q.lengths[number])} queries and {int(of_k.lengths[number])} keys"
    return type(error)(
        f"{name} reads a captured tensor (of shape {shapes}) out of range in sequence b={number}, at {where}: it has "
        f"{lengths}"
    ).at(place)


def _inside(of_q: Sequences, of_k: Sequences) -> MaskMod:
    """Keys of the query's own sequence: from its first to before the next one's."""
    begin, end = of_k.keys_of(of_q)
    return as_mask(lambda b, h, q_idx, kv_idx: (kv_idx >= begin[q_idx]) & (kv_idx < end[q_idx]))


def _by_sequence(mod: Mod, of_q: Sequences, of_k: Sequences) -> tuple[Any, tuple[Tensor, ...], tuple[int | float, ...]]:
    """The mod with sequences as its batch and positions inside them."""
    parts = Assembly()

    query, key = parts.builder.add("q", "int32"), parts.builder.add("kv", "int32")
    replaced = {}
    if "b" in mod.dependencies:
        replaced["b"] = parts.gather(of_q.number, query)
    if "q" in mod.dependencies:
        replaced["q"] = parts.builder.add("sub", "int32", query, parts.gather(of_q.first, query))
    if "kv" in mod.dependencies:
        replaced["kv"] = parts.builder.add("sub", "int32", key, parts.gather(of_k.first, key))
    waiting = [n for n, s in enumerate(mod.scalars) if isinstance(s, LengthGap)]
    filled = {}
    if waiting:  # for keys minus queries, which each sequence has its own of
        gap = parts.gather(of_k.lengths - of_q.lengths, parts.gather(of_q.number, query))
        filled = dict.fromkeys(waiting, gap)
    outputs = parts.append(mod, filled, **replaced)
    return parts.finish(*outputs)


def _inlined(mod: Callable[..., Any], of_q: Sequences, of_k: Sequences) -> Callable[..., Any]:
    """The same as a function; of a score modification the score comes first."""

    def inside(*arguments: Tensor) -> Any:
        *score, _, h, query, key = arguments
        return mod(*score, of_q.number[query], h, query - of_q.first[query], key - of_k.first[key])

    return inside
