"""Steps without score modification or dropout, by PyTorch's own fused attention: one call instead of six.

It takes a mask as numbers to add, ``[rows, keys]`` for all heads, and gives ``out`` and ``lse`` of a step, which are
merged with those of other steps; backward takes the final ``out`` and ``lse`` and gives what a step contributes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .steps import Step
from .tile import MINUS_INFINITY, Attention, Tile

_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def is_served(call: Attention) -> bool:
    """Whether all is as the fused operation of CPUs wants it; of the mask, that heads of one tile see the same."""
    mask = call.mask
    if call.q.device.type != "cpu" or call.score is not None or call.dropout_p or call.k.shape[-1] != call.v.shape[-1]:
        return False
    if mask is None or mask.mod is None:
        return True
    planes = zip("bh", mask.shape, call.q.shape)
    return not any(of_mask < of_query and name in mask.mod.dependencies for name, of_mask, of_query in planes)


def has_numbers(call: Attention) -> bool:
    """Whether queries and keys are finite: of NaN the operation makes 0 where there are few keys."""
    total = call.q.sum(dtype=call.dtype) + call.k.sum(dtype=call.dtype)
    return bool((total * call.scale).isfinite())


def fused_forward(tile: Tile, step: Step) -> tuple[Tensor, Tensor]:
    """``out`` ``[products, rows, width]`` and ``lse`` ``[products, rows, 1]`` of one step."""
    query, key, value, bias = _operands(tile, step)
    out, lse = _attention(query, key, value, attn_mask=bias, scale=tile.call.scale)
    lse = lse[0].unsqueeze(-1)
    if bias is not None and not step.has_full:  # the operation says 0 of a row that sees nothing
        lse = lse.masked_fill(bias[0, 0].amax(-1, keepdim=True) == MINUS_INFINITY, MINUS_INFINITY)
    return out[0], lse


def fused_backward(tile: Tile, step: Step, grad_out: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the query, and of the step's keys and values; ``lse`` is +∞ for rows that see nothing."""
    query, key, value, bias = _operands(tile, step)
    of_lanes = (_together(grad_out[None]), query, key, value, _together(out[None]), lse.squeeze(-1)[None])
    of_query, of_key, of_value = _attention_backward(*of_lanes, 0.0, False, attn_mask=bias, scale=tile.call.scale)
    return of_query[0], of_key[0], of_value[0]


def merged(out: Tensor, lse: Tensor, other_out: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the keys of two parts; writes to ``out``."""
    both = torch.logaddexp(lse, other_lse)
    finite = both.masked_fill(both == MINUS_INFINITY, 0)
    out.mul_((lse - finite).exp_()).addcmul_(other_out, (other_lse - finite).exp_())
    return out, both


def _operands(tile: Tile, step: Step) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Query, key, value ``[1, products, …]`` and the mask ``[1, 1, rows, keys]``."""
    key, value = (_together(tile.of_keys(x, step)[None]) for x in (tile.call.keys, tile.call.values))
    query = tile.view(tile.call.by_lane(tile.call.q))
    if tile.call.descales is not None:
        query = query * tile.descale(0)
    return _together(query[None]), key, value, tile.bias(step)


def _together(x: Tensor) -> Tensor:
    """With features side by side: the operation does not look at their stride."""
    return x if x.stride(-1) == 1 else x.contiguous()
