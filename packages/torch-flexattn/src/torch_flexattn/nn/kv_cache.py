"""Keys and values of the tokens so far, in one buffer: for decoding with sequences of known greatest length."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError, KindError
from .arguments import check_sizes


def check_cache(cache: object, x: Tensor) -> None:
    """Raise where a layer's cache is none, or one of other sequences.

    Args:
        cache: ``None``, or a :class:`KVCache` of as many sequences as ``x``, ``[B, …]``, has.
        x: the input of the layer.

    Raises:
        InputError: another number of sequences.
        KindError: something else.
    """
    if cache is None:
        return
    if not isinstance(cache, KVCache):
        raise KindError(f"cache must be a KVCache, got {type(cache).__name__}")
    if cache.lengths.shape[0] != x.shape[0]:
        raise InputError(f"cache is of {cache.lengths.shape[0]} sequences, but x has shape {tuple(x.shape)}")


class KVCache:
    """A buffer of keys and values that layers append to, and how many there are of each sequence.

    Positions behind ``lengths`` hold nothing: attention gets ``kv_lens=cache.lengths`` and never reads them.

    Args:
        batch: sequences.
        num_kv_heads: heads of keys and values.
        max_length: tokens of the longest sequence.
        head_dim: features of a key.
        v_head_dim: features of a value; default ``head_dim``; 0 where values are part of the keys.
        dtype: of the buffers; default: PyTorch's.
        device: of the buffers.

    Raises:
        InputError: a size below 1.

    Example:
        >>> import torch
        >>> from torch_flexattn.nn import KVCache
        >>> cache = KVCache(batch=1, num_kv_heads=2, max_length=16, head_dim=4)
        >>> before = cache.append(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4))
        >>> before.tolist(), cache.lengths.tolist()
        ([0], [3])
    """

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        max_length: int,
        head_dim: int,
        *,
        v_head_dim: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        check_sizes(batch=batch, num_kv_heads=num_kv_heads, max_length=max_length, head_dim=head_dim)
        values = head_dim if v_head_dim is None else v_head_dim
        # One place more, behind the end, takes what does not fit.
        self._keys, self._values = (
            torch.zeros(batch, num_kv_heads, max_length + 1, width, dtype=dtype, device=device)
            for width in (head_dim, values)
        )
        self.lengths = torch.zeros(batch, dtype=torch.int32, device=device)

    @property
    def keys(self) -> Tensor:
        """``[B, Hkv, max_length, E]``."""
        return self._keys[:, :, :-1]

    @property
    def values(self) -> Tensor:
        """``[B, Hkv, max_length, Ev]``."""
        return self._values[:, :, :-1]

    @property
    def max_length(self) -> int:
        """Tokens that fit."""
        return self._keys.shape[2] - 1

    def append(self, k: Tensor, v: Tensor | None = None, counts: Tensor | None = None) -> Tensor:
        """Add tokens behind those that are there.

        Args:
            k: ``[B, Hkv, L, E]``.
            v: ``[B, Hkv, L, Ev]``; ``None`` where values are part of the keys.
            counts: int ``[B]``: how many of the ``L`` each sequence has, the first ones; default: all.

        Returns:
            int32 ``[B]``: how many there were before: the ``q_offset`` of the attention that follows.

        Raises:
            InputError: shapes that do not fit, ``counts`` that are not one a sequence; more than ``max_length`` tokens
                (looked at on a CPU only: elsewhere, and in compiled code, they are dropped).
        """
        for name, x, into in (("k", k, self.keys), ("v", v, self.values)):
            if x is not None and (x.shape[:2] != into.shape[:2] or x.shape[3] != into.shape[3]):
                wanted = f"({into.shape[0]}, {into.shape[1]}, L, {into.shape[3]})"
                raise InputError(f"{name} must have the shape {wanted} of this cache, got {tuple(x.shape)}")
        fresh = k.shape[2]
        if v is not None and v.shape[2] != fresh:
            raise InputError(f"v must have the {fresh} tokens of k, got {tuple(v.shape)}")
        if counts is not None and counts.shape != self.lengths.shape:
            raise InputError(f"counts must have the shape {tuple(self.lengths.shape)}, got {tuple(counts.shape)}")
        before = self.lengths
        added = torch.full_like(before, fresh) if counts is None else counts.to(before.dtype)
        after = before + added
        on_cpu = after.device.type == "cpu" and not torch.compiler.is_compiling()
        if on_cpu and int(after.max()) > self.max_length:
            raise InputError(f"k brings a sequence to {int(after.max())} tokens, and max_length is {self.max_length}")
        # Tokens that do not count are written too: nobody reads them, and those that come next take their places.
        places = before.unsqueeze(1).long() + torch.arange(fresh, device=k.device)
        places = places.clamp(max=self.max_length)[:, None, :, None]
        for x, into in ((k, self._keys), (v, self._values)):
            if x is not None:
                into.scatter_(2, places.expand_as(x), x.to(into.dtype))
        self.lengths = after
        return before

    def reset(self) -> None:
        """Forget all tokens; the buffers stay."""
        self.lengths = torch.zeros_like(self.lengths)

    def __repr__(self) -> str:
        batch, heads, length, width = self.keys.shape
        return f"KVCache(batch={batch}, num_kv_heads={heads}, max_length={length}, head_dim={width})"
