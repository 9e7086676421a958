"""Under what trains models: activation checkpointing, data parallelism by copies and by shards."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch_flexattn import clear_caches, flex_attention, forget_masks, masks

SCRIPT = Path(__file__).with_name("train_in_ranks.py")


def load_script():
    spec = importlib.util.spec_from_file_location("train_in_ranks", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("seed", [None, 7])
def test_checkpointed_attention_has_the_same_gradients(reentrant: bool, seed: int | None) -> None:
    """Dropout without a seed is drawn anew in the recomputation, from the restored generator: the same."""
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 2, 33, 8, generator=draw).requires_grad_() for _ in range(3)]
    table = torch.randn(2, 33, generator=draw).requires_grad_()
    calls = []

    def attend(q, k, v, table):
        calls.append(1)
        bias = lambda s, b, h, i, j: s + table[h, (i - j).abs()]  # noqa: E731
        return flex_attention(q, k, v, bias, masks.sliding_window(9), dropout_p=0.3, seed=seed).sin()

    results, leaves = [], [*inputs, table]
    for kept in (True, False):
        torch.manual_seed(3)
        out = attend(*leaves) if kept else checkpoint(attend, *leaves, use_reentrant=reentrant)
        out.square().sum().backward()
        results.append([out, *(leaf.grad for leaf in leaves)])
        for leaf in leaves:
            leaf.grad = None
    assert len(calls) == 3  # the second was computed again
    for a, b in zip(*results):
        assert torch.equal(a, b)


def test_selective_checkpointing_does_not_see_a_mask_being_built() -> None:
    """Results are kept by operator, in order; the recomputation knows the mask and would take those of its blocks."""
    inputs = [
        torch.randn(1, 2, 200, 8, generator=torch.Generator().manual_seed(n), requires_grad=True) for n in range(3)
    ]
    mask = masks.document([0, 37, 137, 200], causal=True)

    def attend(*qkv):
        return flex_attention(*qkv, mask_mod=mask).to(torch.float64).square()

    def keep(context, operator, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE

    expected = torch.autograd.grad(attend(*inputs).sum(), inputs)
    forget_masks()
    contexts = lambda: create_selective_checkpoint_contexts(keep)  # noqa: E731
    out = checkpoint(attend, *inputs, use_reentrant=False, context_fn=contexts)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), inputs), expected)


@pytest.fixture(scope="module")
def gradients(tmp_path_factory):
    """What each of two ranks has, by way of training."""
    folder = tmp_path_factory.mktemp("training")
    source = SCRIPT.parents[2] / "packages" / "torch-flexattn" / "src"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(source)}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder), str(rank)], env=environment, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            _, errors = rank.communicate(timeout=120)
            assert rank.returncode == 0, errors[-2000:]
    finally:
        for rank in ranks:
            rank.kill()
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


def test_a_first_call_may_be_checkpointed() -> None:
    """What is recorded and found once must not count among what the forward pass keeps."""
    table = torch.randn(2, 40, generator=torch.Generator().manual_seed(0)).requires_grad_()
    q = torch.randn(1, 2, 20, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()

    def attend(x: Tensor) -> Tensor:
        score = lambda s, b, h, i, j: s * torch.sigmoid(table[h, i]) + table[h, i - j + 20]  # noqa: E731
        return flex_attention(x, x, x, score, mask_mod=lambda b, h, i, j: (table[h, j] > 0) | (i == j))

    clear_caches()
    found = torch.autograd.grad(checkpoint(attend, q, use_reentrant=False).square().sum(), [q, table])
    torch.testing.assert_close(found, torch.autograd.grad(attend(q).square().sum(), [q, table]))


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_ranks_have_the_gradients_of_the_whole_batch(way: str, gradients) -> None:
    script = load_script()
    alone = script.model()
    script.loss(alone, script.rows()).backward()
    wanted = script.gradients(alone)
    assert wanted["table"].abs().max() > 1e-5
    for rank in gradients:
        assert rank[way].keys() == wanted.keys()
        for name, grad in wanted.items():
            torch.testing.assert_close(rank[way][name], grad, atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("way", ["heads", "batch"])
@pytest.mark.parametrize("kind", ["mask", "two masks", "blocks"])
def test_distributed_tensors_give_what_whole_ones_give(way: str, kind: str, gradients) -> None:
    """Mods, sinks and lengths are those of the whole; gradients of what all ranks hold are summed over them."""
    script = load_script()
    leaves = script.inputs()
    wanted = script.results(*leaves[:3], leaves, kind)
    for rank in gradients:
        for found, right in zip(rank[way][kind], wanted, strict=True):
            torch.testing.assert_close(found, right, atol=1e-6, rtol=1e-6)


def test_distributed_tensors_that_do_not_fit_are_refused(gradients) -> None:
    said = gradients[0]["refused"]
    fragments = ["KindError: query, key and value must all be DTensors", "InputError: key must be placed as query is",
                 "UnsupportedError: query must be cut along batch or heads", "InputError: query must divide evenly",
                 "UnsupportedError: dropout_p must be 0 for DTensors"]  # fmt: skip
    assert len(said) == len(fragments)
    for message, fragment in zip(said, fragments):
        assert message.startswith(fragment)
