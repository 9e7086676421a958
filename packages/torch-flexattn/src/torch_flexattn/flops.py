"""Floating-point operations of attention: of what is visible, or of the blocks that are computed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from .block_mask import BlockMask
from .call import unpack
from .errors import InputError, KindError
from .stats import ObservedCall


def attention_flops(
    block_mask: BlockMask,
    Hq: int,
    E: int,
    Ev: int | None = None,
    backward: bool = False,
    useful: bool = True,
    *,
    batch: int | None = None,
) -> int:
    """Operations of the matrix products of one pass: two for every number that is multiplied and added.

    A visible pair takes ``2 (E + Ev)`` forward and ``2 (3 E + 2 Ev)`` backward, where the scores are computed again.

    Args:
        block_mask: what is visible.
        Hq: query heads.
        E: features of queries and keys.
        Ev: features of values; default ``E``.
        backward: of the backward pass, alone.
        useful: of visible pairs, which waits for the device and counts in partial blocks; otherwise of all pairs of the
            blocks that are computed.
        batch: batch entries, where the mask is one for all of them; default: those of the mask.

    Raises:
        KindError: no block mask.
        InputError: heads or a batch that the mask was not made for; a size below 1.

    Example:
        >>> from torch_flexattn import attention_flops, create_block_mask, masks
        >>> mask = create_block_mask(masks.causal(), None, None, 2048, 2048)
        >>> attention_flops(mask, Hq=16, E=64)
        8594128896

    Reference:
        Dao 2023 (FlashAttention-2), section 4.1: the backward pass counts 2.5 times the forward one.
    """
    if not isinstance(block_mask, BlockMask):
        raise KindError(f"block_mask must be a BlockMask, got {type(block_mask).__name__}")
    batches, heads, *_ = block_mask.shape
    entries = batches if batch is None else batch
    width_v = E if Ev is None else Ev
    for name, size in (("Hq", Hq), ("E", E), ("Ev", width_v), ("batch", entries)):
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InputError(f"{name} must be an integer of at least 1, got {size!r}")
    if heads not in (1, Hq) or batches not in (1, entries):
        raise InputError(
            f"block_mask is for batch {batches} and {heads} heads, but batch and Hq are {entries} and {Hq}"
        )
    pairs = block_mask.visible_pairs() if useful else computed_pairs(block_mask)
    return pairs * (entries // batches) * (Hq // heads) * pair_flops(E, width_v, backward=backward)


def pair_flops(width: int, width_v: int, *, backward: bool) -> int:
    """Operations of one pair of a query and a key."""
    return 2 * (3 * width + 2 * width_v) if backward else 2 * (width + width_v)


def computed_pairs(mask: BlockMask) -> int:
    """Positions inside the mask of all blocks that are computed."""
    height, width = mask.block
    total = 0
    for full in (False, True):
        found = mask.blocks(full=full)
        rows = (mask.shape[2] - found.row.long() * height).clamp(max=height)
        columns = (mask.shape[3] - found.column.long() * width).clamp(max=width)
        total += int((rows * columns).sum())
    return total


class CallFigures:
    """What calls were, as :func:`~torch_flexattn.listening` hears them: one training step's, say."""

    def __init__(self) -> None:
        self.calls: list[ObservedCall] = []
        self._known: dict[int, tuple[int, int, int]] = {}

    def figures(self) -> dict[str, float]:
        """``visible_pairs`` of the forward passes, ``sparsity`` of their blocks in percent, ``flops`` of all passes."""
        visible = blocks = computed = flops = 0
        for call in self.calls:
            pairs, own_computed, own_blocks = self._counts(call)
            flops += pairs * pair_flops(call.query[3], call.value_width, backward=call.backward)
            if not call.backward:
                visible, blocks, computed = visible + pairs, blocks + own_blocks, computed + own_computed
        sparsity = 100 * (1 - computed / blocks) if blocks else 0.0
        return {"visible_pairs": float(visible), "sparsity": sparsity, "flops": float(flops)}

    def _counts(self, call: ObservedCall) -> tuple[int, int, int]:
        """Visible pairs, computed blocks and blocks of one call; a mask that layers share is counted once."""
        batch, heads, rows, _ = call.query
        mask = call.mask
        if not isinstance(mask, BlockMask):
            return batch * heads * rows * call.key[2], batch * heads, batch * heads
        known = self._known.get(id(mask))
        if known is None:
            geometry = mask.geometry
            known = mask.visible_pairs(), sum(mask.nnz_blocks()), geometry.planes * geometry.rows * geometry.columns
            self._known[id(mask)] = known
        times = (batch // mask.shape[0]) * (heads // mask.shape[1])
        return known[0] * times, known[1] * times, known[2] * times


def register_flop_formulas() -> None:
    """Let ``torch.utils.flop_counter.FlopCounterMode`` count this package's attention: what is visible.

    It is not done at import, because PyTorch's counter imports triton. A second call changes nothing.

    Example:
        >>> import torch
        >>> from torch.utils.flop_counter import FlopCounterMode
        >>> from torch_flexattn import flex_attention, masks, register_flop_formulas
        >>> register_flop_formulas()
        >>> q = torch.randn(1, 2, 4, 8)
        >>> with FlopCounterMode(display=False) as counter:
        ...     out = flex_attention(q, q, q, mask_mod=masks.causal())
        >>> counter.get_total_flops()
        640
    """
    from torch.utils.flop_counter import flop_registry, register_flop_formula

    ops = torch.ops.torch_flexattn
    if ops.forward not in flop_registry:
        register_flop_formula(ops.forward, get_raw=True)(_forward_flops)
        register_flop_formula(ops.backward, get_raw=True)(_backward_flops)


def _forward_flops(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *packed: Any, out_val: Any = None, **named: Any
) -> int:
    return _flops(q, k, v, packed[:-1], backward=False)


def _backward_flops(
    grad_out: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    sinks: Tensor | None, *packed: Any, out_val: Any = None, **named: Any,
) -> int:  # fmt: skip
    return _flops(q, k, v, packed[:-1], backward=True)


def _flops(q: Tensor, k: Tensor, v: Tensor, packed: tuple[Any, ...], *, backward: bool) -> int:
    """Of a call of the op; where tensors have no values, as if all were visible."""
    batch, heads, rows, width = q.shape
    mask = None if isinstance(q, FakeTensor) or q.is_meta else unpack(q, k, *packed).mask
    if isinstance(mask, BlockMask):
        return attention_flops(mask, heads, width, v.shape[-1], backward, batch=batch)
    return batch * heads * rows * k.shape[2] * pair_flops(width, v.shape[-1], backward=backward)
