"""``PagedKVCache``: keys and values of many sequences of different lengths, in pages of one pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError, KindError
from ..fp8 import FP8
from ..functional.arguments import FLOATING, check_flag, check_scale, check_sinks, named_types
from ..kernels.choose import Backend
from ..mods import MaskLike, ScoreLike
from ..ops.paged import PagedCall, paged_attention
from .allocator import Allocator, SeqId
from .arguments import check_count, check_seqs, check_sizes, check_slots, check_tensor, check_tokens
from .descales import pool_descales
from .pool import Pool
from .recorded import recorded
from .stats import CacheStats


class PagedKVCache:
    """Keys and values of sequences that grow at different speeds, in pages of one pool (PagedAttention).

    Sequences may share pages: a fork, or a prefix, costs no memory, and the first to write to a page that others hold
    gets a copy of it. Which pages belong to whom is known on the host; the table of pages and the lengths lie on the
    device as well, and one small copy a step brings them up to date. Nothing waits for the device.

    In a CUDA graph capture :meth:`write` and :meth:`attend`, and call :meth:`advance` before each replay.

    Args:
        num_pages: pages of the pool.
        page_size: tokens of a page, a power of two, at least 16.
        num_kv_heads: heads of keys and values.
        head_dim: features of a key.
        max_seqs: sequences that may live at a time.
        v_head_dim: features of a value; default ``head_dim``.
        max_tokens: of one sequence, at most; default: what the pages hold. The table has a place for each of its pages.
        dtype: of keys and values; default PyTorch's. ``torch.float8_e4m3fn`` stores what is written in 8 bits.
        device: of the pool; default PyTorch's.
        k_descale: of a pool of 8 bits: what a stored key is multiplied by, a number or ``[num_kv_heads]``; default 1.
        v_descale: of a stored value, likewise.

    Raises:
        InputError: a size that is not positive; a page size that is no power of two from 16 on; a factor that is not
            positive, or one for a pool of more bits.
        KindError: a dtype that is no floating-point type; a size that is no integer; a factor that is no number.

    Example:
        >>> import torch
        >>> from torch_flexattn import PagedKVCache, masks
        >>> cache = PagedKVCache(num_pages=8, page_size=16, num_kv_heads=2, head_dim=8, max_seqs=4)
        >>> first = cache.allocate(20)
        >>> cache.append([first], torch.randn(1, 2, 20, 8), torch.randn(1, 2, 20, 8))
        >>> second = cache.fork(first)
        >>> cache.append([first, second], torch.randn(2, 2, 1, 8), torch.randn(2, 2, 1, 8))
        >>> cache.attend(torch.randn(2, 4, 1, 8), [first, second], mask_mod=masks.sliding_window(16)).shape
        torch.Size([2, 4, 1, 8])
        >>> cache.stats().free_pages
        5

    Reference:
        PagedAttention (Kwon et al., SOSP 2023); FlexAttention (MLSys 2025), section 4.4.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        max_seqs: int,
        v_head_dim: int | None = None,
        max_tokens: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        k_descale: float | Tensor | None = None,
        v_descale: float | Tensor | None = None,
    ) -> None:
        v_head_dim = head_dim if v_head_dim is None else v_head_dim
        self._has_limit = max_tokens is not None
        max_tokens = num_pages * page_size if max_tokens is None else max_tokens
        check_sizes(
            num_pages=num_pages, page_size=page_size, num_kv_heads=num_kv_heads, head_dim=head_dim, max_seqs=max_seqs,
            v_head_dim=v_head_dim, max_tokens=max_tokens,
        )  # fmt: skip
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in (*FLOATING, FP8):
            raise KindError(f"dtype must be {named_types((*FLOATING, FP8))}, got {dtype}")
        device = torch.empty(0, device=device).device
        descales = pool_descales(k_descale, v_descale, num_kv_heads, dtype, device)
        width = min(-(-max_tokens // page_size), num_pages)
        self._pool = Pool(
            (num_pages, page_size, num_kv_heads), (head_dim, v_head_dim), max_seqs, width, dtype, device, descales
        )  # fmt: skip
        self.max_tokens = min(max_tokens, width * page_size)
        self._pages = Allocator(num_pages, page_size, max_seqs, width)

    @property
    def k_pages(self) -> Tensor:
        """Keys, ``[num_pages, page_size, num_kv_heads, head_dim]``."""
        return self._pool.keys

    @property
    def v_pages(self) -> Tensor:
        """Values, ``[num_pages, page_size, num_kv_heads, v_head_dim]``."""
        return self._pool.values

    @property
    def table(self) -> Tensor:
        """The pages of each slot, in order; int32 ``[max_seqs, pages of a sequence]``."""
        return self._pool.table

    @property
    def lengths(self) -> Tensor:
        """Tokens in each slot, int32 ``[max_seqs]``."""
        return self._pool.lengths

    @property
    def page_size(self) -> int:
        """Tokens of a page."""
        return self._pages.page_size

    @property
    def device(self) -> torch.device:
        """Where the pool is."""
        return self.k_pages.device

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and values."""
        return self.k_pages.dtype

    def length(self, seq: SeqId) -> int:
        """Tokens of a sequence.

        Raises:
            NoSuchSequence: no such sequence.
        """
        return self._pages.of(seq).length

    def allocate(self, n: int = 0) -> SeqId:
        """A new sequence, still without tokens, with pages in reserve for ``n``.

        Raises:
            OutOfPages: too few are free; nothing was changed.
            OutOfSequences: ``max_seqs`` live.
            InputError: ``n`` is negative, or more than the ``max_tokens`` given.
        """
        self._check_tokens_more(n, 0)
        seq = self._pages.allocate(n)
        self._pool.update(self._pages)
        return seq

    def extend(self, seq: SeqId, n: int) -> None:
        """Put pages in reserve for ``n`` tokens more than the sequence has.

        Raises:
            OutOfPages: too few are free; nothing was changed.
            NoSuchSequence: no such sequence.
            InputError: ``n`` is negative, or the sequence would be longer than the ``max_tokens`` given.
        """
        self._check_tokens_more(n, self.length(seq))
        self._pages.reserve(seq, n)
        self._pool.update(self._pages)

    def append(self, seqs: Sequence[SeqId], k: Tensor, v: Tensor) -> None:
        """Write new tokens behind those of the sequences.

        Args:
            seqs: ``n`` different sequences.
            k: ``[n, num_kv_heads, L, head_dim]``: keys of ``L`` tokens of each; for a cache of 8 bits, of 16 or 32.
            v: ``[n, num_kv_heads, L, v_head_dim]``.

        Raises:
            OutOfPages: too few are free; nothing was changed.
            NoSuchSequence: no such sequence.
            InputError: shapes or devices that do not fit; a sequence named twice, or longer than the
                ``max_tokens`` given then.
            KindError: another dtype than that of the cache.
        """
        check_tokens(seqs, k, v, self.k_pages, self.v_pages)
        self.advance(seqs, k.shape[2])
        self.write(seqs, k, v)

    def advance(self, seqs: Sequence[SeqId], n: int) -> None:
        """Make room for ``n`` tokens behind those of each sequence and count them in: the part of :meth:`append` that
        the host does. :meth:`write` fills them.

        Raises:
            OutOfPages: too few are free; nothing was changed.
            NoSuchSequence: no such sequence.
            InputError: a sequence named twice, or longer than the ``max_tokens`` given then.
        """
        self._check_tokens_more(n, self._longest("seqs", seqs))
        self._pages.grow(seqs, n)
        self._pool.update(self._pages)

    def write(self, seqs: Sequence[SeqId] | Tensor, k: Tensor, v: Tensor) -> None:
        """Write the last tokens of the sequences, which :meth:`advance` made room for: the part of :meth:`append` that
        the device does; a captured graph finds the pages anew at each replay, a compiled one at each call.

        Args:
            seqs: ``n`` different sequences, or what :meth:`slots` gave for them.
            k: ``[n, num_kv_heads, L, head_dim]``.
            v: ``[n, num_kv_heads, L, v_head_dim]``.

        Raises:
            NoSuchSequence: no such sequence.
            InputError: shapes or devices that do not fit; fewer than ``L`` tokens.
            KindError: another dtype than that of the cache.
        """
        check_tokens(seqs, k, v, self.k_pages, self.v_pages)
        tokens = k.shape[2]
        self._reach("k", seqs, tokens)
        if not len(seqs) or not tokens:
            return
        self._pool.write(self._slots(seqs), k, v)

    def fork(self, seq: SeqId) -> SeqId:
        """A new sequence with the same tokens, in the same pages until one of both writes.

        Raises:
            OutOfSequences: ``max_seqs`` live.
            NoSuchSequence: no such sequence.
        """
        return self.share_prefix(seq, self.length(seq))

    def share_prefix(self, seq: SeqId, n: int) -> SeqId:
        """A new sequence with the first ``n`` tokens of another, in the same pages until one of both writes.

        Raises:
            OutOfSequences: ``max_seqs`` live.
            NoSuchSequence: no such sequence.
            InputError: it has fewer tokens.
        """
        check_count("n", n, self.length(seq))
        new = self._pages.share(seq, n)
        self._pool.update(self._pages)
        return new

    def free(self, seq: SeqId) -> None:
        """The sequence is no more; pages that it alone held are free.

        Raises:
            NoSuchSequence: no such sequence, or freed before.
        """
        self._pages.remove(seq)
        self._pool.forget(seq)
        self._pool.update(self._pages)

    def trim(self, seq: SeqId, n: int) -> None:
        """Forget all tokens but the first ``n``, and what was in reserve.

        Raises:
            NoSuchSequence: no such sequence.
            InputError: it has fewer tokens.
        """
        check_count("n", n, self.length(seq))
        self._pages.trim(seq, n)
        self._pool.update(self._pages)

    def attend(
        self,
        q: Tensor,
        seqs: Sequence[SeqId] | Tensor,
        score_mod: ScoreLike | None = None,
        mask_mod: MaskLike | None = None,
        scale: float | None = None,
        sinks: Tensor | None = None,
        return_lse: bool = False,
        *,
        batch_invariant: bool = False,
        backend: Backend = "auto",
        check: bool | None = None,
    ) -> Any:
        """Attention of the last tokens of sequences over all of their tokens.

        Mods see positions in the sequence: the last query has the number of the last key, and a mask of training serves
        as it is. Queries see later keys unless a mask hides them. ``b`` counts the sequences of this call. A mask that
        depends on lengths (``causal("bottom_right")``) is that of as many queries as keys. A plain function is recorded
        at each call; what :func:`mask_mod` or :mod:`masks` made was, once.

        Up to 16 queries a sequence the kernel finds the pages itself. More, as at the prompt, and CPUs: pages are put
        side by side first, which takes memory and, for a mask, waits for the device.

        Args:
            q: ``[n, Hq, L, head_dim]``: queries of the last ``L`` tokens of each; ``Hq`` is a multiple of
                ``num_kv_heads``, any. With a cache of 8 bits, of 16 or 32.
            seqs: ``n`` sequences of at least ``L`` tokens, or what :meth:`slots` gave for them. The host looks at their
                lengths only where it is given sequences, outside of compiled code.
            score_mod: ``(score, b, h, q_idx, kv_idx) -> score``.
            mask_mod: ``(b, h, q_idx, kv_idx) -> bool``, True where visible.
            scale: of the products; default ``1/√head_dim``.
            sinks: ``[Hq]``: a further score in each softmax, of a key whose value is 0.
            return_lse: return ``(out, lse)``, ``lse`` float32 (float64 for float64) ``[n, Hq, L]``.
            batch_invariant: as of ``flex_attention``: bits of a sequence do not depend on the others.
            backend: as of ``flex_attention``; there is no reference.
            check: as of ``flex_attention``.

        Returns:
            ``[n, Hq, L, v_head_dim]``, or what ``return_lse`` says.

        Raises:
            NoSuchSequence: no such sequence.
            InputError: shapes or devices that do not fit; a sequence of fewer than ``L`` tokens.
            KindError: another dtype than that of the cache.
            UnsupportedError: a gradient is asked for; inside ``torch.compile``, a mod that was made there.
        """
        check_seqs(seqs)
        heads, width = self.k_pages.shape[2:]
        check_tensor("q", q, self.k_pages, (len(seqs), None, None, width))
        if not q.shape[1] or q.shape[1] % heads:
            raise InputError(f"q must have a multiple of num_kv_heads={heads} heads, got {tuple(q.shape)}")
        longest = self._reach("q", seqs, q.shape[2])
        if backend not in ("auto", "triton", "cpu"):
            raise InputError(f"backend must be auto, triton or cpu, got {backend!r}")
        check_sinks(sinks, q)
        score, mask = recorded(q, score_mod, mask_mod)
        call = PagedCall(
            mask=mask,
            score=score,
            scale=check_scale(scale, width),
            most_keys=self.max_tokens if self._pool.is_captured() else longest,
            check=self.device.type == "cpu" and backend != "triton" if check is None else check,
            backend=backend,
            descales=self._pool.descales_of(*q.shape[:2]),
            batch_invariant=check_flag("batch_invariant", batch_invariant),
        )
        slots = self._slots(seqs)
        out, lse, _ = paged_attention(q, self.k_pages, self.v_pages, self.table, self.lengths, slots, sinks, call)
        return (out, lse) if return_lse else out

    def slots(self, seqs: Sequence[SeqId]) -> Tensor:
        """Where sequences lie on the device, int32 ``[n]``, as long as they live: for :meth:`write` and :meth:`attend`
        inside ``torch.compile``, to which other sequences are then no other graph.

        Raises:
            NoSuchSequence: no such sequence.
        """
        return self._pool.slots_of(seqs, lambda seq: self._pages.of(seq).slot)

    def block_table(self, seqs: Sequence[SeqId]) -> Tensor:
        """The pages of sequences, in order; int32 ``[n, pages of the longest]``, −1 where a shorter one has none.

        Raises:
            NoSuchSequence: no such sequence.
        """
        check_seqs(seqs)
        counts = [-(-self.length(seq) // self.page_size) for seq in seqs]
        found = self.table.index_select(0, self._slots(seqs))[:, : max(counts, default=0)]
        there = torch.tensor(counts, device=self.device).view(-1, 1)
        return found.masked_fill(torch.arange(found.shape[1], device=self.device) >= there, -1)

    def stats(self) -> CacheStats:
        """What the cache holds."""
        return CacheStats(
            sequences=len(self._pages.sequences),
            tokens=sum(sequence.length for sequence in self._pages.sequences.values()),
            pages=len(self._pages.holders),
            free_pages=len(self._pages.free),
            shared_pages=sum(count > 1 for count in self._pages.holders),
            memory_bytes=self._pool.memory_bytes,
        )

    def __repr__(self) -> str:
        pages, size, heads, width = self.k_pages.shape
        return f"PagedKVCache({pages} pages of {size}, {heads} heads of {width}, {self.dtype}, {self.device})"

    def _slots(self, seqs: Sequence[SeqId] | Tensor) -> Tensor:
        return check_slots(seqs, self.table) if isinstance(seqs, Tensor) else self.slots(seqs)

    def _check_tokens_more(self, n: int, length: int) -> None:
        """Of a sequence that has ``length``; without a limit of its own the pages are its limit."""
        check_count("n", n, self.max_tokens - length if self._has_limit else None)

    def _longest(self, name: str, seqs: Sequence[SeqId], tokens: int = 0) -> int:
        """Tokens of the longest of sequences; refuses those of fewer than ``tokens``."""
        check_seqs(seqs)
        lengths = [self._pages.of(seq).length for seq in seqs]
        if min(lengths, default=tokens) < tokens:
            short = next(n for n, length in enumerate(lengths) if length < tokens)
            raise InputError(f"{name} is of {tokens} tokens, but sequence {seqs[short]} has {lengths[short]}")
        return max(lengths, default=0)

    def _reach(self, name: str, seqs: Sequence[SeqId] | Tensor, tokens: int) -> int:
        """No sequence has more tokens. A compiled graph must not depend on lengths that the host counts up."""
        if isinstance(seqs, Tensor) or torch.compiler.is_compiling():
            return self.max_tokens
        return self._longest(name, seqs, tokens)
