"""``selected_attention``: attention of each query to blocks of keys of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import reference
from ..errors import InputError, KindError
from ..factory_arguments import check_count
from ..ops import selected as ops
from ..ops.plain import outside_autocast
from .arguments import check_features, check_offset, check_scale, in_autocast_type
from .attention import BACKENDS, Backend


def selected_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_indices: Tensor,
    block_counts: Tensor | int | None = None,
    block_size: int = 64,
    scale: float | None = None,
    return_lse: bool = False,
    *,
    causal: bool = True,
    q_offset: int = 0,
    backend: Backend = "auto",
    check: bool | None = None,
) -> Any:
    """Attention in which every query sees the keys of a few blocks, those listed for it.

    The query heads that share a key head share its lists. For batch ``b``, key head ``g`` and query ``i``, block
    ``c = block_indices[b, g, i, m]`` shows the keys from ``c · block_size`` to before ``(c + 1) · block_size``, as far
    as they exist and, if ``causal``, are not behind the query. A query that sees nothing gets 0. The lists carry no
    gradient. Their tensors stay on the device, which is not waited for.

    Args:
        query: ``[B, Hq, L, E]``; float32, float64, float16 or bfloat16 (16 bits are summed in float32).
        key: ``[B, Hkv, S, E]``, or with batch 1; ``Hkv`` divides ``Hq``.
        value: ``[B, Hkv, S, Ev]``, or with batch 1.
        block_indices: int32 or int64 ``[B, Hkv, L, n]``, in any order; −1 stands for none.
        block_counts: how many of the ``n`` count, the first ones: int32 or int64 ``[B, Hkv, L]``, or one number for
            all; default: all.
        block_size: keys of a block, a multiple of 16.
        scale: of the products; default ``1/√E``.
        return_lse: return ``(out, lse)``, ``lse`` ``[B, Hq, L]``.
        causal: a query sees no key behind it.
        q_offset: what is added to the number of a query.
        backend: as of :func:`flex_attention`.
        check: raise for indices that are out of range or repeated and for counts that are; otherwise there are no
            blocks beyond the keys, and a repeated one counts once. Default: on a CPU.

    Returns:
        ``[B, Hq, L, Ev]`` with the dimensions in memory in the order of ``query``, and ``lse`` where it is asked for.

    Raises:
        InputError: sizes or devices that do not fit; see ``check``.
        KindError: a wrong type.
        UnsupportedError: ``backend="triton"`` where those kernels cannot serve; a second derivative.

    Example:
        >>> import torch
        >>> from torch_flexattn import selected_attention
        >>> q, k, v = torch.randn(1, 4, 40, 8), torch.randn(1, 2, 40, 8), torch.randn(1, 2, 40, 8)
        >>> blocks = torch.tensor([0, 2]).expand(1, 2, 40, 2)  # a query sees keys 0 to 15 and 32 to 39
        >>> selected_attention(q, k, v, blocks, block_size=16).shape
        torch.Size([1, 4, 40, 8])

    Reference:
        Yuan et al. 2025 (Native Sparse Attention, arXiv 2502.11089), sections 3.3.2 (equations 11 and 12) and 3.4.
    """
    query, key, value = in_autocast_type(query, key, value)
    check_features(query, key, value, grouped=True)
    scale = check_scale(scale, query.shape[3])
    block_size = check_count("block_size", block_size, 16)
    if block_size % 16:
        raise InputError(f"block_size must be a multiple of 16, got {block_size}")
    q_offset = check_count("q_offset", q_offset, 0)
    check_offset(q_offset, query)
    if backend not in BACKENDS:
        raise InputError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
    block_counts = _check_lists(block_indices, block_counts, query, key)
    blocks = -(-key.shape[2] // block_size)
    if not torch.compiler.is_compiling() and (query.device.type == "cpu" if check is None else check):
        _check_values(block_indices, block_counts, blocks)
    if backend == "reference":
        with outside_autocast(query):
            out, lse = reference.selected_attention(
                query, key, value, block_indices, block_counts, block_size=block_size, scale=scale, causal=causal,
                q_offset=q_offset,
            )  # fmt: skip
        exact = torch.float64 if query.dtype == torch.float64 else torch.float32
        out, lse = out.to(query.dtype), lse.to(exact)
    else:
        if key.shape[0] != query.shape[0]:
            key, value = (t.expand(query.shape[0], -1, -1, -1) for t in (key, value))
        selection = ops.Selection(block_size, scale, causal, q_offset, backend)
        chosen = _distinct(block_indices, block_counts, blocks)
        out, lse = ops.selected_attention(query, key, value, chosen, selection)
    return (out, lse) if return_lse else out


def _check_lists(indices: Tensor, counts: Tensor | int | None, q: Tensor, k: Tensor) -> Tensor | int | None:
    shape = (q.shape[0], k.shape[1], q.shape[2])
    for name, given in (("block_indices", indices), ("block_counts", counts)):
        if name == "block_counts" and (given is None or isinstance(given, int)):
            continue
        if not isinstance(given, Tensor) or given.dtype not in (torch.int32, torch.int64):
            got = given.dtype if isinstance(given, Tensor) else type(given).__name__
            raise KindError(f"{name} must be an int32 or int64 tensor, got {got}")
        wanted = (*shape, "n") if name == "block_indices" else shape
        if given.dim() != len(wanted) or given.shape[:3] != shape:
            listed = ", ".join(map(str, wanted))
            raise InputError(f"{name} must have the shape ({listed}) of these inputs, got {tuple(given.shape)}")
        if given.device != q.device:
            raise InputError(f"{name} is on {given.device}, but query is on {q.device}")
    return counts if counts is None or isinstance(counts, Tensor) else check_count("block_counts", counts, 0)


def _check_values(indices: Tensor, counts: Tensor | int | None, blocks: int) -> None:
    """Of what counts."""
    most = indices.shape[3]
    if isinstance(counts, Tensor):
        wrong = counts[(counts < 0) | (counts > most)]
    else:
        wrong = torch.tensor([] if counts is None or counts <= most else [counts], device="cpu")
    if wrong.numel():
        raise InputError(f"block_counts must be from 0 to {most}, the entries of a list; got {int(wrong[0])}")
    counted = _counted(indices, counts)
    wrong = indices[counted & ((indices < -1) | (indices >= blocks))]
    if wrong.numel():
        raise InputError(f"block_indices must be from -1 (none) to {blocks - 1}, got {int(wrong[0])}")
    ordered = torch.where(counted, indices, -1).sort(-1).values
    twice = ordered[..., 1:][(ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)]
    if twice.numel():
        raise InputError(f"block_indices names block {int(twice[0])} twice for one query")


def _counted(indices: Tensor, counts: Tensor | int | None) -> Tensor:
    number = torch.arange(indices.shape[3], device=indices.device)
    if counts is None:
        return torch.ones_like(indices, dtype=torch.bool)
    return (number < (counts.unsqueeze(-1) if isinstance(counts, Tensor) else counts)).expand_as(indices)


def _distinct(indices: Tensor, counts: Tensor | int | None, blocks: int) -> Tensor:
    """Lists as kernels take them: int32, ascending, every block once; ``blocks`` where there is none."""
    outside = ~_counted(indices, counts) | (indices < 0) | (indices >= blocks)
    ordered = indices.masked_fill(outside, blocks).to(torch.int32).sort(-1).values
    if ordered.shape[3] < 2:
        return ordered
    again = ordered[..., 1:] == ordered[..., :-1]
    return torch.cat([ordered[..., :1], ordered[..., 1:].masked_fill(again, blocks)], -1)
