"""Distributed tensors that are cut along their batch or their heads: every rank attends to its own part.

Nothing is sent in the forward pass. Mods see the numbers that batch entries and heads have in the whole; what they
capture is the same on every rank, so its gradients are summed over the ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.attention import flex_attention as theirs

from ..assembly import Assembly
from ..block_mask import BlockMask
from ..errors import InputError, KindError, UnsupportedError
from ..mods import MaskMod, ScoreLike, ScoreMod
from ..mods import mask_mod as as_mask
from ..mods import score_mod as as_score
from .auxiliary import AuxOutput

M = TypeVar("M", MaskMod, ScoreMod)


def is_distributed(t: object) -> bool:
    """Whether something is a ``DTensor``; not looked at under a compiler."""
    module = None if torch.compiler.is_compiling() else sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(t, module.DTensor)


class Part:
    """The part of a call that this rank has.

    Args:
        query: ``[B, Hq, L, E]``.
        key: ``[B, Hkv, S, E]``.
        value: ``[B, Hkv, S, Ev]``.

    Attributes:
        first: number of the first batch entry and of the first query head.
        count: how many there are here.
        groups: of the processes between which the call is cut.

    Raises:
        InputError: other meshes or placements for one than for another; a batch or heads that do not divide evenly.
        KindError: distributed and other tensors together.
        UnsupportedError: cut along something else than batch and heads.
    """

    def __init__(self, query: Any, key: Any, value: Any) -> None:
        for name, t in (("query", query), ("key", key), ("value", value)):
            if not is_distributed(t):
                raise KindError(f"query, key and value must all be DTensors or none, got {type(t).__name__} for {name}")
            if t.device_mesh != query.device_mesh or t.placements != query.placements:
                raise InputError(
                    f"{name} must be placed as query is, got {t.placements} on {t.device_mesh} and "
                    f"{query.placements} on {query.device_mesh}"
                )
        self.mesh, self.placements = query.device_mesh, query.placements
        here = self.mesh.get_coordinate()
        if here is None:
            raise InputError(f"query is on {self.mesh}, which this rank is not part of")
        self.first, self.count, self.groups = [0, 0], list(query.shape[:2]), []
        for number, placement in enumerate(self.placements):
            if placement.is_replicate():
                continue
            if not placement.is_shard() or placement.dim not in (0, 1):
                raise UnsupportedError(
                    f"query must be cut along batch or heads, got {placement}: redistribute it, or see "
                    "torch_flexattn.parallel for a length that is cut"
                )
            along, ranks = placement.dim, self.mesh.size(number)
            for name, t in (("query", query), ("key", key), ("value", value)):
                if t.shape[along] % (query.shape[along] // self.count[along] * ranks):
                    raise InputError(f"{name} must divide evenly among {ranks} ranks, got {tuple(t.shape)}")
            self.count[along] //= ranks
            self.first[along] += here[number] * self.count[along]
            self.groups.append(self.mesh.get_group(number))
        self.tensors = [t.to_local() for t in (query, key, value)]

    def whole(self, t: Tensor) -> Any:
        """A result ``[b, h, …]`` of this rank as part of that of all."""
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(t, self.mesh, self.placements)

    def of_batch(self, name: str, value: Any) -> Any:
        """The entries of this rank of one number a batch entry."""
        if not isinstance(value, Tensor):
            return value
        self._plain(name, value)
        return value[self.first[0] : self.first[0] + self.count[0]] if value.dim() else value

    def of_heads(self, name: str, value: Tensor | None) -> Tensor | None:
        """The entries of this rank of one number a query head."""
        if value is None:
            return None
        self._plain(name, value)
        return self._shared(value)[self.first[1] : self.first[1] + self.count[1]]

    def mod(self, name: str, mod: M) -> M:
        """A mod as this rank sees it."""
        parts, replaced = Assembly(), {}
        for index, first in zip("bh", self.first):
            if first and index in mod.dependencies:
                own = parts.builder.add(index, "int32")
                replaced[index] = parts.builder.add("add", "int32", own, parts.number(first))
        for capture in mod.captures:
            self._plain(name, capture)
        shared = type(mod)(mod.program, tuple(map(self._shared, mod.captures)), mod.scalars)
        outputs = parts.append(shared, **replaced)
        return type(mod)(*parts.finish(*outputs))

    def mask(self, mask: Any) -> Any:
        """A mask, or a block mask, as this rank sees it."""
        if isinstance(mask, theirs.BlockMask):
            mask = BlockMask.from_torch(mask)
        if not isinstance(mask, BlockMask):
            return self.mod("mask_mod", as_mask(mask))
        places = [
            slice(first, first + count) if size > 1 else slice(None)
            for first, count, size in zip(self.first, self.count, mask.shape)
        ]
        return mask if all(p == slice(None) for p in places) else mask[places[0], places[1]]

    def _shared(self, t: Tensor) -> Tensor:
        return Summed.apply(t, self.groups) if t.requires_grad and torch.is_grad_enabled() and self.groups else t

    def _plain(self, name: str, t: Tensor) -> None:
        if is_distributed(t):
            raise UnsupportedError(
                f"{name} must be a tensor that every rank has whole beside DTensors, got a DTensor of shape "
                f"{tuple(t.shape)}: take its full_tensor()"
            )


class Summed(torch.autograd.Function):
    """A tensor that all ranks have; each knows a part of its gradient."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, groups: Sequence[Any]) -> Tensor:
        ctx.groups = groups
        return t.view_as(t)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        grad = grad_outputs[0].clone(memory_format=torch.contiguous_format)
        for group in ctx.groups:
            dist.all_reduce(grad, group=group)
        return grad, None


def attend(
    whole: Callable[..., Any],
    query: Any,
    key: Any,
    value: Any,
    score_mod: ScoreLike | None,
    masks: Sequence[Any],
    *,
    q_offset: Any,
    kv_lens: Tensor | None,
    sinks: Tensor | None,
    dropout_p: float,
    return_lse: bool,
    return_aux: Any,
    **options: Any,
) -> Any:
    """Attention of each rank to its part.

    Args:
        whole: attention of tensors that are not distributed.
        query: see :class:`Part`.
        key: see :class:`Part`.
        value: see :class:`Part`.
        score_mod: of the call, as are all others.
        masks: ``block_mask`` and ``mask_mod``.

    Raises:
        UnsupportedError: dropout, which would drop alike on every rank.
    """
    if dropout_p:
        raise UnsupportedError(f"dropout_p must be 0 for DTensors, whose ranks would drop alike, got {dropout_p}")
    part = Part(query, key, value)
    score = None if score_mod is None else part.mod("score_mod", as_score(score_mod))
    blocks, mask = (None if m is None else part.mask(m) for m in masks)
    found = whole(
        *part.tensors, score, blocks, mask_mod=mask, q_offset=part.of_batch("q_offset", q_offset),
        kv_lens=part.of_batch("kv_lens", kv_lens), sinks=part.of_heads("sinks", sinks), return_lse=return_lse,
        return_aux=return_aux, **options,
    )  # fmt: skip
    if return_aux is not None:
        out, aux = found
        return part.whole(out), AuxOutput(*(None if t is None else part.whole(t) for t in aux))
    return tuple(map(part.whole, found)) if return_lse else part.whole(found)
