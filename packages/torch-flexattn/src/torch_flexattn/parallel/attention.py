"""``context_parallel_attention``: attention of a sequence that is cut over the ranks of a group."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from ..errors import InputError, KindError, UnsupportedError
from ..factory_arguments import check_choice
from ..functional.arguments import check_captures, check_features, check_scale, check_sinks, in_autocast_type
from ..masks import with_lengths
from ..mods import MaskLike, ScoreLike
from ..mods import mask_mod as as_mask
from ..mods import score_mod as as_score
from . import all_gather, ring
from .exchange import sum_over_ranks
from .group import place_in
from .job import Job
from .plan import ShardPlan

Method = Literal["all_gather", "ring"]
METHODS = {"all_gather": all_gather, "ring": ring}


def context_parallel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: ShardPlan,
    score_mod: ScoreLike | None = None,
    mask_mod: MaskLike | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    *,
    sinks: Tensor | None = None,
    method: Method = "all_gather",
    group: ProcessGroup | None = None,
    check: bool | None = None,
) -> Any:
    """:func:`~torch_flexattn.flex_attention` of a sequence of which each rank holds a part.

    Queries of this rank see the keys of all ranks. Mods see the indices of the whole sequence. Every rank of the group
    makes the same call, with the same plan, mods and options, and every rank runs its backward pass, if any does: both
    wait for the others.

    Gradients of ``q``, ``k`` and ``v`` are those of this rank's part for the loss summed over ranks. So are those of
    what every rank has, the captured tensors of ``score_mod`` and ``sinks``: they are summed over the ranks, and equal
    on all. A wrapper that adds gradients of parameters over the same ranks once more would count them twice; one that
    takes the mean leaves them as they are.

    Args:
        q: ``[B, Hq, local_length, E]``, this rank's :func:`shard` of the queries.
        k: ``[B, Hkv, local_length, E]``, or with batch 1.
        v: ``[B, Hkv, local_length, Ev]``, or with batch 1.
        plan: of :func:`shard_plan`, for as many ranks as the group has.
        score_mod: ``(score, b, h, q_idx, kv_idx) -> score``; tensors that it captures are whole on every rank.
        mask_mod: ``(b, h, q_idx, kv_idx) -> bool``, True where visible; captured tensors are whole on every rank.
        scale: of the products; default ``1/√E``.
        enable_gqa: allow ``Hq`` to be a multiple of ``Hkv``.
        return_lse: return ``(out, lse)``, ``lse`` ``[B, Hq, local_length]``.
        sinks: ``[Hq]``, the same on every rank: a further score in each softmax, of a key whose value is 0.
        method: ``"all_gather"``: one exchange, then every rank has all keys, until backward. ``"ring"``: as many steps
            as ranks, each with the keys of one rank; none ever has more than two ranks' keys, and exchanges run beside
            the kernels. Keys of which a rank's queries see nothing cost it nothing but the exchange.
        group: of the ranks; default: all.
        check: as of ``flex_attention``. An error that it raises on one rank leaves the others waiting.

    Returns:
        ``[B, Hq, local_length, Ev]``, or what ``return_lse`` says. 16-bit parts and gradients are added in float32.

    Raises:
        InputError: sizes, devices or values that do not fit; a plan for another number of ranks or another length.
        KindError: the wrong type: a dtype, a function with other arguments, no plan.
        UnsupportedModError: a mod that no kernel can evaluate.
        OutOfRangeError: see ``check``.

    Example: one rank, which needs no process group.

        >>> import torch
        >>> from torch_flexattn import create_block_mask, masks, parallel
        >>> mask = create_block_mask(masks.causal(), None, None, 64, 64, BLOCK_SIZE=16)
        >>> plan = parallel.shard_plan(mask, 1)
        >>> q, k, v = (parallel.shard(torch.randn(1, 2, 64, 8), plan, 0, 2) for _ in range(3))
        >>> parallel.context_parallel_attention(q, k, v, plan, mask_mod=masks.causal()).shape
        torch.Size([1, 2, 64, 8])

    Reference:
        All-gather: Llama 3 (Grattafiori et al., 2024), section 3.3.2. Ring: Ring Attention (Liu et al., 2023).
    """
    q, k, v = in_autocast_type(q, k, v)
    check_features(q, k, v, grouped=enable_gqa)
    if not isinstance(plan, ShardPlan):
        raise KindError(f"plan must be a ShardPlan, got {type(plan).__name__}")
    for name, t in (("q", q), ("k", k)):
        if t.shape[2] != plan.local_length:
            raise InputError(
                f"{name} must have the plan's {plan.local_length} tokens a rank, got {t.shape[2]}: cut it with shard()"
            )
    scale = check_scale(scale, q.shape[3])
    check_sinks(sinks, q)
    check_choice("method", method, tuple(METHODS))
    score = None if score_mod is None else as_score(score_mod)
    mask = None if mask_mod is None else with_lengths(as_mask(mask_mod), plan.length, plan.length)
    for name, mod in (("score_mod", score), ("mask_mod", mask)):
        check_captures(name, () if mod is None else mod.captures, q)
    check = q.device.type == "cpu" if check is None else check
    job = Job(plan, place_in(group, plan), group, score, mask, scale, check)
    captures = () if score is None else score.captures
    out, lse = ContextParallel.apply(q, k, v, sinks, job, method, *captures)
    return (out, lse) if return_lse else out


class ContextParallel(torch.autograd.Function):
    """The derivative, once."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, job: Job, method: Method, *captures: Tensor
    ) -> tuple[Tensor, Tensor]:
        out, lse, calls, kept = METHODS[method].forward(job, q, k, v, sinks)
        ctx.job, ctx.method, ctx.calls, ctx.count = job, method, calls, len(kept)
        ctx.save_for_backward(q, k, v, sinks, out, lse, *kept, *captures, *_read_again(job))
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise UnsupportedError(
                "context_parallel_attention has no second derivative: call backward without create_graph"
            )
        grad_out, grad_lse = grad_outputs
        q, k, v, sinks, out, lse, *others = ctx.saved_tensors  # raises where one was changed since
        if grad_out is None:
            grad_out = torch.zeros_like(out)
        job, kept = ctx.job, others[: ctx.count]
        found, of_k, of_v = METHODS[ctx.method].backward(
            job, ctx.calls, kept, grad_out, grad_lse, q, k, v, out, lse, sinks
        )
        shared = [*found.captures] if found.sinks is None else [found.sinks, *found.captures]
        sums = iter(sum_over_ranks(shared, job.plan.world, job.group))
        of_sinks = None if sinks is None else next(sums)
        of_captures = [next(sums) if need else None for need in job.needed()]
        return found.q.to(q.dtype), of_k.to(k.dtype), of_v.to(v.dtype), of_sinks, None, None, *of_captures


def _read_again(job: Job) -> list[Tensor]:
    """What the mask captures, which must be in backward what it was."""
    return [] if job.mask is None else [c for c in job.mask.captures if not c.is_inference()]
