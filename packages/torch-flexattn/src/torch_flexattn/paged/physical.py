"""``to_physical``: a block mask and mods of positions in sequences, over the pool of pages as one long row of keys.

Pages are the blocks of the result. Where page ``p`` of the pool is page ``inverse[b, p]`` of sequence ``b``, key ``j``
of the pool is key ``inverse[b, j // page] · page + j % page`` of the sequence; other keys are hidden. Kernels of
:meth:`PagedKVCache.attend` need none of this: they look up where a page lies. It is for kernels that know block masks
alone, and tells whether both agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ..assembly import Assembly
from ..block_mask import BlockMask
from ..errors import InputError, KindError
from ..mods import MaskMod, ScoreMod
from ..runs import assemble, columns_of, stretches
from .allocator import SeqId
from .cache import PagedKVCache

Given = TypeVar("Given", BlockMask, ScoreMod)


def to_physical(what: Given, cache: PagedKVCache, seqs: Sequence[SeqId]) -> Given:
    """A block mask, or a score modification, of keys in sequences as one of keys in the pool.

    It holds for the pages that the sequences have now. Attention then takes the whole pool as the keys of every batch
    entry: ``cache.k_pages.flatten(0, 1).transpose(0, 1).unsqueeze(0)``, ``[1, Hkv, num_pages · page_size, E]``.

    Args:
        what: a :class:`BlockMask` whose blocks have ``page_size`` keys, of at least as many keys as the longest
            sequence has; or a score modification.
        cache: the cache.
        seqs: ``n`` sequences, those of the batch entries.

    Returns:
        The block mask, of ``n`` batch entries and ``num_pages · page_size`` keys; or the score modification.

    Raises:
        InputError: blocks of another size; fewer keys than tokens; another batch; another device.
        KindError: something else.
        KeyError: no such sequence.

    Example:
        >>> import torch
        >>> from torch_flexattn import PagedKVCache, create_block_mask, flex_attention, masks, to_physical
        >>> cache = PagedKVCache(num_pages=8, page_size=16, num_kv_heads=2, head_dim=8, max_seqs=4)
        >>> first, second = cache.allocate(), cache.allocate()
        >>> for _ in range(2):
        ...     cache.append([second, first], torch.randn(2, 2, 12, 8), torch.randn(2, 2, 12, 8))
        >>> blocks = create_block_mask(masks.sliding_window(9).shift(q=23), None, None, 1, 24, BLOCK_SIZE=16)
        >>> k, v = (t.flatten(0, 1).transpose(0, 1).unsqueeze(0) for t in (cache.k_pages, cache.v_pages))
        >>> q = torch.randn(2, 2, 1, 8)
        >>> out = flex_attention(q, k, v, block_mask=to_physical(blocks, cache, [first, second]))
        >>> torch.allclose(out, cache.attend(q, [first, second], mask_mod=masks.sliding_window(9)), atol=1e-6)
        True

    Reference:
        FlexAttention (MLSys 2025), section 4.4.
    """
    if not isinstance(what, BlockMask | ScoreMod):
        raise KindError(f"what must be a BlockMask or a ScoreMod, got {type(what).__name__}")
    lengths = [cache.length(seq) for seq in seqs]
    inverse = _inverse(cache.block_table(seqs), cache.k_pages.shape[0])
    if isinstance(what, ScoreMod):
        parts = Assembly()
        key, _ = _logical(parts, inverse, cache.page_size)
        outputs = parts.append(what, kv=key)
        return ScoreMod(*parts.finish(*outputs))
    _check(what, cache, lengths)
    row_ptr, runs = _moved(what, inverse, lengths, cache)
    parts = Assembly()
    key, seen = _logical(parts, inverse, cache.page_size)
    bound = parts.gather(torch.tensor(lengths, dtype=torch.int32, device=cache.device), parts.builder.add("b", "int32"))
    seen = parts.builder.add("and", "bool", seen, parts.builder.add("lt", "bool", key, bound))
    if what.mod is not None:
        (own,) = parts.append(what.mod, kv=key)
        seen = parts.builder.add("and", "bool", seen, own)
    keys = cache.k_pages.shape[0] * cache.page_size
    shape = len(lengths), what.shape[1], what.shape[2], keys
    return BlockMask(row_ptr, runs, shape, what.block, MaskMod(*parts.finish(seen)), listed=True)


def _check(mask: BlockMask, cache: PagedKVCache, lengths: list[int]) -> None:
    if mask.block[1] != cache.page_size:
        raise InputError(f"what must have blocks of page_size={cache.page_size} keys, got {mask.block[1]}")
    if mask.shape[3] < max(lengths, default=0):
        raise InputError(
            f"what must have at least {max(lengths)} keys, those of the longest sequence, got {mask.shape[3]}"
        )
    if mask.shape[0] not in (1, len(lengths)):
        raise InputError(f"what must have batch 1 or {len(lengths)}, one for each sequence, got {mask.shape[0]}")
    if mask.device != cache.device:
        raise InputError(f"what is on {mask.device}, but the cache is on {cache.device}: move it with .to()")


def _inverse(table: Tensor, pages: int) -> Tensor:
    """Which page of its sequence each page of the pool is, −1 of none; int32 ``[n, pages]``."""
    inverse = torch.full((table.shape[0], pages + 1), -1, dtype=torch.int32, device=table.device)
    number = torch.arange(table.shape[1], dtype=torch.int32, device=table.device).expand_as(table)
    inverse.scatter_(1, table.masked_fill(table < 0, pages).long(), number.contiguous())
    return inverse[:, :pages].contiguous()


def _logical(parts: Assembly, inverse: Tensor, page: int) -> tuple[int, int]:
    """The key in the sequence that a key of the pool is, and whether it is one of it at all."""
    builder = parts.builder
    key, size = builder.add("kv", "int32"), parts.number(page)
    own = parts.gather(inverse, builder.add("b", "int32"), builder.add("floordiv", "int32", key, size))
    place = builder.add("mod", "int32", key, size)
    seen = builder.add("ge", "bool", own, builder.const(0, "int32"))
    own = builder.add("max", "int32", own, builder.const(0, "int32"))  # tables of other keys are read in range
    return builder.add("add", "int32", builder.add("mul", "int32", own, size), place), seen


def _moved(mask: BlockMask, inverse: Tensor, lengths: list[int], cache: PagedKVCache) -> tuple[Tensor, Tensor]:
    """The runs of a block mask, of pages where they lie; the last page of a sequence is full only if its tokens are."""
    pages, page, device = inverse.shape[1], cache.page_size, inverse.device
    batches, heads, rows = mask.shape[0], mask.shape[1], mask.geometry.rows
    row, column, is_full = columns_of(mask.row_ptr, mask.runs)
    found = []
    for entry, length in enumerate(lengths):
        batch = row // max(heads * rows, 1)
        mine = (batch == (entry if batches > 1 else 0)) & (column * page < length)
        where = torch.zeros(mask.geometry.columns, dtype=torch.int64, device=device)
        held = (inverse[entry] >= 0).nonzero().squeeze(1)
        where[inverse[entry, held].long()] = held
        place, whole = where[column[mine]], is_full[mine] & ((column[mine] + 1) * page <= length)
        at = row[mine] % max(heads * rows, 1) + entry * heads * rows
        ends = place[:, None] + torch.tensor([0, 1], device=device)
        found.append(stretches(pages, at[:, None], ends, whole[:, None].long()))
    return assemble(found, len(lengths) * heads * rows, pages, device)
