"""What is asked of the ranks together, and the calls of kernels that one rank makes of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ..block_mask import BlockMask
from ..call import BLOCK, Call
from ..masks_of_calls import block_mask_of
from ..mods import MaskMod, ScoreMod
from ..ops import attention as ops
from .original import Places, from_original, places_of
from .plan import ShardPlan


@dataclass(frozen=True, eq=False)
class Job:
    """Attention over all ranks, apart from its tensors of features.

    Attributes:
        plan: which rank holds what.
        rank: of this process.
        group: of the ranks.
        score: modification of scores, of original indices.
        mask: what is visible, of original indices.
        scale: of the products.
        check: whether reading a captured tensor out of range at a visible position is an error.
    """

    plan: ShardPlan
    rank: int
    group: dist.ProcessGroup | None
    score: ScoreMod | None
    mask: MaskMod | None
    scale: float
    check: bool

    def call(self, q: Tensor, owner: int | None) -> Call:
        """Local queries and the keys of one rank, or of all ranks in original order (``owner`` is ``None``)."""
        rows = places_of(self.plan, self.rank, q.device)
        columns: Places = 0 if owner is None else places_of(self.plan, owner, q.device)
        keys = self.plan.length if owner is None else self.plan.local_length
        blocks = None
        if self.mask is not None:
            mask = from_original(self.mask, rows, columns)
            batches, heads, queries, _ = q.shape
            blocks = block_mask_of(mask, (batches, heads, queries, keys), BLOCK, q.device, check=self.check)
        score = None if self.score is None else from_original(self.score, rows, columns)
        same = torch.are_deterministic_algorithms_enabled()
        return Call(blocks, score, self.scale, check=self.check, deterministic=same)

    def needed(self) -> list[bool]:
        """Which captured tensors of the score modification need a gradient."""
        return [] if self.score is None else [c.requires_grad for c in self.score.captures]


def has_visible(call: Call) -> bool:
    """Whether any query sees any key."""
    return not isinstance(call.mask, BlockMask) or call.mask.runs.shape[0] > 0


@dataclass
class Gradients:
    """Of one rank's call, added over the shards of keys.

    Attributes:
        q: like the queries, in float32 or float64.
        sinks: ``[Hq]``, or ``None`` without.
        captures: of the captured tensors that need one.
    """

    q: Tensor
    sinks: Tensor | None
    captures: list[Tensor]

    def add(self, other: Gradients) -> None:
        """Add those of another shard of keys."""
        self.q += other.q
        if self.sinks is not None and other.sinks is not None:
            self.sinks += other.sinks
        for own, its in zip(self.captures, other.captures, strict=True):
            own += its


def gradients(
    job: Job,
    call: Call,
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    sinks: Tensor | None,
) -> tuple[Gradients, Tensor, Tensor]:
    """What the keys of one call contribute, those of its keys, and those of its values."""
    needed = job.needed() + [False] * (len(call.captures) - len(job.needed()))
    of_q, of_k, of_v, *rest = ops.run_backward(grad_out, grad_lse, q, k, v, out, lse, sinks, call, needed)
    of_sinks = None if sinks is None else rest.pop(0)
    return Gradients(of_q.to(exact(q.dtype)), of_sinks, rest), of_k, of_v


def no_gradients(job: Job, q: Tensor) -> Gradients:
    """Of queries that see nothing."""
    captures = () if job.score is None else job.score.captures
    zeros = [torch.zeros_like(c) for c, need in zip(captures, job.needed()) if need]
    return Gradients(torch.zeros_like(q, dtype=exact(q.dtype)), None, zeros)


def exact(dtype: torch.dtype) -> torch.dtype:
    """In what sums are made."""
    return torch.float64 if dtype == torch.float64 else torch.float32
