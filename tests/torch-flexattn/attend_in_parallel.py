"""One of three processes of context parallelism; ``test_parallel_ranks.py`` starts them and reads what they write.

All three make each call, then the last two by themselves: how far is each from one process?

python tests/torch-flexattn/attend_in_parallel.py FOLDER RANK
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch_flexattn import InputError, MaskMod, create_block_mask, flex_attention, listening, masks
from torch_flexattn.parallel import context_parallel_attention, gather_shards, shard, shard_plan

LENGTH = 384
"""Divisible into blocks of 32 for zig-zag of 2 and 3 ranks; of two, each has more than one block of a kernel."""
BLOCK = 32
BOUNDS = [0, 50, 128, 192, 200, 256, 350, LENGTH]
RANKS = 3


def documents() -> MaskMod:
    return masks.causal("bottom_right") & masks.document(BOUNDS)


def apart() -> MaskMod:
    """Neighbouring parts of 2 and of 3 ranks do not see each other; some queries see nothing at all."""
    bounds = [0, 128, 192, 256, LENGTH]
    return masks.document(bounds) & (lambda b, h, q_idx, kv_idx: q_idx % 5 != 0)


def first_part() -> MaskMod:
    """Only the first quarter sees anything, and nothing but itself."""
    return masks.from_dense((torch.arange(LENGTH) < LENGTH // 4)[:, None] & (torch.arange(LENGTH) < LENGTH // 4))


def by_head() -> MaskMod:
    return masks.causal() & (lambda b, h, q_idx, kv_idx: (q_idx - kv_idx) < 50 * (h + 1) + 20 * b)


@dataclass(frozen=True)
class Case:
    """One call; each plan and method makes it."""

    mask: Callable[[], MaskMod] | None
    bias: bool = False
    sinks: bool = False
    lse: bool = True
    heads: int = 2
    kv_batch: int = 2
    width_v: int = 8
    dtype: torch.dtype = torch.float64
    kinds: tuple[str, ...] = ("contiguous", "zigzag", "balanced")
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "everything": Case(None, kinds=("balanced",)),
    "causal": Case(masks.causal, dtype=torch.float32),
    "causal, no lse": Case(masks.causal, lse=False, dtype=torch.float32),
    "documents": Case(documents, bias=True, dtype=torch.float32),
    "window": Case(lambda: masks.causal() & masks.sliding_window(50), bias=True, heads=4, width_v=5),
    "pairs that see nothing": Case(apart, kv_batch=1),
    "sinks": Case(documents, sinks=True, heads=4, options={"scale": 0.5}),
    "ranks that see nothing": Case(first_part, bias=True),
    "ranks that see sinks": Case(first_part, sinks=True, bias=True),
    "by head and batch": Case(by_head, heads=4, kinds=("zigzag", "balanced")),
    "bfloat16": Case(documents, dtype=torch.bfloat16, kinds=("zigzag",)),
}
METHODS = ("all_gather", "ring")


def inputs(case: Case) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Whole tensors that need gradients, and weights of the loss."""
    rng = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64).to(case.dtype)

    features = {
        "q": draw(2, case.heads, LENGTH, 8),
        "k": draw(case.kv_batch, 2, LENGTH, 8),
        "v": draw(case.kv_batch, 2, LENGTH, case.width_v),
    }
    if case.bias:
        features["table"] = draw(case.heads, 2 * LENGTH - 1)
    if case.sinks:
        features["sinks"] = draw(case.heads)
    weights = {"out": draw(2, case.heads, LENGTH, case.width_v), "lse": draw(2, case.heads, LENGTH)}
    return {name: t.requires_grad_() for name, t in features.items()}, weights


def results(case: Case, attend: Callable[..., Any], tensors: dict[str, Tensor], weights: dict[str, Tensor]) -> Any:
    """``out``, ``lse`` and gradients, of the whole or of a part."""
    table = tensors.get("table")

    def bias(score, b, h, q_idx, kv_idx):
        return score + table[h, q_idx - kv_idx + LENGTH - 1]

    out, lse = attend(
        tensors["q"], tensors["k"], tensors["v"], score_mod=bias if case.bias else None, enable_gqa=case.heads != 2,
        return_lse=True, mask_mod=case.mask() if case.mask else None, sinks=tensors.get("sinks"), **case.options,
    )  # fmt: skip
    loss = (out * weights["out"]).sum()
    if case.lse:
        loss = loss + (torch.where(lse == float("-inf"), 0, lse) * weights["lse"]).sum()
    grads = torch.autograd.grad(loss, list(tensors.values()))
    return {"out": out.detach(), "lse": lse.detach(), **dict(zip(tensors, grads))}


def difference(found: Tensor, wanted: Tensor, whole: Tensor) -> float:
    """The largest, next to the largest number of the whole; where both are infinite there is none."""
    gap = torch.where(found == wanted, 0, (found.double() - wanted.double()).abs())
    return float(gap.max() / whole[whole.isfinite()].abs().max())


@functools.cache
def alone(name: str) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Whole tensors, weights, and what one process gives: exactly for 16-bit numbers, and in the type of the case."""
    case = CASES[name]
    tensors, weights = inputs(case)
    own = results(case, flex_attention, tensors, weights)
    if case.dtype != torch.bfloat16:
        return tensors, weights, own, own
    exact = {name: t.detach().double().requires_grad_() for name, t in tensors.items()}
    return tensors, weights, results(replace(case, dtype=torch.float64), flex_attention, exact, weights), own


def run(name: str, kind: str, method: str, rank: int, world: int, group: Any) -> dict[str, float]:
    """How far this rank's results are from those of one process; and that of 16-bit numbers from exact ones."""
    case = CASES[name]
    tensors, weights, wanted, own = alone(name)
    blocks = create_block_mask(case.mask() if case.mask else masks.always(), 2, case.heads, LENGTH, LENGTH, None, BLOCK)
    plan = shard_plan(blocks, world, kind)

    def local(t: Tensor) -> Tensor:
        return shard(t, plan, rank, 2)

    parts = {name: local(t) if name in "qkv" else t for name, t in tensors.items()}
    parts = {name: t.detach().clone().requires_grad_() for name, t in parts.items()}

    def attend(*features: Any, **options: Any) -> Any:
        return context_parallel_attention(*features, plan, method=method, group=group, **options)

    found = results(case, attend, parts, {name: local(t) for name, t in weights.items()})
    assert found["out"].dtype == case.dtype
    shared = {"table", "sinks"}
    gaps = {
        name: difference(t, wanted[name] if name in shared else local(wanted[name]), wanted[name])
        for name, t in found.items()
    }
    gaps["whole"] = difference(gather_shards(found["out"], plan, 2, group), wanted["out"], wanted["out"])
    if case.dtype == torch.bfloat16:
        gaps |= {f"{name} alone": difference(t, wanted[name], wanted[name]) for name, t in own.items()}
    return gaps


def kernels_called() -> int:
    """Kernels of a ring forward of all ranks in which no part sees another."""
    mask = masks.document(torch.arange(0, LENGTH + 1, LENGTH // RANKS))
    plan = shard_plan(create_block_mask(mask, None, None, LENGTH, LENGTH, BLOCK_SIZE=BLOCK), RANKS, "contiguous")
    q = torch.zeros(1, 1, LENGTH // RANKS, 8)
    calls: list[Any] = []
    with listening(calls.append):
        context_parallel_attention(q, q, q, plan, mask_mod=mask, method="ring")
    return len(calls)


def refusals(two: Any) -> list[str]:
    """Messages of a plan for another number of ranks, and of a group without this process."""
    blocks = create_block_mask(masks.causal(), None, None, LENGTH, LENGTH, BLOCK_SIZE=BLOCK)
    plan = shard_plan(blocks, 2)
    x = torch.zeros(1, 1, plan.local_length, 8)
    calls: list[Callable[[], Any]] = [
        lambda: context_parallel_attention(x, x, x, plan),
        lambda: gather_shards(x, plan, 2),
    ]
    if dist.get_rank() == 0:
        calls.append(lambda: gather_shards(x, plan, 2, two))
    said = []
    for call in calls:
        try:
            call()
        except InputError as error:
            said.append(str(error))
    return said


def main(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    two = dist.new_group([1, 2])
    said: dict[str, Any] = {"calls": kernels_called(), "refusals": refusals(two)}
    for name, case in CASES.items():
        for kind, method in itertools.product(case.kinds, METHODS):
            said[f"{name}/{kind}/{method}/3"] = run(name, kind, method, rank, RANKS, None)
            if rank:
                said[f"{name}/{kind}/{method}/2"] = run(name, kind, method, rank - 1, 2, two)
    (folder / f"rank{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
