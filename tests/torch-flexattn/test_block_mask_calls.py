"""Block masks in calls that number queries from elsewhere, or that give a further mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as theirs
from torch_flexattn import (
    BlockMask,
    UnsupportedError,
    create_block_mask,
    create_mask,
    flex_attention,
    from_block_indices,
    masks,
)

CAUSAL = masks.causal()
WINDOW = masks.sliding_window(40)
OFFSETS = [90, torch.tensor([90, 17])]


def features(queries: int = 70, keys: int = 200) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 2, n, 8, generator=generator) for n in (queries, keys, keys)]


def dense(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    scores = (q.double() @ k.double().mT / q.shape[3] ** 0.5).masked_fill(~visible, float("-inf"))
    return (scores.softmax(-1).nan_to_num(0) @ v.double()).float()


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("beside", [None, WINDOW])
@pytest.mark.parametrize("blocks", [None, (32, 16)])
def test_an_offset_moves_the_blocks_of_a_block_mask(offset: Any, beside: Any, blocks: Any) -> None:
    q, k, v = features()
    mask = create_block_mask(CAUSAL, None, None, 70, 200, BLOCK_SIZE=blocks or 128)
    found = flex_attention(q, k, v, block_mask=mask, mask_mod=beside, q_offset=offset)
    whole = CAUSAL if beside is None else CAUSAL & beside
    torch.testing.assert_close(found, flex_attention(q, k, v, mask_mod=whole, q_offset=offset))
    right = flex_attention(q, k, v, block_mask=mask, mask_mod=beside, q_offset=offset, backend="reference")
    torch.testing.assert_close(found, right)
    assert (found - flex_attention(q, k, v, block_mask=mask, mask_mod=beside)).abs().max() > 0.1


def test_an_offset_leaves_the_blocks_of_a_mask_that_does_not_see_queries() -> None:
    q, k, v = features()
    mask = create_block_mask(masks.padding([60, 130]), 2, None, 70, 200)
    expected = flex_attention(q, k, v, block_mask=mask)
    assert torch.equal(flex_attention(q, k, v, block_mask=mask, q_offset=30), expected)


LISTS: dict[str, Callable[[], tuple[Any, Tensor]]] = {
    "blocks alone": lambda: _listed(None),
    "blocks of each head": lambda: _listed(None, heads=2),
    "blocks with a mask": lambda: _listed(CAUSAL),
    "a torch block mask": lambda: _of_torch(False),
    "a torch block mask that calls hidden positions full": lambda: _of_torch(True),
}


def _listed(mod: Any, heads: int = 1) -> tuple[BlockMask, Tensor]:
    indices = torch.tensor([[[[0, 2, 5], [1, 2, 0], [4, 5, 6]]]]).repeat(1, heads, 1, 1)
    indices[:, 1:, 1] = torch.tensor([3, 6, 2])
    blocks = torch.zeros(1, heads, 3, 7, dtype=torch.bool).scatter_(3, indices, True)
    visible = blocks.repeat_interleave(32, 2).repeat_interleave(32, 3)[:, :, :70, :200]
    if mod is not None:
        visible = visible & create_mask(mod, 1, 1, 70, 200)
    return from_block_indices(indices, q_len=70, kv_len=200, block=(32, 32), mod=mod), visible


def _of_torch(lies: bool) -> tuple[Any, Tensor]:
    plain = lambda b, h, q, kv: q >= kv  # noqa: E731
    mask = theirs.create_block_mask(plain, None, None, 200, 200, device="cpu", BLOCK_SIZE=32)
    visible = create_mask(plain, 1, 1, 200, 200)
    if lies:  # it was made with more than what its function says
        mask.mask_mod = lambda b, h, q, kv: (q >= kv) & (kv != 3)
        visible[..., 3] = (torch.arange(200) >= 32) & (torch.arange(200) < 192)  # blocks at the edge are partial
    return mask, visible


@pytest.mark.parametrize(
    "other",
    [WINDOW, masks.document([0, 45, 200]), lambda b, h, q, kv: kv % (b + h + 2) > 0],
    ids=["window", "doc", "bh"],
)
@pytest.mark.parametrize("name", LISTS)
def test_lists_of_blocks_and_another_mask_both_apply(name: str, other: Any) -> None:
    mask, visible = LISTS[name]()
    q, k, v = (t.requires_grad_() for t in features(visible.shape[2]))
    visible = visible & create_mask(other, 2, 2, *visible.shape[2:])
    found, expected = flex_attention(q, k, v, block_mask=mask, mask_mod=other), dense(q, k, v, visible)
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)
    gradients = (torch.autograd.grad(out.sin().sum(), (q, k, v)) for out in (found, expected))
    for got, right in zip(*gradients, strict=True):
        torch.testing.assert_close(got, right, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("offset", OFFSETS)
def test_lists_of_blocks_stay_where_they_are_and_the_mask_beside_moves(offset: Any) -> None:
    q, k, v = features()
    mask, visible = _listed(None, heads=2)
    first = torch.as_tensor(offset).reshape(-1, 1, 1)
    seen = first + torch.arange(70)[:, None] >= torch.arange(200)
    found = flex_attention(q, k, v, block_mask=mask, mask_mod=CAUSAL, q_offset=offset)
    torch.testing.assert_close(found, dense(q, k, v, visible & seen[:, None]), rtol=2e-5, atol=2e-5)
    assert torch.equal(
        flex_attention(q, k, v, block_mask=mask, q_offset=offset), flex_attention(q, k, v, block_mask=mask)
    )


def test_lists_whose_mask_looks_at_the_query_cannot_be_moved() -> None:
    q, k, v = features()
    mask, _ = _listed(CAUSAL)
    for given in ({"q_offset": 3}, {"q_offset": torch.tensor([0, 1])}, {"q_offset": 3, "mask_mod": WINDOW}):
        with pytest.raises(UnsupportedError, match=r"q_offset beside a block mask made from lists.*as mask_mod"):
            flex_attention(q, k, v, block_mask=mask, **given)
    of_keys = from_block_indices(
        torch.zeros(1, 1, 3, 1, dtype=torch.int64), q_len=70, kv_len=200, block=(32, 32), mod=masks.padding([100])
    )
    flex_attention(q, k, v, block_mask=of_keys, q_offset=3)
    with pytest.raises(UnsupportedError, match=r"q_offset and mask_mod beside a block mask made from lists"):
        flex_attention(q, k, v, block_mask=of_keys, q_offset=3, mask_mod=WINDOW)


def test_reads_out_of_range_beside_lists_are_found() -> None:
    q, k, v = features()
    short = torch.ones(150, dtype=torch.bool)
    with pytest.raises(IndexError, match="mask_mod reads"):
        flex_attention(q, k, v, block_mask=_listed(None)[0], mask_mod=lambda b, h, i, j: ~short[(j + 3) - 3])
