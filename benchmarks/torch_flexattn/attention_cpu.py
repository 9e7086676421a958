"""Attention on the CPU, forward and forward with backward, beside PyTorch's fused attention.

`sdpa-dense-mask` gets the mask as a dense tensor, made before the clock starts: what a user without block masks does.
With a score modification the tensor is the additive bias where there is one that says the same (ALiBi); softcap has
none. PyTorch's own flex_attention has no fused kernel here without torch.compile, and no backward on a CPU at all.

Work: products of visible pairs, 4·D operations each forward, 10·D more backward.
"""

from functools import cache, partial

import torch
import torch_flexattn as tfa
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.case import Case, Run, Runner, Skip
from benchmarks.torch_flexattn import oracle
from benchmarks.torch_flexattn.tasks import HEADS, WIDTH, Task, make_task

CASES = (
    ("full", "", 2048), ("causal", "", 2048), ("causal", "", 4096), ("window256", "", 8192), ("documents", "", 8192),
    ("prefix", "", 4096), ("causal", "alibi", 2048), ("causal", "softcap", 2048),
)  # fmt: skip
COMPILED = Skip("torch.compile of it takes more than a minute on two cores, and there is no backward on a CPU")

__all__ = ["cases"]


def _ours(task: Task) -> Run:
    return lambda: tfa.flex_attention(task.q, task.k, task.v, task.score, task.mask)


def _bias(task: Task) -> Tensor | None:
    """What the mask, and an additive score modification, are as a dense tensor."""
    i = torch.arange(task.length, device=task.q.device)
    zero, h = torch.tensor(0), torch.arange(HEADS).view(-1, 1, 1)
    visible = task.mask(zero, zero, i[:, None], i[None])
    if task.score is None:
        return None if bool(visible.all()) else visible
    added = task.score(torch.zeros(()), zero, h, i[:, None], i[None])
    return added.masked_fill(~visible, float("-inf"))


def _dense(task: Task) -> Run:
    bias = _bias(task)
    return lambda: scaled_dot_product_attention(task.q, task.k, task.v, attn_mask=bias)


def _causal(task: Task) -> Run:
    return lambda: scaled_dot_product_attention(task.q, task.k, task.v, is_causal=True)


def _step(runner: Runner) -> Runner:
    """Forward and backward."""

    def prepare(task: Task) -> Run:
        q, k, v = (t.clone().requires_grad_() for t in (task.q, task.k, task.v))
        run = runner(Task(q, k, v, task.grad, task.mask, task.score))
        return lambda: torch.autograd.grad(run(), (q, k, v), task.grad)

    return prepare


@cache
def _pairs(mask: str, length: int) -> int:
    return tfa.create_block_mask(
        make_task(mask, "", length, torch.device("cpu")).mask, None, None, length, length
    ).visible_pairs()


def _case(mask: str, score: str, length: int, *, backward: bool) -> Case:
    peers: dict[str, Runner | Skip] = {"torch-flex-compiled": COMPILED}
    if score != "softcap":
        peers["sdpa-dense-mask"] = _step(_dense) if backward else _dense
    if mask == "causal" and not score:
        peers["sdpa-causal"] = _step(_causal) if backward else _causal
    direction = "forward-backward" if backward else "forward"
    named = mask if not score else f"{mask}-{score}"
    plain = ["plain"] if mask in ("full", "causal") and not score else []
    return Case(
        name=f"{direction}/{named}/s{length}/fp32",
        tags=(*direction.split("-"), "cpu", *plain, *(["quick"] if length == 2048 and mask == "causal" else [])),
        make=partial(make_task, mask, score, length),
        ours=_step(_ours) if backward else _ours,
        peers=peers,
        reference=oracle.backward if backward else oracle.forward,
        tolerance=1e-4,
        flops=lambda task: (14 if backward else 4) * WIDTH * HEADS * _pairs(mask, length),
        bytes=lambda task: 4 * (8 if backward else 4) * task.q.numel(),
        devices=("cpu",),
        note="" if len(peers) > 1 else "no other fused attention on a CPU caps scores",
    )


def cases() -> list[Case]:
    """Every mask, forward; and all but the longest with backward."""
    both = [(backward, case) for backward in (False, True) for case in CASES]
    return [_case(*case, backward=backward) for backward, case in both]
