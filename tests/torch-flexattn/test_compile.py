"""Attention inside ``torch.compile`` and ``torch.export``: one graph, and none new for new lengths and numbers."""

# ruff: noqa: B023 - loops here record functions over their variables, and run them at once

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch_flexattn import AuxRequest, create_block_mask, flex_attention, mask_mod, masks, score_mod, scores

TABLE = torch.randn(2, 100, generator=torch.Generator().manual_seed(0)).requires_grad_()
RELATIVE = score_mod(lambda s, b, h, i, j: s + TABLE[h, i - j + 50])
WINDOW, CAUSAL, SOFTCAP = masks.sliding_window(5), masks.causal(), scores.softcap(3.0)


def query(length: int, heads: int = 2) -> Tensor:
    return torch.randn(2, heads, length, 8, generator=torch.Generator().manual_seed(length)).requires_grad_()


def compiled(function: Callable[..., Any]) -> tuple[Callable[..., Any], CompileCounterWithBackend]:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(function, fullgraph=True, backend=counter), counter


def agree(function: Callable[..., Tensor], *calls: tuple[Any, ...], graphs: int) -> None:
    """Outputs and gradients with and without compiler, and how many graphs that took."""
    fast, counter = compiled(function)
    for arguments in calls:
        found, expected = fast(*arguments), function(*arguments)
        torch.testing.assert_close(found, expected)
        leaves = [a for a in (*arguments, TABLE) if isinstance(a, Tensor) and a.requires_grad]
        for a, b in zip(*(torch.autograd.grad(x.square().sum(), leaves, allow_unused=True) for x in (found, expected))):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b)
    assert counter.frame_count == graphs


def test_new_lengths_take_one_graph_more_and_then_none() -> None:
    lengths = [(query(n),) for n in (32, 40, 33, 47)]
    agree(lambda q: flex_attention(q, q, q, RELATIVE, WINDOW), *lengths, graphs=2)
    agree(lambda q: flex_attention(q, q, q, SOFTCAP), *lengths, graphs=2)


def test_new_numbers_take_no_new_graph() -> None:
    function = lambda q, mask: flex_attention(q, q, q, block_mask=mask)  # noqa: E731
    agree(function, *((query(32), masks.sliding_window(w)) for w in (3, 5, 7, 9)), graphs=1)
    function = lambda q, mod: flex_attention(q, q, q, score_mod=mod)  # noqa: E731
    agree(function, *((query(32), scores.softcap(c)) for c in (3.0, 5.0, 7.5, 9.0)), graphs=1)


def test_block_masks_options_and_auxiliary_outputs() -> None:
    blocks = create_block_mask(lambda b, h, i, j: i >= j, None, None, 32, 32, BLOCK_SIZE=16)
    lens, offset, sinks = torch.tensor([32, 9]), torch.tensor([3, 0]), torch.zeros(2)

    def attend(q: Tensor) -> Tensor:
        out, aux = flex_attention(
            q,
            q,
            q,
            RELATIVE,
            blocks,
            kv_lens=lens,
            sinks=sinks,
            dropout_p=0.2,
            seed=3,
            return_aux=AuxRequest(lse=True, max_scores=True),
        )
        return out + aux.lse.unsqueeze(-1) + aux.max_scores.unsqueeze(-1)

    agree(attend, (query(32),), graphs=1)
    agree(
        lambda q: flex_attention(q, q[:, :1], q[:, :1], mask_mod=CAUSAL, enable_gqa=True, q_offset=offset),
        (query(32),),
        graphs=1,
    )
    agree(lambda q: flex_attention(q, q, q, mask_mod=CAUSAL, q_offset=4, return_lse=True)[1], (query(32),), graphs=1)


def test_a_mask_that_captures_a_parameter_gives_it_no_gradient() -> None:
    limit = nn.Parameter(torch.linspace(-1, 1, 32))
    mask = mask_mod(lambda b, h, i, j: (i >= j) & (limit[j] > -0.5))
    agree(lambda q: flex_attention(q, q, q, RELATIVE, mask), (query(32),), graphs=1)
    both = score_mod(lambda s, b, h, i, j: s + limit[j])
    q = query(32)
    found = compiled(lambda q: flex_attention(q, q, q, both, mask))[0](q)
    expected = flex_attention(q, q, q, both, mask)
    for a, b in zip(*(torch.autograd.grad(out.square().sum(), (q, limit)) for out in (found, expected)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dynamic", [None, True])
def test_block_masks_of_new_lengths_take_one_graph_more_and_then_none(dynamic: bool | None) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    attend = lambda q, mask: flex_attention(q, q, q, block_mask=mask)  # noqa: E731
    fast = torch.compile(attend, fullgraph=True, backend=counter, dynamic=dynamic)
    counts = []
    for n in (40, 64, 33, 160):
        mask = create_block_mask(WINDOW, None, None, n, n, BLOCK_SIZE=16)
        q = query(n)
        found, expected = fast(q, mask), attend(q, mask)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*(torch.autograd.grad(out.square().sum(), q)[0] for out in (found, expected)))
        counts.append(counter.frame_count)
    assert counts[1:] == [2, 2, 2]


def test_masks_that_wait_for_the_lengths() -> None:
    mask = masks.causal("bottom_right")
    agree(
        lambda q, k: flex_attention(q, k, k, block_mask=mask),
        *((query(n), query(n + 7)) for n in (32, 40, 33)),
        graphs=2,
    )


def test_a_captured_tensor_that_changes_is_seen() -> None:
    limit = torch.full((32,), 20)
    mask = mask_mod(lambda b, h, i, j: j <= limit[i])
    fast, counter = compiled(lambda q: flex_attention(q, q, q, block_mask=mask))
    q = query(32)
    for number in (20, 7, 0):
        limit.fill_(number)
        torch.testing.assert_close(fast(q), flex_attention(q, q, q, block_mask=lambda b, h, i, j: j <= number))
    assert counter.frame_count == 1


def test_dropout_draws_anew_at_every_call() -> None:
    fast, counter = compiled(lambda q: flex_attention(q, q, q, dropout_p=0.5))
    q = query(16)
    torch.manual_seed(0)
    first, second = fast(q), fast(q)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(first, fast(q))
    assert counter.frame_count == 1


def test_exported_programs_carry_their_mods() -> None:
    class Model(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return flex_attention(q, q, q, RELATIVE, WINDOW)

    length = torch.export.Dim("length", min=2, max=50)
    for strict in (False, True):
        torch._dynamo.reset()
        program = torch.export.export(Model(), (query(32).detach(),), dynamic_shapes=({2: length},), strict=strict)
        for n in (41, 2, 50):
            q = query(n).detach()
            torch.testing.assert_close(program.module()(q), flex_attention(q, q, q, RELATIVE, WINDOW))


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_take_block_masks(strict: bool, tmp_path: Path) -> None:
    class Model(nn.Module):
        def forward(self, q: Tensor, mask: Any) -> Tensor:
            return flex_attention(q, q, q, block_mask=mask)

    limit = torch.full((32,), 20)
    mod = mask_mod(lambda b, h, i, j: (j <= limit[i]) & (i - j < 7))
    q, mask = query(32).detach(), create_block_mask(mod, None, None, 32, 32, BLOCK_SIZE=16)
    torch._dynamo.reset()
    torch.export.save(torch.export.export(Model(), (q, mask), strict=strict), tmp_path / "attention.pt2")
    loaded = torch.export.load(tmp_path / "attention.pt2").module()
    torch.testing.assert_close(loaded(q, mask), flex_attention(q, q, q, block_mask=mask))
