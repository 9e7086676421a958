"""What transformers says of a mask, as a mask of torch-flexattn.

transformers describes a mask by a function of single indices, a padding mask of single keys, and where queries and keys
begin in the sequence. The function is recorded as it is; no tensor of queries × keys is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad
from torch_flexattn import MaskMod, UnsupportedError, mask_mod
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    padding_mask_function,
)

MaskFunction = Callable[..., Any]
FEW_QUERIES = 16
"""Up to here kernels on a GPU find the blocks of a mask themselves: nothing need be read from the device before."""
CAUSAL = mask_mod(causal_mask_function)


class ModelMask(BlockMask):
    """The mask of one forward pass, as it travels through a model to its attention layers.

    A PyTorch ``BlockMask`` by name only, without blocks: transformers passes objects of that type on untouched.

    Args:
        mod: the mask; its keys are numbered from 0, its queries from ``q_offset``. ``None``: all is visible.
        shape: batches, heads, queries, keys.
        q_offset: number of the first query: one, or int ``[B]``.

    Example:
        >>> ModelMask(None, (2, 1, 3, 4)).shape
        (2, 1, 3, 4)
    """

    def __init__(self, mod: MaskMod | None, shape: tuple[int, int, int, int], q_offset: int | Tensor = 0) -> None:
        self.mod = mod
        self.q_offset = q_offset
        self._shape = shape

    @property
    def shape(self) -> tuple[int, ...]:
        """Batches, heads (1: all alike), queries, keys."""
        return self._shape

    @property
    def ndim(self) -> int:
        """Four, as of masks that are tensors: models ask it to tell a finished mask from one of padding."""
        return len(self._shape)

    def to(self, device: torch.device | str) -> ModelMask:
        """With its tensors on another device."""
        offset = self.q_offset.to(device) if isinstance(self.q_offset, Tensor) else self.q_offset
        return ModelMask(None if self.mod is None else self.mod.to(device), self._shape, offset)

    def __getitem__(self, index: object) -> Any:
        raise UnsupportedError(
            f"a model cuts its attention mask (with {index!r}), which is no tensor here: use "
            'attn_implementation="sdpa" or "eager" for it'
        )

    def __repr__(self) -> str:
        return f"ModelMask({self.mod!r}, {self._shape}, {self.q_offset!r})"

    __str__ = __repr__


@torch.compiler.disable
def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = causal_mask_function,
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    **unused: Any,
) -> ModelMask:
    """The mask of a forward pass, made once for all layers of a kind.

    Args:
        batch_size: number of sequences.
        q_length: number of queries.
        kv_length: number of keys, those of a static cache that are still empty included.
        q_offset: place of the first query in its sequence; a tensor of one where a cache keeps it on a device.
        kv_offset: place of the first key, where a cache has dropped keys.
        mask_function: ``(b, h, q_idx, kv_idx) -> bool`` of places in the sequence.
        attention_mask: bool ``[B, tokens]``, False where a token is padding.
        device: where the model runs.
        unused: what masks of other implementations need.

    Raises:
        UnsupportedModError: a ``mask_function`` that cannot be recorded.

    Example:
        >>> mask(1, 3, 3).shape
        (1, 1, 3, 3)

    Reference:
        transformers, ``masking_utils``: arguments as ``sdpa_mask``.
    """
    shape = (batch_size, 1, q_length, kv_length)
    looks = may_look(device, q_length)
    if isinstance(q_offset, Tensor):
        # The cache counts on in the same tensor while the layers run.
        q_offset = int(q_offset) if looks else lasting(q_offset.reshape(-1).expand(batch_size))
    if attention_mask is not None:
        attention_mask = attention_mask.to(torch.bool)
        read = attention_mask[:, kv_offset : kv_offset + kv_length]
        end = q_offset + q_length if mask_function is causal_mask_function else kv_offset + kv_length
        whole = isinstance(end, int) and attention_mask.shape[1] >= end
        if looks and whole and bool(read.all()):
            attention_mask = None
        else:
            attention_mask = lasting(pad(read, (0, kv_length - read.shape[1])))
    if sees_all(mask_function, q_length, q_offset, kv_offset + kv_length):
        of_keys = None if attention_mask is None else mask_mod(padding_mask_function(attention_mask))
        return ModelMask(of_keys, shape)
    return ModelMask(recorded(mask_function, attention_mask, kv_offset), shape, q_offset)


def may_look(device: torch.device | str, q_length: int) -> bool:
    """Whether contents of tensors may be read: not from a GPU in a step of decoding, which would wait for it."""
    return torch.device(device).type == "cpu" or q_length > FEW_QUERIES


def sees_all(mask_function: MaskFunction, q_length: int, q_offset: int | Tensor, end: int) -> bool:
    """Whether every query sees every key up to ``end`` that is no padding, told by which function it is."""
    if mask_function is bidirectional_mask_function:
        return True
    one_step = q_length == 1 and isinstance(q_offset, int) and end <= q_offset + 1
    return one_step and mask_function is causal_mask_function


def recorded(mask_function: MaskFunction, padding: Tensor | None, kv_offset: int) -> MaskMod:
    """The mask over keys numbered from 0, with ``padding`` of just these keys."""
    if mask_function is causal_mask_function and padding is None and not kv_offset:
        return CAUSAL
    if kv_offset:
        mask_function = from_key(mask_function, kv_offset)
    return mask_mod(mask_function if padding is None else and_masks(mask_function, padding_mask_function(padding)))


def from_key(mask_function: MaskFunction, first: int) -> MaskFunction:
    """The mask as it looks to keys numbered from ``first``."""

    def shifted(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return mask_function(b, h, q_idx, kv_idx + first)

    return shifted


def lasting(tensor: Tensor) -> Tensor:
    """A copy that nobody writes to, with a version counter: without one, the blocks of a mask are not remembered."""
    with torch.inference_mode(False):
        return tensor.clone()
