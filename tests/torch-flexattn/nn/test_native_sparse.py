"""NativeSparseAttention against its equations, written out densely in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_flexattn.nn import NativeSparseAttention, block_selection
from torch_flexattn.nn.block_selection import Blocks, select_blocks, weight_of_blocks

B, L, E, H, G, D = 2, 150, 12, 4, 2, 4
SIZES = {"compress_block": 8, "compress_stride": 4, "select_block": 16, "num_selected": 4, "window": 20}


def layer(**options: Any) -> NativeSparseAttention:
    torch.manual_seed(1)
    made = NativeSparseAttention(E, H, G, D, dtype=torch.float64, **{**SIZES, **options})
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)  # gates and choices that differ
    return made


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(B, L, E, dtype=torch.float64)


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Weights ``[B, H, L, n]`` and what they make of values; nothing where nothing is ``seen``."""
    k, v = (t.repeat_interleave(H // G, 1) for t in (k, v))
    weight = torch.where(seen, (q @ k.mT) * D**-0.5, float("-inf")).softmax(-1).nan_to_num(0)
    return weight, weight @ v


def turned(t: Tensor, positions: Tensor) -> Tensor:
    """Pairs of features as complex numbers, turned."""
    angle = positions.unsqueeze(-1) * 10000.0 ** (-torch.arange(0, D, 2, dtype=t.dtype) / D)
    pairs = torch.complex(*t.chunk(2, -1)) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([pairs.real, pairs.imag], -1)


def normed(t: Tensor, weight: Tensor) -> Tensor:
    return t * torch.rsqrt(t.square().mean(-1, keepdim=True) + torch.finfo(t.dtype).eps) * weight


def compressed(module: Any, t: Tensor) -> Tensor:
    """Equation 7."""
    made = []
    for i in range((t.shape[2] - module.block) // module.stride + 1):
        block = t[:, :, i * module.stride : i * module.stride + module.block]
        if module.map is None:
            made.append(block.sum(2) / module.block)
        else:
            first, _, second = module.map
            flat = (block + module.position).flatten(2)
            hidden = torch.nn.functional.gelu(flat @ first.weight.T + first.bias)
            made.append(hidden @ second.weight.T + second.bias)
    return torch.stack(made, 2)


def chosen(weight: Tensor, blocks: Blocks) -> Tensor:
    """Equations 9 to 11: whether a query selects a block, ``[B, G, L, columns]``, the blocks always seen among them."""
    rows, each, overlap = weight.shape[2], blocks.selected // blocks.stride, blocks.compressed // blocks.stride
    columns = -(-rows // blocks.selected)
    importance = weight.new_zeros(*weight.shape[:3], columns)
    for j in range(1, columns + 1):  # the paper counts from 1
        for m in range(each):
            for n in range(overlap):
                i = each * j - m - n
                if 1 <= i <= weight.shape[3]:
                    importance[..., j - 1] += weight[..., i - 1]
    importance = importance.unflatten(1, (G, -1)).sum(2)
    selected = torch.zeros_like(importance, dtype=torch.bool)
    for t in range(rows):
        own = t // blocks.selected
        always = sorted({0, max(own - 1, 0), own})
        others = [c for c in range(own) if c not in always]
        for b in range(weight.shape[0]):
            for g in range(G):
                ranked = sorted(others, key=lambda c: -float(importance[b, g, t, c]))
                selected[b, g, t, [*always, *ranked[: max(blocks.count - len(always), 0)]]] = True
    return selected


def dense(module: NativeSparseAttention, x: Tensor) -> Tensor:
    """The whole layer."""
    i, positions = torch.arange(L), torch.arange(L, dtype=x.dtype)
    q = module.q_proj(x).unflatten(2, (H, D)).transpose(1, 2)
    ks, vs = (p(x).view(B, L, 3, G, D).permute(2, 0, 3, 1, 4) for p in (module.k_proj, module.v_proj))
    kc, vc = compressed(module.k_compress, ks[0]), compressed(module.v_compress, vs[0])
    k_slc, k_win = ks[1], ks[2]
    if module.q_norm is not None:
        q = normed(q, module.q_norm.weight)
        kc, k_slc, k_win = (normed(t, module.k_norm.weight) for t in (kc, k_slc, k_win))
    ends = torch.arange(kc.shape[2]) * module.blocks.stride + module.blocks.compressed - 1
    if module.rope_base is not None:
        q, k_slc, k_win = (turned(t, positions) for t in (q, k_slc, k_win))
        kc = turned(kc, ends.to(x.dtype))
    weight, of_compressed = attend(q, kc, vc, ends <= i[:, None])
    block = chosen(weight.detach(), module.blocks).repeat_interleave(module.blocks.selected, 3)[..., :L]
    seen = block.repeat_interleave(H // G, 1) & (i <= i[:, None])
    _, of_selected = attend(q, k_slc, vs[1], seen)
    _, of_window = attend(q, k_win, vs[2], (i <= i[:, None]) & (i[:, None] - i < module.window))
    gates = torch.sigmoid(module.gate_proj(x)).view(B, L, H, 3).transpose(1, 2)
    out = gates[..., :1] * of_compressed + gates[..., 1:2] * of_selected + gates[..., 2:] * of_window
    return module.o_proj(out.transpose(1, 2).reshape(B, L, H * D))


@pytest.mark.parametrize("options", [{}, {"compression": "mean", "qk_norm": True}, {"rope_base": None, "bias": True}])
def test_it_is_its_equations_with_gradients(x: Tensor, options: dict[str, Any]) -> None:
    module = layer(**options)
    found, expected = module(x.requires_grad_()), dense(module, x)
    torch.testing.assert_close(found, expected)
    leaves = [x, *module.parameters()]
    grad = torch.randn_like(found)
    for a, b in zip(torch.autograd.grad(found, leaves, grad), torch.autograd.grad(expected, leaves, grad)):
        torch.testing.assert_close(a, b)


def test_selection_matters(x: Tensor) -> None:
    """Queries of these lengths choose: what follows the equations with other choices is something else."""
    module = layer()
    other = copy.deepcopy(module)
    other.blocks = Blocks(8, 4, 16, 3)
    assert not torch.allclose(module(x), other(x))


def test_nothing_comes_from_behind(x: Tensor) -> None:
    module, changed = layer(), x.clone()
    changed[:, 100:] += 1
    torch.testing.assert_close(module(x)[:, :100], module(changed)[:, :100])
    assert not torch.allclose(module(x)[:, 100:], module(changed)[:, 100:])


@pytest.mark.parametrize("length", [1, 7, 8, 33])
def test_rows_shorter_than_blocks(x: Tensor, length: int) -> None:
    module = layer()
    torch.testing.assert_close(module(x[:, :length]), module(x)[:, :length])
    module(x[:, :length]).sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in module.parameters())


def test_a_few_queries_at_a_time_choose_the_same(monkeypatch: pytest.MonkeyPatch, x: Tensor) -> None:
    module = layer()
    expected = module(x)
    monkeypatch.setattr(block_selection, "MOST", B * H * 36 * 7)  # seven queries
    torch.testing.assert_close(module(x), expected)


def test_weights_of_blocks_count_what_they_share() -> None:
    """Sizes of the paper: compressed block c has tokens 16 c to 16 c + 31, block j tokens 64 j to 64 j + 63."""
    shared = torch.zeros(11, 3)
    for c in range(11):
        for j in range(3):
            shared[c, j] = len(set(range(16 * c, 16 * c + 32)) & set(range(64 * j, 64 * j + 64))) / 16
    assert torch.equal(weight_of_blocks(torch.eye(11), 3, Blocks(32, 16, 64, 16)), shared)


def test_selected_blocks() -> None:
    """One query head, whose weight is all on the compressed block of tokens 16 to 19, then on that of 64 to 67."""
    blocks = Blocks(compressed=4, stride=4, selected=16, count=4)
    q, k = torch.zeros(1, 1, 100, 2), torch.zeros(1, 1, 25, 2)
    q[..., 0], k[0, 0, 4, 0], k[0, 0, 16, 0] = 1, 40, 30
    scores = (q @ k.mT).masked_fill(torch.arange(25) * 4 + 3 > torch.arange(100)[:, None], float("-inf"))
    found = select_blocks(q, k, scores.logsumexp(-1), 1.0, blocks)
    assert sorted(found[0, 0, 0].tolist()) == [-1, -1, -1, 0]
    assert sorted(found[0, 0, 40].tolist()) == [-1, 0, 1, 2]
    assert sorted(found[0, 0, 63].tolist()) == [0, 1, 2, 3]
    assert sorted(found[0, 0, 99].tolist()) == [0, 1, 5, 6]


def test_positions_turn_all_branches(x: Tensor) -> None:
    module = layer()
    torch.testing.assert_close(module(x, positions=torch.arange(L) + 1000), module(x))
    assert not torch.allclose(module(x, positions=torch.arange(L) * 2), module(x))
    of_each = torch.stack([torch.arange(L), torch.arange(L) * 2])
    expected = torch.cat([module(x[b : b + 1], positions=of_each[b]) for b in range(B)])
    torch.testing.assert_close(module(x, positions=of_each), expected)


def test_a_step_of_training_lowers_the_loss(x: Tensor) -> None:
    module, target = layer(), torch.randn(B, L, E, dtype=torch.float64)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        loss = (module(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[2] < losses[1] < losses[0]


def test_autocast(x: Tensor) -> None:
    module = layer().float()
    with torch.autocast("cpu", torch.bfloat16):
        out = module(x.float())
    assert out.dtype == torch.bfloat16
    assert (out - module(x.float())).abs().mean() < 0.1 * out.abs().mean()
