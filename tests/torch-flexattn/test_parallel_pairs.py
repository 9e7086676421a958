"""The calls that ranks make for each other's keys, one after the other in one process: merged, they are the whole."""

from __future__ import annotations

import pytest
import torch
from torch_flexattn import create_block_mask, flex_attention, masks, merge_attention, scores
from torch_flexattn.ops import attention as ops
from torch_flexattn.parallel import shard, shard_plan
from torch_flexattn.parallel.job import Job, gradients

LENGTH, WORLD = 768, 3


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("kind", ["contiguous", "zigzag", "balanced"])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-5), (torch.bfloat16, 3e-2)])
def test_all_pairs_of_ranks_are_the_whole(device, kind, dtype, tolerance):
    torch.manual_seed(0)
    sizes = [(1, 4, LENGTH, 32), (1, 2, LENGTH, 32), (1, 2, LENGTH, 32)]
    q, k, v = (torch.randn(size, device=device).to(dtype).requires_grad_() for size in sizes)
    table = torch.randn(4, 2 * LENGTH - 1, device=device, requires_grad=True)
    bounds = torch.tensor([0, 100, 256, 384, 400, 512, 700, LENGTH], dtype=torch.int32, device=device)
    mask, score = masks.causal() & masks.document(bounds), scores.relative_bias(table)
    plan = shard_plan(create_block_mask(mask, None, None, LENGTH, LENGTH, BLOCK_SIZE=32), WORLD, kind)
    out, lse = flex_attention(q, k, v, score, mask, enable_gqa=True, return_lse=True)
    weight = torch.randn(out.shape, device=device).to(dtype)
    wanted = torch.autograd.grad((out * weight).sum(), (q, k, v, table))

    parts = [[shard(t.detach(), plan, rank, 2) for t in (q, k, v, weight)] for rank in range(WORLD)]
    of_keys = [[torch.zeros_like(t, dtype=torch.float32) for t in part[1:3]] for part in parts]
    of_table = torch.zeros_like(table)
    for rank, (own, *_, given) in enumerate(parts):
        job = Job(plan, rank, None, score, mask, 32**-0.5, check=device == "cpu")
        calls = [job.call(own, owner) for owner in range(WORLD)]
        with torch.no_grad():
            found = [ops.attention(own, key, value, None, call)[:2] for call, (_, key, value, _) in zip(calls, parts)]
            merged, total = merge_attention([(part.float(), part_lse) for part, part_lse in found])
        torch.testing.assert_close(merged, shard(out, plan, rank, 2).float(), rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(total, shard(lse, plan, rank, 2), rtol=tolerance, atol=tolerance)
        of_q = torch.zeros_like(merged)
        for owner, call in enumerate(calls):
            _, key, value, _ = parts[owner]
            of_step, *of_step_keys = gradients(job, call, given, None, own, key, value, merged.to(dtype), total, None)
            of_q += of_step.q
            of_table += of_step.captures[0]
            for sum_, part in zip(of_keys[owner], of_step_keys):
                sum_ += part
        torch.testing.assert_close(of_q, shard(wanted[0], plan, rank, 2).float(), rtol=tolerance, atol=tolerance)
    for rank, sums in enumerate(of_keys):
        for got, expected in zip(sums, wanted[1:3]):
            torch.testing.assert_close(got, shard(expected, plan, rank, 2).float(), rtol=tolerance, atol=2 * tolerance)
    torch.testing.assert_close(of_table, wanted[3], rtol=10 * tolerance, atol=10 * tolerance)
