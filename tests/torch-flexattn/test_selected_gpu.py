"""Attention to selected blocks on a GPU: outputs, gradients, equal bits, no waiting."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_flexattn import BlockMask, flex_attention, masks, selected_attention, stats

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


def inputs(
    rows: int, heads: int = 16, groups: int = 1, width: int = 64, width_v: int = 64, dtype: torch.dtype = torch.bfloat16
) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = (2, heads, rows, width), (2, groups, rows, width), (2, groups, rows, width_v)
    drawn = (torch.randn(shape, device="cuda", generator=generator) for shape in shapes)
    return [t.to(dtype).requires_grad_() for t in drawn]


def lists(rows: int, groups: int = 1, entries: int = 5, block: int = 64) -> Tensor:
    """The first block, and others up to the query's own and beyond."""
    generator = torch.Generator("cuda").manual_seed(1)
    columns = -(-rows // block)
    order = torch.rand(2, groups, rows, columns, device="cuda", generator=generator).argsort(-1)[..., :entries]
    order[..., 0] = torch.where((order[..., 1:] == 0).any(-1), order[..., 0], 0)
    return order


def compared(tolerance: float, features: list[Tensor], blocks: Tensor, **options: Any) -> None:
    results = []
    for backend in ("auto", "reference"):
        out, lse = selected_attention(*features, blocks, return_lse=True, backend=backend, **options)
        loss = out.float().sin().sum() + lse.clamp(min=-1e3).sum()
        results.append([out, lse, *torch.autograd.grad(loss, features)])
    for found, right in zip(*results, strict=True):
        scale = max(float(right[right.isfinite()].abs().max()), 1e-3)
        torch.testing.assert_close(found.float(), right.float(), atol=tolerance * scale, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 70, 700])
def test_agrees_with_the_reference(rows: int, dtype: torch.dtype) -> None:
    tolerance = 2e-5 if dtype == torch.float32 else 0.02
    compared(tolerance, inputs(rows, dtype=dtype), lists(rows))
    assert stats().kernel == "triton"


@pytest.mark.parametrize(
    ("heads", "groups", "width", "width_v", "block"),
    [(64, 4, 192, 128, 64), (4, 4, 128, 128, 64), (6, 2, 80, 80, 32), (70, 1, 64, 64, 48), (16, 1, 256, 256, 64)],
)
def test_sizes(heads: int, groups: int, width: int, width_v: int, block: int) -> None:
    features = inputs(300, heads, groups, width, width_v)
    compared(0.02, features, lists(300, groups, block=block), block_size=block)


def test_long_lists_give_equal_bits() -> None:
    """The first block's list is longer than a segment."""
    q, k, v = inputs(3000, heads=4)
    blocks = lists(3000)
    compared(0.02, [q, k, v], blocks)
    runs = [
        torch.autograd.grad(selected_attention(q, k, v, blocks).float().square().sum(), [q, k, v]) for _ in range(3)
    ]
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(run, runs[0], strict=True))


def test_nothing_waits_for_the_device() -> None:
    q, k, v = inputs(700)
    blocks, counts = lists(700), torch.full((2, 1, 700), 4, device="cuda")
    selected_attention(q, k, v, blocks, counts).sum().backward()  # compiled now
    torch.cuda.set_sync_debug_mode("error")
    try:
        selected_attention(q, k, v, blocks, counts).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_mask_from_lists_of_blocks_waits_for_nothing() -> None:
    """Forward and backward over a new mask of each step (MoBA), and its values."""
    q, k, v = inputs(1000, heads=4, groups=4)
    rows = 8  # of 128 queries
    columns = torch.arange(rows, device="cuda")
    near = torch.stack([columns, (columns - 1).clamp(min=0), torch.zeros_like(columns)], -1)
    indices, number = near.expand(1, 1, rows, 3), (columns + 1).clamp(max=3).expand(1, 1, rows)
    distinct = torch.tensor([1, 2, 3, 3, 3, 3, 3, 3], device="cuda")
    assert torch.equal(number[0, 0], distinct)
    mod = masks.causal()

    def step() -> tuple[Tensor, ...]:
        mask = BlockMask.from_block_indices(indices, number, q_len=1000, kv_len=1000, mod=mod)
        out = flex_attention(q, k, v, block_mask=mask)
        return out, *torch.autograd.grad(out, [q, k, v], torch.ones_like(out))

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    i = torch.arange(1000, device="cuda")
    block = i // 128
    own = (block[:, None] == block) | (block[:, None] - 1 == block) | (block == 0)
    seen = (i[:, None] >= i) & own
    right = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=seen)
    grads = torch.autograd.grad(right, [q, k, v], torch.ones_like(right))
    for a, b in zip(found, (right, *grads), strict=True):
        torch.testing.assert_close(a.float(), b.float(), atol=0.02 * float(b.abs().max()), rtol=0)


def test_replayed_from_a_graph() -> None:
    q, k, v = (t.detach() for t in inputs(300))
    blocks = lists(300)
    selected_attention(q, k, v, blocks)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = selected_attention(q, k, v, blocks)
    q.neg_()
    blocks.copy_(blocks.flip(2))
    graph.replay()
    torch.testing.assert_close(out, selected_attention(q, k, v, blocks))


def test_memory_is_that_of_results_and_sums() -> None:
    """No keys are gathered: forward and backward of 4,096 queries that see 1,024 keys each."""
    q, k, v = inputs(4096, heads=16, groups=1)
    blocks = lists(4096, entries=16)
    selected_attention(q, k, v, blocks).sum().backward()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = selected_attention(q, k, v, blocks)
    out.backward(torch.ones_like(out))
    assert torch.cuda.max_memory_allocated() - before < 128 * 2**20  # gathered keys alone would take 1 GiB
