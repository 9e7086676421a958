"""Copies of features whose rows start aligned: shapes, values, and who gets one."""

from __future__ import annotations

import pytest
import torch
import torch_tcgnn as tcg
from torch_tcgnn.kernels.cuda import bitblock_spmm, csr_spmm, nvrtc, padding

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WIDTHS = (1, 2, 3, 7, 8, 17, 41, 121, 128)


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("width", WIDTHS)
def test_stored_rows_start_at_sectors(size, width):
    stored = padding.stored_width(width, size)
    assert 0 <= (stored - width) * size < 32
    assert stored * size % 16 == 0
    assert stored * size % 32 == 0 or stored * size == 16 or stored == width


def test_what_is_aligned_is_neither_copied_nor_worth_it():
    x = torch.ones(5, 8)
    assert padding.padded(x) is x
    assert not padding.pays(x, 10**6)


def test_a_copy_pays_where_rows_are_gathered_several_times():
    x = torch.ones(100, 41)
    assert padding.pays(x, 100 * padding.GATHERS)
    assert not padding.pays(x, 100 * padding.GATHERS - 1)


@pytest.mark.parametrize(
    "x, worth",
    [
        (torch.ones(6, 42), False),  # starts at multiples of eight bytes
        (torch.ones(6, 42).half(), True),
        (torch.ones(6, 9)[:, 1:], True),
        (torch.ones(49)[1:].view(6, 8), True),
        (torch.ones(8, 6).t(), True),
        (torch.ones(1, 8).expand(6, 8), True),
    ],
)
def test_where_rows_start_decides(x, worth):
    assert not padding.starts_aligned(x)
    assert padding.pays(x, 10**6) is worth


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_over_a_copy_read_16_bytes_and_write_a_tail(dtype):
    index = torch.int32, torch.int32
    alone = csr_spmm.configure(dtype, 41, 16, False, *index)
    stored = padding.stored_width(41, dtype.itemsize)
    copied = csr_spmm.configure(dtype, stored, 16, False, *index, summed=41)
    assert alone.vec == 1
    assert not alone.tail
    assert copied.vec * dtype.itemsize == 16
    assert copied.tail
    assert not csr_spmm.configure(dtype, 48, 16, False, *index, summed=48).tail


def test_tensor_cores_refuse_rows_that_start_anywhere(monkeypatch):
    monkeypatch.setattr(bitblock_spmm.nvrtc, "launcher", lambda: None)
    g = tcg.TCGraph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), 2)
    blocks = g.views.on(g.adjacency, ("tc",), torch.float32)
    with pytest.raises(AssertionError):
        bitblock_spmm.multiply(blocks, torch.ones(2, 7), None, "ieee", torch.empty(2, 7))


@pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))
@pytest.mark.parametrize("size", padding.ELEMENTS)
def test_the_copy_compiles(size, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_TCGNN_CACHE", str(tmp_path))
    assert nvrtc.compile_cubin("pad_rows.cu", padding.macros(size, 32), "sm_80")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("heads", [(), (3,)])
def test_rows_start_aligned_and_keep_their_values(dtype, width, heads, guarded):
    for rows in (1, 5, 1031):
        x = torch.randn(rows, *heads, width, device="cuda").to(dtype)
        wide = padding.padded(x)
        assert padding.starts_aligned(wide)
        assert torch.equal(wide[..., :width], x)
        assert not wide[..., width:].any()
    if wide is not x:
        guarded()


@pytest.mark.gpu
def test_views_are_copied_as_they_read():
    x = torch.randn(6, 9, device="cuda")
    for view in (x[:, 1:], x[:, :7], x.t(), x.view(-1)[1:49].view(6, 8), x[:1].expand(6, 9), x.view(6, 3, 3)):
        wide = padding.padded(view)
        assert padding.starts_aligned(wide)
        assert torch.equal(wide[..., : view.shape[-1]], view)
