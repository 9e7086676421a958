"""Context parallelism in one process: a plan for one rank, and a rank whose ring is watched."""

from __future__ import annotations

import pytest
import torch
from torch_flexattn import InputError, KindError, UnsupportedError, create_block_mask, flex_attention, masks, scores
from torch_flexattn.parallel import context_parallel_attention, exchange, group, ring, shard_plan

LENGTH = 64


def plan_for(world: int, mask=None, kind="contiguous"):
    mask = masks.causal() if mask is None else mask
    return shard_plan(create_block_mask(mask, None, None, LENGTH, LENGTH, BLOCK_SIZE=16), world, kind)


def features(length=LENGTH, dtype=torch.float64):
    torch.manual_seed(0)
    return [torch.randn(1, 2, length, 8, dtype=dtype, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("method", ["all_gather", "ring"])
def test_one_rank_is_flex_attention(method):
    inputs = features()
    table = torch.randn(2, 2 * LENGTH - 1, dtype=torch.float64, requires_grad=True)
    sinks = torch.randn(2, dtype=torch.float64, requires_grad=True)
    mods = {"score_mod": scores.relative_bias(table), "mask_mod": masks.causal(), "sinks": sinks, "return_lse": True}
    found = context_parallel_attention(*inputs, plan_for(1), method=method, **mods)
    wanted = flex_attention(*inputs, **mods)
    for a, b in zip(found, wanted):
        torch.testing.assert_close(a, b)
    tensors = [*inputs, table, sinks]
    grads = [torch.autograd.grad(out.square().sum() + lse.sum(), tensors) for out, lse in (found, wanted)]
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b)


def test_autocast_gives_its_type():
    inputs = features(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = context_parallel_attention(*inputs, plan_for(1), method="ring")
    assert out.dtype == torch.bfloat16
    grads = torch.autograd.grad(out.float().sum(), inputs)
    assert {g.dtype for g in grads} == {torch.float32}


def test_a_second_derivative_is_refused():
    q, k, v = features()
    out = context_parallel_attention(q, k, v, plan_for(1))
    with pytest.raises(UnsupportedError, match="no second derivative"):
        torch.autograd.grad(out.sum(), q, create_graph=True)


@pytest.mark.parametrize("method", ["all_gather", "ring"])
def test_a_mask_that_changed_before_backward_is_an_error(method):
    q, k, v = features()
    visible = torch.ones(LENGTH, dtype=torch.bool)
    visible[::3] = False
    out = context_parallel_attention(
        q, k, v, plan_for(1), mask_mod=lambda b, h, q_idx, kv_idx: visible[kv_idx], method=method
    )
    visible.fill_(True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


class Watched:
    """A ring of two in one process: what is sent comes back; notes what happens when."""

    def __init__(self, events):
        self.events = events

    def pass_on(self, x, tag):
        name = {exchange.KEYS: "keys", exchange.SUMS: "sums"}[tag]
        self.events.append(f"send {name}")
        return self.Transfer(x.clone(), name, self.events)

    class Transfer:
        def __init__(self, x, name, events):
            self.x, self.name, self.events = x, name, events

        def wait(self):
            self.events.append(f"wait {self.name}")
            return self.x


@pytest.fixture
def events(monkeypatch):
    """What rank 1 of two does, in order."""
    noted = []

    def noting(function, name):
        def call(*arguments):
            noted.append(name)
            return function(*arguments)

        return call

    from torch_flexattn.ops import attention as ops
    from torch_flexattn.parallel import attention

    monkeypatch.setattr(attention, "place_in", lambda group, plan: 1)
    monkeypatch.setattr(attention, "sum_over_ranks", lambda tensors, world, group: tensors)
    monkeypatch.setattr(ring, "Ring", lambda rank, world, group: Watched(noted))
    monkeypatch.setattr(ops, "attention", noting(ops.attention, "kernel"))
    monkeypatch.setattr(ops, "run_backward", noting(ops.run_backward, "kernel"))
    return noted


def test_exchanges_are_under_way_while_kernels_run(events):
    q, k, v = features(LENGTH // 2)
    out = context_parallel_attention(q, k, v, plan_for(2), mask_mod=masks.causal(), method="ring")
    assert events == ["send keys", "kernel", "wait keys", "kernel"]
    events.clear()
    out.sum().backward()
    first, second = ["send keys", "kernel", "send sums", "wait keys"], ["kernel", "wait sums", "send sums"]
    assert events == [*first, *second, "wait sums"]


def test_a_shard_without_visible_keys_is_passed_on_and_not_computed(events):
    mask = masks.causal() & masks.chunked(LENGTH // 2)
    q, k, v = features(LENGTH // 2)
    out = context_parallel_attention(q, k, v, plan_for(2, mask), mask_mod=mask, method="ring")
    assert events == ["send keys", "kernel", "wait keys"]
    events.clear()
    out.sum().backward()
    assert events == ["send keys", "kernel", "send sums", "wait keys", "wait sums", "send sums", "wait sums"]


@pytest.mark.parametrize(
    "changed, error, message",
    [
        ({"plan": 3}, KindError, "plan must be a ShardPlan, got int"),
        ({"q": torch.zeros(1, 2, 32, 8)}, InputError, "q must have the plan's 64 tokens a rank, got 32"),
        ({"method": "tree"}, InputError, "method must be one of 'all_gather', 'ring', got 'tree'"),
        ({"scale": "big"}, KindError, "scale must be a number, got 'big'"),
        ({"sinks": torch.zeros(3)}, InputError, r"sinks must have shape \(2,\), one a query head, got \(3,\)"),
        ({"score_mod": masks.causal()}, KindError, "score_mod got a MaskMod"),
        ({"plan": plan_for(2), **{n: torch.zeros(1, 2, 32, 8) for n in "qkv"}}, InputError, "plan is for 2 ranks"),
    ],
)
def test_arguments_that_do_not_fit(changed, error, message):
    arguments = {**{n: torch.zeros(1, 2, LENGTH, 8) for n in "qkv"}, "plan": plan_for(1), **changed}
    with pytest.raises(error, match=message):
        context_parallel_attention(**arguments)


def test_keys_of_another_length_than_queries():
    q, k = torch.zeros(1, 2, LENGTH, 8), torch.zeros(1, 2, 32, 8)
    with pytest.raises(InputError, match="k must have the plan's 64 tokens a rank, got 32"):
        context_parallel_attention(q, k, k, plan_for(1))


def test_one_rank_needs_no_processes():
    assert group.place_in(None, plan_for(1)) == 0
