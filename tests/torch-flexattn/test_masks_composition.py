"""Every mask together with others, and inside PyTorch's own FlexAttention."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex
from torch_flexattn import masks
from torch_flexattn.evaluate import evaluator
from torch_flexattn.mods import MaskMod
from torch_flexattn.reference import attention

BATCH, HEADS, TOKENS = 2, 3, 24
ROWS = torch.tensor([[0] * 9 + [1] * 15, [3] * 4 + [0] * 20])
TREE = torch.arange(TOKENS - 4).div(2, rounding_mode="floor") - 1
TURNS = [0, 3, 9, 16, 24]
ALL = {
    "always": masks.always(),
    "axial": masks.axial((4, 6), 0),
    "bigbird": masks.bigbird(TOKENS, 3, n_window=1, n_global=1, n_random=2, heads=HEADS),
    "block_diffusion": masks.block_diffusion(12, 5),
    "block_sparse": masks.block_sparse(torch.eye(4).bool(), 6),
    "causal": masks.causal(),
    "causal, bottom right": masks.causal("bottom_right", q_len=20, kv_len=TOKENS),
    "chunked": masks.chunked(5),
    "dilated": masks.dilated(12, 3),
    "document": masks.document([0, 5, 5, 17, 24]),
    "document, causal": masks.document(doc_ids=ROWS, causal=True),
    "document, interrupted": masks.document(doc_ids=torch.arange(TOKENS) % 5),
    "flamingo": masks.flamingo(ROWS.clamp(max=1), 12),
    "from_dense": masks.from_dense(torch.rand(BATCH, 1, 1, TOKENS, generator=torch.Generator().manual_seed(0)) > 0.4),
    "global_local": masks.global_local(2, 3),
    "image_text": masks.image_text(ROWS - 1),
    "longformer": masks.longformer(4, 1, dilation=torch.tensor([1, 2, 3])),
    "multi_turn_packed": masks.multi_turn_packed([0, 9, 24], TURNS, torch.arange(TOKENS) % 3 == 1),
    "natten1d": masks.natten1d(TOKENS, 5, 2),
    "natten2d": masks.natten2d((4, 6), 3, 1, (1, 2), (False, True)),
    "natten3d": masks.natten3d((2, 3, 4), (2, 3, 3)),
    "never": masks.never(),
    "padding": masks.padding(torch.tensor([20, 7])),
    "prefix_lm": masks.prefix_lm(torch.tensor([3, 9])),
    "shared_prefix": masks.shared_prefix(4, [7, 13]),
    "sliding_tile": masks.sliding_tile((4, 6), (2, 3), (2, 6)),
    "sliding_window": masks.sliding_window(7),
    "streaming": masks.streaming(2, 5),
    "topk_blocks": masks.topk_blocks(torch.tensor([[0, 1], [3, -1], [2, 0], [3, 3]]), 6),
    "transfusion": masks.transfusion(torch.tensor([[2, 8], [15, 20]]), TOKENS),
    "tree": masks.tree(TREE, 4),
}
NAMES = sorted(ALL)


def test_every_factory_is_here():
    assert {name.partition(",")[0] for name in ALL} == set(masks.__all__) - {"tile_order", "with_lengths"}


@pytest.mark.parametrize("name", NAMES)
def test_composition(name, dense):
    mask, other = ALL[name], masks.document(doc_ids=ROWS) | masks.dilated(20, 4)
    a, b = (dense(m, TOKENS, batch=BATCH, heads=HEADS) for m in (mask, other))
    both, either, neither = mask & other, mask | other, ~(mask | other)
    assert isinstance(neither, MaskMod)
    for combined, expected in ((both, a & b), (either, a | b), (neither, ~(a | b)), (~mask, ~a), (other & mask, a & b)):
        assert torch.equal(dense(combined, TOKENS, batch=BATCH, heads=HEADS), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_mask_on_the_gpu(name, dense):
    sizes = (BATCH, HEADS, TOKENS, TOKENS)
    index = torch.meshgrid(*(torch.arange(n, dtype=torch.int32, device="cuda") for n in sizes), indexing="ij")
    seen = ALL[name].to("cuda")(*index)
    assert torch.equal(seen.cpu(), dense(ALL[name], TOKENS, batch=BATCH, heads=HEADS))


@pytest.mark.gpu
def test_factories_take_tensors_on_the_gpu(dense):
    bounds = torch.tensor([0, 5, 17, 24])
    made = [
        lambda x: masks.document(x, causal=True),
        lambda x: masks.document(doc_ids=x),
        lambda x: masks.padding(x[1:3]),
        lambda x: masks.prefix_lm(x[1:3]),
        lambda x: masks.shared_prefix(4, x[1:3]),
        lambda x: masks.image_text(x),
        lambda x: masks.transfusion(x.view(2, 2), TOKENS),
        lambda x: masks.flamingo(x, 2),
        lambda x: masks.tree(x - x - 1, 2),
        lambda x: masks.topk_blocks((x // 8).view(2, 2), 12),
    ]
    for make in made:
        mask = make(bounds.cuda())
        assert all(c.is_cuda for c in mask.captures)
        assert torch.equal(dense(mask.to("cpu"), 4, 24, batch=2), dense(make(bounds), 4, 24, batch=2))


@pytest.mark.parametrize("name", NAMES)
def test_mask_inside_create_mask_of_pytorch(name, dense):
    theirs = torch_flex.create_mask(ALL[name], BATCH, HEADS, TOKENS, TOKENS, device="cpu")
    assert torch.equal(theirs, dense(ALL[name], TOKENS, batch=BATCH, heads=HEADS))


@pytest.mark.parametrize("name", ["block_diffusion", "document, causal", "longformer", "natten2d", "prefix_lm", "tree"])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_mask_inside_flex_attention_of_pytorch(name):
    mask, run = ALL[name], evaluator(ALL[name].program)

    def as_function(b, h, i, j):
        return run({"b": b, "h": h, "q": i, "kv": j}, mask.captures, mask.scalars)[0][0]

    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(BATCH, HEADS, TOKENS, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    blocks = torch_flex.create_block_mask(as_function, BATCH, HEADS, TOKENS, TOKENS, device="cpu", BLOCK_SIZE=8)
    theirs = torch_flex.flex_attention(q, k, v, block_mask=blocks)
    torch.testing.assert_close(attention(q, k, v, mask_mod=mask)[0], theirs)
