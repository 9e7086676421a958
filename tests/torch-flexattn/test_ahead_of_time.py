"""Attention in models that AOTInductor compiles, and that run without a Python function of theirs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch_flexattn import PagedKVCache, create_block_mask, flex_attention, masks, score_mod
from torch_flexattn.call import Call, given, pack, unpack

TABLE = torch.randn(2, 63, generator=torch.Generator().manual_seed(0))
RELATIVE = score_mod(lambda s, b, h, i, j: s + TABLE[h, i - j + 31])
BLOCKS = create_block_mask(lambda b, h, i, j: i >= j, None, None, 32, 32, BLOCK_SIZE=16)


def features(length: int) -> Tensor:
    return torch.randn(1, 2, length, 8, generator=torch.Generator().manual_seed(length))


class Calls(nn.Module):
    """Calls that carry no list of tensors, and such as carry one of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(2, generator=torch.Generator().manual_seed(1)))
        self.cache = PagedKVCache(4, 16, 2, 8, max_seqs=2)
        self.seq = self.cache.allocate()
        self.cache.append([self.seq], features(20), features(20))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, kv_lens: Tensor) -> tuple[Tensor, ...]:
        return (
            flex_attention(q, k, v),
            flex_attention(q, k, v, mask_mod=masks.causal() & masks.sliding_window(5), sinks=self.sinks),
            flex_attention(q, k, v, RELATIVE, block_mask=BLOCKS),
            *flex_attention(q, k, v, kv_lens=kv_lens, return_lse=True),
            self.cache.attend(q[:, :, :3], [self.seq], mask_mod=masks.sliding_window(4)),
        )


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_compiled_packages_give_what_the_model_gives(tmp_path: Path) -> None:
    model, inputs = Calls(), (features(32), features(32), features(32), torch.tensor([9]))
    with torch.no_grad():
        exported = torch.export.export(model, inputs)
        path = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "attention.pt2"))
        loaded = torch._inductor.aoti_load_package(path)
        others = (*(2 * features(32) for _ in range(3)), torch.tensor([31]))
        expected = model(*others)
        torch.testing.assert_close(tuple(loaded(*others)), expected)
    with torch.inference_mode():
        torch.testing.assert_close(tuple(loaded(*others)), expected)


def test_a_packed_call_may_have_none_for_an_empty_list() -> None:
    """What its runtime hands over."""
    q = features(16)
    packed = pack(Call(None, None, 0.5))
    assert (packed.runs, packed.captures, packed.layout) == ([], [], [])
    found = given(packed._replace(runs=None, captures=None, layout=None))
    assert (found.runs, found.captures, found.layout) == ([], [], [])
    call = unpack(q, q, *found)
    assert call.mask is None
    assert call.captures == ()
