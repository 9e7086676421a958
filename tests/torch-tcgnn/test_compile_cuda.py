"""CUDA C++ of sums and translation, compiled by NVRTC for sm_80 and sm_90 in every configuration; no GPU is needed."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch_tcgnn.kernels.cuda import bitblock_spmm, csr_spmm, nvrtc, translate

pytestmark = pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))
HALVES = (torch.float16, torch.bfloat16)
ARCHES = ("sm_80", "sm_90")
BOTH = (False, True)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_TCGNN_CACHE", str(tmp_path))


def block_configurations():
    for dtype, wide_out in [(torch.float32, False), *itertools.product(HALVES, BOTH)]:
        precisions = ("ieee", "tf32") if dtype == torch.float32 else ("ieee",)
        for width, *how in itertools.product((32, 128), BOTH, BOTH, precisions):
            wide_index = width == 32
            yield bitblock_spmm.configure(dtype, width, *how, wide_index, wide_out)


def row_configurations():
    int32, int64 = torch.int32, torch.int64
    kinds = [(torch.float32, False), (torch.float64, False), *itertools.product(HALVES, BOTH)]
    for (dtype, wide_out), weighted in itertools.product(kinds, BOTH):
        widths, indices = ((7, 7), (8, 7), (8, 8), (34, 34)), ((int32, int32), (int64, int64))
        for (width, summed), index, long in itertools.product(widths, indices, BOTH):
            tiling = csr_spmm.rule(dtype, width, few=long, mean=64 * long, weighted=weighted)
            yield csr_spmm.configure(dtype, width, 16, weighted, *index, wide_out, tiling, summed)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("dtype", HALVES)
def test_float32_results_of_halves_compile(arch, dtype):
    for wide_out in BOTH:
        blocks = bitblock_spmm.configure(dtype, 128, False, True, "ieee", False, wide_out)
        rows = csr_spmm.configure(dtype, 128, 16, True, torch.int32, torch.int32, wide_out)
        assert nvrtc.compile_cubin("bitblock_spmm.cu", blocks.macros(), arch)
        assert nvrtc.compile_cubin("csr_spmm.cu", rows.macros(), arch)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    "source, configurations",
    [("bitblock_spmm.cu", block_configurations), ("csr_spmm.cu", row_configurations)],
)
def test_every_configuration_compiles(arch, source, configurations):
    found = set(configurations())
    assert len(found) >= 48
    for config in found:
        assert nvrtc.compile_cubin(source, config.macros(), arch)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_translation_compiles(arch, index):
    assert nvrtc.compile_cubin("translate.cu", translate.macros(index), arch)


def test_the_type_of_results_makes_another_program():
    codes = set()
    for wide_out in BOTH:
        config = csr_spmm.configure(torch.float16, 64, 16, False, torch.int32, torch.int32, wide_out)
        codes.add(nvrtc.compile_cubin("csr_spmm.cu", config.macros(), "sm_90"))
    assert len(codes) == 2
