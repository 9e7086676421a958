"""Attention inside documents, one long row cut over processes: each plan and method, compared with one process.

torchrun --standalone --nproc-per-node 2 examples/flexattn_ring_document.py --device cpu
torchrun --standalone --nproc-per-node 8 examples/flexattn_ring_document.py --device cuda --length 131072

Documents have very different lengths, so neighbouring parts of the row have very different amounts to do. Printed of
each plan and method: the imbalance (the busiest rank's blocks next to the mean), the time of the slowest rank for
forward and backward, and the largest difference of outputs and gradients from those of one process, next to the largest
number. Ends with an error where one is above the tolerance.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor
from torch_flexattn import create_block_mask, flex_attention, masks
from torch_flexattn.parallel import ShardPlan, context_parallel_attention, shard, shard_plan

Run = Callable[[Tensor, Tensor, Tensor], Tensor]


def document_bounds(length: int, seed: int) -> Tensor:
    """Where documents begin, and the end: lengths of 8 tokens to half the row, short ones far more often."""
    rng = torch.Generator().manual_seed(seed)
    bounds = [0]
    while bounds[-1] < length:
        drawn = 8 * (length / 16) ** float(torch.rand((), generator=rng) ** 2)
        bounds.append(min(bounds[-1] + int(drawn), length))
    return torch.tensor(bounds, dtype=torch.int32)


def timed(attend: Run, inputs: list[Tensor], weight: Tensor, rounds: int) -> tuple[list[Tensor], float]:
    """Output and gradients, and milliseconds of forward and backward: the median of some rounds after a first one."""
    took, found = [], []
    for _ in range(rounds + 1):
        if inputs[0].is_cuda:
            torch.cuda.synchronize()
        dist.barrier()
        began = time.perf_counter()
        out = attend(*inputs)
        grads = torch.autograd.grad((out * weight).sum(), inputs)
        if inputs[0].is_cuda:
            torch.cuda.synchronize()
        took.append(1e3 * (time.perf_counter() - began))
        found = [out.detach(), *grads]
    return found, median(took[1:])


def largest(x: float, like: Tensor) -> float:
    """The largest number of any rank."""
    all_of_them = torch.tensor(x, dtype=torch.float32, device=like.device)
    dist.all_reduce(all_of_them, op=dist.ReduceOp.MAX)
    return float(all_of_them)


def difference(found: list[Tensor], whole: list[Tensor], plan: ShardPlan) -> float:
    """The largest of this rank, of outputs and gradients, each next to the largest number of the whole."""
    wanted = [shard(t, plan, dist.get_rank(), 2) for t in whole]
    gaps = [float((a - b).abs().max() / t.abs().max()) for a, b, t in zip(found, wanted, whole, strict=True)]
    return max(gaps)


def main(arguments: list[str] | None = None) -> int:
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    line.add_argument("--length", type=int, default=4096, help="tokens of the row (default: %(default)s)")
    line.add_argument("--block", type=int, default=64, help="tokens that stay together (default: %(default)s)")
    line.add_argument("--heads", type=int, default=8)
    line.add_argument("--kv-heads", type=int, default=2)
    line.add_argument("--width", type=int, default=32)
    line.add_argument("--rounds", type=int, default=3, help="of which the median time is printed")
    line.add_argument("--tolerance", type=float, default=1e-6)
    line.add_argument("--seed", type=int, default=0)
    options = line.parse_args(arguments)
    for name in ("length", "block", "heads", "kv_heads", "width", "rounds"):
        if getattr(options, name) < 1:
            line.error(f"--{name.replace('_', '-')} must be at least 1, got {getattr(options, name)}")

    dist.init_process_group("gloo" if options.device == "cpu" else "nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cpu") if options.device == "cpu" else torch.device("cuda", rank % torch.cuda.device_count())
    if device.type == "cuda":
        torch.cuda.set_device(device)

    def say(text: str) -> None:
        if rank == 0:
            print(text, flush=True)

    rng = torch.Generator().manual_seed(options.seed)  # the same on every rank
    heads = (options.heads, options.kv_heads, options.kv_heads, options.heads)
    *inputs, weight = (torch.randn(1, n, options.length, options.width, generator=rng).to(device) for n in heads)
    for t in inputs:
        t.requires_grad_()
    bounds = document_bounds(options.length, options.seed).to(device)
    mask = masks.causal() & masks.document(bounds)
    blocks = create_block_mask(mask, None, None, options.length, options.length, device, options.block)
    say(f"{options.length} tokens in {len(bounds) - 1} documents, {world} ranks on {device.type}")

    def alone(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, mask_mod=mask, enable_gqa=True)

    whole, took = timed(alone, inputs, weight, options.rounds)
    slowest = largest(took, weight)
    say(f"{'plan':13}{'method':11}{'imbalance':>11}{'time':>13}")
    say(f"{'one process':35}{slowest:10.1f} ms")
    worst = 0.0
    for kind in ("contiguous", "zigzag", "balanced"):
        plan = shard_plan(blocks, world, kind)
        parts = [shard(t.detach(), plan, rank, 2).requires_grad_() for t in inputs]
        for method in ("all_gather", "ring"):

            def attend(q: Tensor, k: Tensor, v: Tensor, plan: ShardPlan = plan, method: str = method) -> Tensor:
                return context_parallel_attention(q, k, v, plan, mask_mod=mask, enable_gqa=True, method=method)

            found, took = timed(attend, parts, shard(weight, plan, rank, 2), options.rounds)
            slowest, gap = largest(took, weight), largest(difference(found, whole, plan), weight)
            say(f"{kind:13}{method:11}{plan.imbalance:11.3f}{slowest:10.1f} ms   difference {gap:.1e}")
            worst = max(worst, gap)
    dist.destroy_process_group()
    if worst > options.tolerance:
        print(f"the largest difference is {worst:.1e}, above --tolerance {options.tolerance:.1e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
