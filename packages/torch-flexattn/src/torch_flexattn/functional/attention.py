"""``flex_attention``: attention as the user's functions say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as theirs

from ..block_mask import BlockMask
from ..call import BLOCK, Call
from ..errors import InputError, KindError, UnsupportedError
from ..kernels.choose import kernels_for
from ..kernels.launch.again import Again
from ..listed_masks import is_moved, narrowed
from ..masks import with_lengths
from ..masks_of_calls import block_mask_of
from ..mods import MaskLike, MaskMod, ScoreLike
from ..mods import mask_mod as as_mask
from ..mods import score_mod as as_score
from ..ops import attention as ops
from ..ops.plain import needs_grad, outside_autocast
from ..options import KernelOptions
from .arguments import (
    asked_modes,
    check_block_mask,
    check_captures,
    check_dropout,
    check_features,
    check_flag,
    check_masks,
    check_modes,
    check_offset,
    check_per_batch,
    check_scale,
    check_sinks,
    in_autocast_type,
)
from .auxiliary import AuxOutput, AuxRequest
from .dense import by_reference, whole_mask
from .fp8 import check_forward_only, descales_of
from .functions import functions_left
from .jagged import is_nested
from .parts import of_parts
from .remembered import is_repeated, key_of, recall, remember
from .sharded import is_distributed
from .table_sizes import check_head_tables, check_table_sizes

Backend = Literal["auto", "triton", "hopper", "decode", "cpu", "reference"]
BACKENDS = ("auto", "triton", "hopper", "decode", "cpu", "reference")


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: ScoreLike | None = None,
    block_mask: BlockMask | theirs.BlockMask | MaskLike | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: KernelOptions | Mapping[str, Any] | None = None,
    *,
    return_aux: AuxRequest | None = None,
    mask_mod: MaskLike | None = None,
    q_offset: int | Tensor | None = None,
    kv_lens: Tensor | None = None,
    sinks: Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int | Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    deterministic: bool | None = None,
    batch_invariant: bool = False,
    backend: Backend = "auto",
    check: bool | None = None,
) -> Any:
    """Attention with a score modification and a mask, in time and memory of what is visible.

    For batch ``b``, query head ``h``, query ``i`` and key ``j``: ``s = scale · <query, key>``, then ``score_mod``, then
    −inf where the mask is False; ``out = Σ_j softmax_j(s) · value``. A query that sees nothing gets 0.

    Args:
        query: ``[B, Hq, L, E]``; float32, float64, float16, bfloat16, or float8_e4m3fn without gradients (8 and 16 bits
            are computed in float32). Jagged nested tensors, ``[B, Hq, j, E]`` or ``[B, j, Hq, E]``, give one of the
            same layout: sequences stay apart.
        key: ``[B, Hkv, S, E]``, or ``[1, Hkv, S, E]`` for all of a batch; of the type of ``query``, or, with ``value``,
            float8_e4m3fn.
        value: ``[B, Hkv, S, Ev]``, or with batch 1.
        score_mod: ``(score, b, h, q_idx, kv_idx) -> score``; tensors that it captures may need gradients.
        block_mask: a :class:`BlockMask`, PyTorch's, or a mask: ``(b, h, q_idx, kv_idx) -> bool``, True where visible.
            The blocks of a mask are found once and remembered; with ``q_offset`` those of a :class:`BlockMask` are
            found anew from its mask.
        scale: of the products; default ``1/√E``.
        enable_gqa: allow ``Hq`` to be a multiple of ``Hkv``: neighbouring query heads share a key head.
        return_lse: return ``(out, lse)``.
        kernel_options: a :class:`KernelOptions`, or its entries as a dict.
        return_aux: return ``(out, AuxOutput)`` with what it asks for.
        mask_mod: a mask beside ``block_mask``: both apply.
        q_offset: what is added to the number of a query, as mods see it: one, or int ``[B]``.
        kv_lens: int ``[B]``: how many keys of each batch entry there are; those behind are never read.
        sinks: ``[Hq]``: a further score in each softmax, of a key whose value is 0.
        dropout_p: share of the softmax that is dropped, the rest scaled by ``1/(1 - dropout_p)``.
        seed: of the dropout: an integer, or an int64 tensor ``[]`` or ``[1]``, which a GPU reads when it computes, so
            that a CUDA graph takes another by writing it; default: drawn from PyTorch's default generator.
        q_descale: of 8-bit queries: float32 ``[B, Hq]``, ``[B, Hkv]``, one of these without ``B``, or ``[]``: what a
            stored number is multiplied by, which :func:`quantize_fp8` gives. Default: 1.
        k_descale: of 8-bit keys: float32 ``[B, Hkv]``, ``[Hkv]`` or ``[]``. ``score_mod`` sees scores of the true size.
        v_descale: of 8-bit values, likewise.
        deterministic: equal arguments give equal gradients, bit for bit, in every run: those of query, key, value,
            sinks and captured tensors (outputs do so anyway). Slower on a GPU. Default: as
            ``torch.use_deterministic_algorithms`` says.
        batch_invariant: bits of a batch entry's output do not depend on the other entries, on their number, or on
            padding behind ``kv_lens``: on a GPU by one kernel for all sizes and shares of 2,048 keys in decoding, on a
            CPU by computing each entry by itself. Entries are compared in calls of equally many queries.
        backend: ``"auto"`` takes the best kernels that can serve; ``"triton"`` the portable ones of GPUs, ``"hopper"``
            those of compute capability 9.0, ``"decode"`` those of few queries (forward alone), each or fails; ``"cpu"``
            computes block by block in PyTorch operations, anywhere; ``"reference"`` is dense, in float64, for any
            derivative.
        check: raise where a visible position reads a captured tensor out of range (it counts as 0 otherwise), or a
            hidden one is hidden by such a read; default: on a CPU. On a GPU it takes the slow kernels of ``"cpu"``;
            without it, a tensor that is too short for the sizes of the call is still found. Keys behind ``kv_lens``
            do not count.

    Returns:
        ``[B, Hq, L, Ev]`` with the dimensions in memory in the order of ``query``, in its type (bfloat16 for 8 bits),
        or what ``return_lse`` or ``return_aux`` say.

    Raises:
        InputError: sizes, devices or values that do not fit (also a ValueError).
        KindError: the wrong type: a dtype, a function with other arguments (also a TypeError).
        UnsupportedModError: a mod that no kernel can evaluate (also a NotImplementedError).
        UnsupportedError: ``backend`` or ``kernel_options`` name kernels or tiles that cannot serve; a gradient of a
            call with 8 bits.
        OutOfRangeError: see ``check``.

    Example:
        >>> import torch
        >>> from torch_flexattn import flex_attention, masks
        >>> q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
        >>> flex_attention(q, k, v, block_mask=masks.causal()).shape
        torch.Size([1, 2, 5, 8])

    Reference:
        FlexAttention (Dong et al., MLSys 2025), section 3; arguments as torch.nn.attention.flex_attention;
        descales as of FlashAttention-3 (Shah et al., 2024, section 3.3).
    """
    options = KernelOptions.of(kernel_options)
    mods = (score_mod, block_mask, mask_mod)
    known = None
    if q_descale is None and k_descale is None and v_descale is None:
        known = key_of(
            query, key, value, sinks, mods, q_offset, kv_lens, dropout_p, scale, enable_gqa, return_lse, return_aux,
            backend, check, options, *asked_modes(deterministic, batch_invariant),
        )  # fmt: skip
    if known is not None:
        call = recall(known)
        if call is not None:
            return _returned(ops.attention(query, key, value, sinks, call), return_lse, return_aux)
    if is_nested(query) or is_nested(key) or is_nested(value) or any(map(is_distributed, (query, key, value))):
        others = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
        return of_parts(
            flex_attention, query, key, value, score_mod, (block_mask, mask_mod), others, q_offset=q_offset,
            kv_lens=kv_lens, sinks=sinks, dropout_p=dropout_p, return_lse=return_lse, return_aux=return_aux,
            scale=scale, enable_gqa=enable_gqa, seed=seed, kernel_options=options, deterministic=deterministic,
            batch_invariant=batch_invariant, backend=backend, check=check,
        )  # fmt: skip
    query, key, value = in_autocast_type(query, key, value)
    check_features(query, key, value, grouped=enable_gqa, eight_bits=True)
    descales = descales_of(query, key, value, q_descale, k_descale, v_descale)
    check_masks(block_mask, mask_mod)
    scale = check_scale(scale, query.shape[3])
    check_flag("enable_gqa", enable_gqa)
    check_flag("return_lse", return_lse)
    if check is not None:
        check_flag("check", check)
    check_dropout(dropout_p)
    check_sinks(sinks, query)
    check_offset(q_offset, query)
    check_per_batch("kv_lens", kv_lens, query, most=key.shape[2])
    if backend not in BACKENDS:
        raise InputError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
    if return_aux is not None and not hasattr(return_aux, "max_scores"):
        raise KindError(f"return_aux must be an AuxRequest, got {return_aux!r}")
    if return_aux is not None and return_lse:
        raise InputError("return_lse and return_aux exclude each other: ask for lse by AuxRequest(lse=True)")
    functions = functions_left((block_mask, mask_mod), score_mod, backend)
    if functions is not None:
        score_mod, block_mask, mask_mod = functions.others
    score = None if score_mod is None else as_score(score_mod)
    if score is not None:
        check_captures("score_mod", score.captures, query, score_mod)
    captures = () if score is None else score.captures
    check_forward_only(key, query, key, value, sinks, q_descale, k_descale, v_descale, *captures)
    deterministic = check_modes(deterministic, batch_invariant, backend, options, dropout_p, seed)
    q_offset = 0 if q_offset is None else q_offset
    drawn = _seed(seed) if dropout_p else 0
    wants = AuxRequest(lse=return_lse) if return_aux is None else return_aux
    if backend == "reference":
        mod = whole_mask(block_mask, mask_mod, query, key)
        with outside_autocast(query):
            results = by_reference(
                query, key, value, score, mod, scale, sinks, dropout_p, drawn, q_offset, kv_lens, descales
            )
    else:
        checks_sizes = check is None and kv_lens is None and query.device.type != "cpu"
        check = query.device.type == "cpu" if check is None else check
        if torch.compiler.is_compiling() or query.is_meta:
            mask = _mask_of_op(block_mask, mask_mod, query, key, q_offset)
        else:
            if score is not None:
                check_head_tables(score, query, key, checked=check)
            kernels = kernels_for(backend, query.device, query.dtype, check, options)
            trained = needs_grad(query, key, value, sinks, *captures)
            found = trained or not kernels.takes_mods(query, dropout_p) or is_repeated(known)
            mask = _blocks(block_mask, mask_mod, query, key, q_offset, check and kv_lens is None, found)
            if checks_sizes and mask is not None and not isinstance(block_mask, BlockMask | theirs.BlockMask):
                check_table_sizes(mask, query, key, q_offset)
        again = None if known is None else Again()
        call = Call(
            mask, score, scale, q_offset, kv_lens, dropout_p, drawn, check, wants.max_scores, backend, options,
            descales, deterministic, batch_invariant, again,
        )  # fmt: skip
        results = (functions or ops).attention(query, key, value, sinks, call)
        if known is not None:
            remember(known, call, mods)
    return _returned(results, return_lse, return_aux)


def _returned(results: ops.MaybeLargest, return_lse: bool, return_aux: AuxRequest | None) -> Any:
    out, lse, largest = results
    if return_aux is not None:
        return out, AuxOutput(lse if return_aux.lse else None, largest if return_aux.max_scores else None)
    return (out, lse) if return_lse else out


def _seed(seed: int | Tensor | None) -> int | Tensor:
    if seed is None:
        if torch.compiler.is_compiling():
            return torch.randint(0, 2**31, (1,), device="cpu")
        return int(torch.randint(0, 2**31, (), device="cpu").item())
    if isinstance(seed, Tensor):
        if seed.dtype != torch.int64:
            raise KindError(f"seed must be an integer or an int64 tensor, got a tensor of {seed.dtype}")
        if seed.numel() != 1 or seed.dim() > 1:
            raise InputError(f"seed must be one number, of shape () or (1,), got {tuple(seed.shape)}")
        return seed
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise KindError(f"seed must be an integer, got {seed!r}")
    if not 0 <= seed < 2**53:
        raise InputError(f"seed must be from 0 to 2**53 - 1, got {seed}")
    return seed


def _blocks(
    block_mask: Any, mask: MaskLike | None, q: Tensor, k: Tensor, q_offset: Tensor | int, check: bool, found: bool
) -> BlockMask | MaskMod | None:
    """The block mask of the call: the one given, or that of the masks given; these where none need be ``found``."""
    if isinstance(block_mask, theirs.BlockMask):
        block_mask = BlockMask.from_torch(block_mask)
    if isinstance(block_mask, BlockMask):
        check_block_mask(block_mask, q, k)
        moved = is_moved(block_mask, q_offset)
        if mask is None and not moved:
            return block_mask
        if mask is not None and block_mask.listed:
            other = with_lengths(as_mask(mask), q.shape[2], k.shape[2])
            check_captures("mask_mod", other.captures, q, mask)
            shape = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
            return narrowed(block_mask, other, shape, q_offset, check)
        given: list[MaskLike] = [m for m in (block_mask.mod, mask) if m is not None]
    else:
        given = [m for m in (block_mask, mask) if m is not None]
    if not given:
        return None
    mod = as_mask(given[0])
    for other in given[1:]:
        mod = mod & other
    mod = with_lengths(mod, q.shape[2], k.shape[2])
    check_captures("mask_mod", mod.captures, q, *given)
    if not found:
        return mod
    batches, heads, rows, _ = q.shape
    return block_mask_of(mod, (batches, heads, rows, k.shape[2]), BLOCK, q.device, q_offset, check)


def _mask_of_op(
    block_mask: Any, mask: MaskLike | None, q: Tensor, k: Tensor, q_offset: Tensor | int
) -> BlockMask | MaskMod | None:
    """Under a compiler, and of tensors without data: the mask, whose blocks the op finds."""
    if block_mask is not None and mask is not None:
        raise UnsupportedError("block_mask and mask_mod together under torch.compile: combine them with & outside")
    given = mask if block_mask is None else block_mask
    if isinstance(given, BlockMask):
        check_block_mask(given, q, k)
        if is_moved(given, q_offset):
            return given.mod
    return given if given is None or isinstance(given, BlockMask) else as_mask(given)
