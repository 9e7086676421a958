"""Documents packed in one row, as torchtitan's data loaders mark them."""

from __future__ import annotations

from torch import Tensor
from torch_flexattn import InputError, KindError, MaskMod, masks


def document_mask(positions: Tensor, *, causal: bool = True) -> MaskMod:
    """A query sees the keys of its own document, and, if ``causal``, none after itself.

    One interval of keys a query; no blocks are built before attention is called. Waits for the device of
    ``positions``. Combine it with others by ``&``: ``document_mask(positions) & masks.sliding_window(4096)``.

    Args:
        positions: ``[T]`` or ``[B, L]``, numbers of tokens in their documents: at 0 one begins. Tokens before the first
            0 are a document, too.
        causal: no look into the future.

    Raises:
        InputError: another shape.
        KindError: no integers.

    Example:
        >>> import torch
        >>> i, zero = torch.arange(4), torch.tensor(0)
        >>> document_mask(torch.tensor([0, 1, 0, 1]))(zero, zero, i[:, None], i).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 0, 1, 0],
                [0, 0, 1, 1]], dtype=torch.int32)

    Reference:
        torchtitan, ``torchtitan.models.common.attention.get_document_mask_mod``.
    """
    if not isinstance(positions, Tensor) or positions.is_floating_point() or positions.is_complex():
        got = positions.dtype if isinstance(positions, Tensor) else type(positions).__name__
        raise KindError(f"positions must be a tensor of integers, got {got}")
    if positions.dim() not in (1, 2):
        raise InputError(f"positions must have shape [T] or [B, L], got {tuple(positions.shape)}")
    return masks.document(doc_ids=(positions == 0).cumsum(-1), causal=causal)
