"""Attention on a GPU in bfloat16, forward and backward alone: B=2, H=16, S=8192, unless a name says otherwise.

Work: products of visible pairs, 4·E operations each forward, 10·E backward (scores once more, and four gradients);
bytes: each operand, output and gradient once.
"""

from functools import partial

import torch_flexattn as tfa

from benchmarks.case import Case, Run
from benchmarks.torch_flexattn import oracle_gpu
from benchmarks.torch_flexattn.gpu_peers import backward, peers_of
from benchmarks.torch_flexattn.gpu_tasks import WIDTH, GpuTask, make_task

MASKS = ("full", "causal", "window1024", "documents1000")
SCORES = ("alibi", "softcap", "relative")
FURTHER_WIDTHS = (64, 96, 192, 256)
KINDS = (
    *((mask, "", WIDTH) for mask in MASKS), *(("causal", score, WIDTH) for score in SCORES),
    *(("causal", "", width) for width in FURTHER_WIDTHS),
)  # fmt: skip

__all__ = ["cases", "ours"]


def ours(task: GpuTask) -> Run:
    """Our attention, with mask and score modification from our library."""
    return lambda: tfa.flex_attention(task.q, task.k, task.v, task.score, mask_mod=task.mask, enable_gqa=task.grouped)


def _case(mask: str, score: str, width: int, *, with_backward: bool, of_table: bool = False) -> Case:
    direction = "backward" if with_backward else "forward"
    named = mask + (f"-{score}" if score else "") + ("-gradient" if of_table else "")
    plain = ["plain"] if mask in ("full", "causal") and not score else []
    quick = ["quick"] if (mask, score, width) == ("causal", "", WIDTH) else []
    return Case(
        name=f"{direction}/{named}/d{width}/bf16",
        tags=(
            direction, "gpu", named, f"d{width}", *plain, *(f"{direction}-{word}" for word in plain), *quick,
            *(["bias-gradient"] if of_table else []),
        ),
        make=partial(make_task, mask, score, width, backward=with_backward, of_table=of_table),
        ours=backward(ours) if with_backward else ours,
        peers=peers_of(mask, score, with_backward=with_backward),
        reference=oracle_gpu.reference,
        tolerance=oracle_gpu.bound,
        compared=oracle_gpu.compared,
        flops=lambda task: (10 if with_backward else 4) * width * task.pairs(),
        bytes=lambda task: (8 if with_backward else 4) * task.q.numel() * task.q.element_size(),
        math="bf16",
        devices=("cuda",),
    )  # fmt: skip


def cases() -> list[Case]:
    """Every mask, score modification and width, forward, then backward; the bias also with its gradient.

    That with 64 features, too: of 128 features PyTorch's kernel does not fit into shared memory.
    """
    both = [_case(*kind, with_backward=way) for way in (False, True) for kind in KINDS]
    return [*both, *(_case("causal", "relative", n, with_backward=True, of_table=True) for n in (WIDTH, 64))]
