"""Outputs, gradients, counts of blocks and tables that were worked out by hand, on a GPU, in float32 (not TF32)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch_flexattn import AuxRequest, create_block_mask, flex_attention, masks, scores
from torch_flexattn.data import load_wikitext_documents

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NONE = -math.inf


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """float32 products as IEEE has them."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    yield
    torch.backends.cuda.matmul.fp32_precision = before


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    values = (
        [[1, 0], [0, 1], [1, 1], [2, -1]],
        [[1, 1], [0, 2], [-1, 0], [1, -1]],
        [[1, 0], [0, 1], [2, 2], [-1, 3]],
    )
    q, k, v = (torch.tensor([[rows]], dtype=torch.float32, device=DEVICE).requires_grad_() for rows in values)
    return q, k, v


def near(found: Tensor, expected: object) -> None:
    wanted = torch.tensor(expected, dtype=torch.float32, device=found.device)
    torch.testing.assert_close(found.detach(), wanted, rtol=1e-5, atol=1e-5)


def attend(**options: object) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Output, lse and largest scores of the only head, and what they were made of."""
    made = inputs()
    out, aux = flex_attention(*made, backend="auto", return_aux=AuxRequest(lse=True, max_scores=True), **options)
    assert aux.lse is not None
    assert aux.max_scores is not None
    return out[0, 0], aux.lse[0, 0], aux.max_scores[0, 0], made


def test_causal() -> None:
    out, lse, largest, (q, _, v) = attend(block_mask=masks.causal())
    near(out, [[1, 0], [0.3302384507, 0.6697615493], [0.5848210501] * 2, [-0.5368028309, 2.3723852589]])
    near(lse, [0.7071067812, 1.8150470888, 2.1655698616, 2.3847633496])
    near(largest, [0.7071067812, 1.4142135624, 1.4142135624, 2.1213203436])
    of_q, of_v = torch.autograd.grad(out.sum(), [q, v])
    near(of_q[0, 0, 2:], [[-0.1697579033] * 2, [-0.0553146664, -0.2261740455]])
    near(of_v[0, 0], [[x] * 2 for x in (1.9887760102, 1.1638815368, 0.0789410376, 0.7684014155)])


def test_slope() -> None:
    slope = torch.tensor([0.5], device=DEVICE)
    out, lse, *_ = attend(block_mask=masks.causal(), score_mod=scores.alibi(slope))
    near(out[3], [-0.8409050082, 2.8135503334])
    near(lse, [0.7071067812, 1.6758554727, 1.5043132374, 2.2007266312])


def test_softcap() -> None:
    out, lse, *_ = attend(block_mask=masks.causal(), score_mod=scores.softcap(2.0))
    near(out[3], [-0.3051332788, 2.0779981624])
    near(lse[3], 1.9986748098)


def test_a_row_that_sees_nothing() -> None:
    out, lse, largest, (q, _, v) = attend(mask_mod=lambda b, h, i, j: i > j)
    near(out[0], [0, 0])
    near(out[3], [1, 0.2900752293])
    assert lse[0].item() == largest[0].item() == NONE
    of_q, of_v = torch.autograd.grad(out.sum(), [q, v])
    near(of_q[0, 0, 0], [0, 0])
    near(of_v[0, 0, 3], [0, 0])


def test_sink() -> None:
    out, *_ = attend(block_mask=masks.causal(), sinks=torch.tensor([0.3], device=DEVICE))
    near(out, [[0.6003939368, 0], [0.2707321175, 0.5490758635], [0.5064227712] * 2, [-0.4774396378, 2.1100312695]])


def test_gradients_of_captured_tensors() -> None:
    bias = torch.zeros(7, device=DEVICE, requires_grad=True)
    factor = torch.ones((), device=DEVICE, requires_grad=True)
    weight = torch.tensor([[1, 2], [3, -1], [0.5, 1], [-2, 1]], device=DEVICE)
    out, *_ = attend(block_mask=masks.causal(), score_mod=lambda s, b, h, i, j: s + bias[i - j + 3])
    (of_bias,) = torch.autograd.grad((out * weight).sum(), [bias])
    near(of_bias, [0, 0, 0, 0.4294156753, 0.8206814343, -0.2327247770, -1.0173723325])
    out, *_ = attend(block_mask=masks.causal(), score_mod=lambda s, b, h, i, j: s * factor)
    (of_factor,) = torch.autograd.grad((out * weight).sum(), [factor])
    near(of_factor, 1.1833869851)


BOUNDS = [0, 300, 428, 1500, 2048]
COUNTS = {
    "causal 2048": (lambda: masks.causal(), 2048, 2048, 16, 120, 2_098_176),
    "causal 8192": (lambda: masks.causal(), 8192, 8192, 64, 2016, 33_558_528),
    "causal 1000": (lambda: masks.causal(), 1000, 1000, 8, 28, 500_500),
    "bottom right": (lambda: masks.causal("bottom_right"), 1024, 2048, 8, 92, 1_573_376),
    "window 256": (lambda: masks.sliding_window(256), 2048, 2048, 30, 15, 491_648),
    "window 1000": (lambda: masks.sliding_window(1000), 4096, 4096, 81, 171, 3_596_500),
    "prefix 300": (lambda: masks.prefix_lm(300), 2048, 2048, 16, 123, 2_143_026),
    "documents": (lambda: masks.document(BOUNDS), 2048, 2048, 47, 69, 1_555_872),
    "causal documents": (lambda: masks.document(BOUNDS, causal=True), 2048, 2048, 38, 28, 778_960),
    "dilated": (lambda: masks.dilated(256, 4), 1024, 1024, 21, 0, 57_472),
    "streaming": (lambda: masks.streaming(4, 256), 4096, 4096, 91, 31, 1_031_290),
    "natten 32×32": (lambda: masks.natten2d((32, 32), (7, 7)), 1024, 1024, 22, 0, 50_176),
    "natten 16×48": (lambda: masks.natten2d((16, 48), (5, 9)), 768, 768, 16, 0, 34_560),
}


@pytest.mark.parametrize("method", ["exact", "analytic"])
@pytest.mark.parametrize("name", COUNTS)
def test_blocks_and_pairs(name: str, method: str) -> None:
    make, q_len, kv_len, partial, full, pairs = COUNTS[name]
    blocks = create_block_mask(make().to(DEVICE), None, None, q_len, kv_len, device=DEVICE, method=method)
    assert blocks.device.type == DEVICE
    assert blocks.nnz_blocks() == (partial, full)
    assert blocks.visible_pairs() == pairs


@pytest.mark.data
def test_documents_of_wikitext(data_root) -> None:
    articles = load_wikitext_documents("test", data_root)
    lines = [[line for line in article.splitlines() if line.strip()] for article in articles]
    tokens = [sum(len(line.split()) + 1 for line in article) for article in lines]  # one more for its end
    bounds = torch.tensor([0, *tokens], device=DEVICE).cumsum(0)
    length = int(bounds[-1])
    blocks = create_block_mask(masks.document(bounds, causal=True), None, None, length, length, device=DEVICE)
    assert length == 244_102
    assert blocks.nnz_blocks() == (5_491, 47_513)
    assert blocks.visible_pairs() == 822_895_127
    assert blocks.sparsity() == pytest.approx(98.544, abs=5e-4)


def test_tables() -> None:
    near(scores.alibi_slopes(8).to(DEVICE), [2.0**-n for n in range(1, 9)])
    near(scores.alibi_slopes(12).to(DEVICE)[8:], [0.7071067812, 0.3535533906, 0.1767766953, 0.0883883476])
    distance = torch.tensor([-200, -128, -64, -16, -8, -7, -1, 0, 1, 7, 8, 16, 64, 128, 200], device=DEVICE)
    one, origin = torch.zeros(1, 1, 1, 1, device=DEVICE), torch.tensor(0, device=DEVICE)
    table = torch.arange(32.0, device=DEVICE)[:, None]
    both = scores.t5_bias(table, bidirectional=True, max_distance=128)
    buckets = both(one[0, 0, 0], origin, origin, (-distance).clamp(min=0), distance.clamp(min=0))
    assert buckets.int().tolist() == [15, 15, 14, 10, 8, 7, 1, 0, 17, 23, 24, 26, 30, 31, 31]
    distance = torch.tensor([-200, -128, -64, -32, -16, -15, -1, 0, 1, 5], device=DEVICE)
    past = scores.t5_bias(table, bidirectional=False, max_distance=128)
    buckets = past(one[0, 0, 0], origin, origin, (-distance).clamp(min=0), distance.clamp(min=0))
    assert buckets.int().tolist() == [31, 31, 26, 21, 16, 15, 1, 0, 0, 0]


def test_windows_trees_and_rounding() -> None:
    where = [torch.arange(n, dtype=torch.int32, device=DEVICE) for n in (1, 1, 24, 24)]
    b, h, q, kv = (x.view([-1 if n == d else 1 for d in range(4)]) for n, x in enumerate(where))
    near_by = masks.natten1d(12, 7).to(DEVICE)(b, h, q[:, :, :12], kv[..., :12])[0, 0]
    for row in range(12):
        first = min(max(row - 3, 0), 5)
        assert near_by[row].nonzero().flatten().tolist() == list(range(first, first + 7))
    parents = [-1, 0, 1, 1, 3, 3, 0]
    tree = masks.tree(parents).to(DEVICE)(b, h, q[:, :, :7], kv[..., :7])[0, 0]
    assert int(tree.sum()) == 19
    assert tree[4].nonzero().flatten().tolist() == [0, 1, 3, 4]
    floor = create_block_mask(
        lambda b, h, i, j: (j - 9) // 4 == (i - 9) // 4, None, None, 24, 24, device=DEVICE, BLOCK_SIZE=16
    )
    assert floor.visible_pairs() == 90
    ones = torch.ones(1, 1, 24, 16, device=DEVICE)
    _, lse = flex_attention(ones * 0, ones, ones, block_mask=floor, return_lse=True)  # the kernel's own rounding
    assert round(float(lse.exp().sum())) == 90
