"""The op that writes to pages: where tokens come to lie, and in compiled code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

SIZE, HEADS = 16, 2
TABLE = [[6, 1, 0], [3, 5, 2]]
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
    ),
]


def arguments(tokens: int, device: str) -> list[Tensor]:
    """Two sequences of 19 and 33 tokens, the last ``tokens`` of which are new; the second is named first."""
    draw = torch.Generator().manual_seed(0)
    k, v = (torch.randn(2, HEADS, tokens, width, generator=draw) for width in (8, 4))
    pages = [torch.zeros(7, SIZE, HEADS, width) for width in (8, 4)]
    numbers = [torch.tensor(n, dtype=torch.int32) for n in (TABLE, [19, 33], [1, 0])]
    return [t.to(device) for t in (*pages, *numbers, k, v)]


def written(given: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The pages, one token after the other."""
    *pages, _, lengths, slots, k, v = (t.cpu().clone() for t in given)
    for entry, slot in enumerate(slots.tolist()):
        for number in range(k.shape[2]):
            place = int(lengths[slot]) - k.shape[2] + number
            for pool, new in zip(pages, (k, v)):
                pool[TABLE[slot][place // SIZE], place % SIZE] = new[entry, :, number]
    return pages[0], pages[1]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tokens", [0, 1, 19])
def test_tokens_lie_in_the_pages_of_their_sequences(tokens: int, device: str) -> None:
    given = arguments(tokens, device)
    expected = written(given)
    assert torch.ops.torch_flexattn.paged_append(*given, None) is None
    for pages, right in zip(given, expected):
        assert torch.equal(pages.cpu(), right)
        assert int(right.any(-1).sum()) == 2 * HEADS * tokens


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_code_writes_before_it_reads(device: str) -> None:
    def step(*given: Tensor) -> Tensor:
        before = given[0].sum()
        torch.ops.torch_flexattn.paged_append(*given, None)
        return torch.stack([before, given[0].sum()])

    given = arguments(3, device)
    expected = written(given)
    sums = torch.compile(step, fullgraph=True, backend="aot_eager")(*given)
    assert torch.equal(given[0].cpu(), expected[0])
    torch.testing.assert_close(sums.cpu(), torch.stack([torch.tensor(0.0), expected[0].sum()]))
