"""Graphs of 2³¹ entries and more carry int64 pointers: here small ones do, and every result must have the same bits."""

from __future__ import annotations

import pytest
import torch
import torch_tcgnn as tcg
from torch import Tensor
from torch_tcgnn import adjacency as adjacency_module
from torch_tcgnn import bitblock
from torch_tcgnn.adjacency import Adjacency
from torch_tcgnn.kernels.cpu import chunk
from torch_tcgnn.kernels.cuda import bitblock_sddmm, bitblock_spmm, csr_spmm, nvrtc
from torch_tcgnn.row_plan import plan_rows

NODES, EDGES, HEADS, WIDTH = 45, 700, 2, 5
POINTERS = ("rowptr", "edge")
BLOCK_POINTERS = ("block_slot", "slot_entry", "slot_ptr")


def edge_list() -> Tensor:
    """Directed, unsorted, duplicates, empty rows, one row longer than a warp takes."""
    rng = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, NODES - 4, (2, EDGES), generator=rng)
    edge_index[1, :300] = 7
    return edge_index


def build(reorder: str = "none", device: str = "cpu", path: str = "auto") -> tcg.TCGraph:
    g = tcg.TCGraph.from_edge_index(edge_list().to(device), NODES, reorder=reorder, path=path)
    _ = g.blocks, g.t().blocks, g.prepared(), g.t().prepared()
    return g


@pytest.fixture
def wide(monkeypatch):
    """Builds a graph as if its indices did not fit in 31 bits."""
    for module in (adjacency_module, bitblock):
        monkeypatch.setattr(module, "integer_below", lambda limit: torch.int64)
    monkeypatch.setattr(chunk, "INT32_LIMIT", 0)
    return build


@pytest.mark.parametrize("reorder", ["none", "degree"])
def test_both_builds_hold_the_same_numbers(wide, monkeypatch, reorder):
    graphs = [wide(reorder)]
    monkeypatch.undo()
    graphs.append(build(reorder))
    for side in (lambda g: g, lambda g: g.t()):
        large, small = (side(g) for g in graphs)
        for a, b, names in ((large.adjacency, small.adjacency, POINTERS), (large.blocks, small.blocks, BLOCK_POINTERS)):
            for name, tensor in vars(b).items():
                if not isinstance(tensor, Tensor):
                    continue
                expected = torch.int64 if name in names else tensor.dtype
                assert getattr(a, name).dtype == expected, name
                assert torch.equal(getattr(a, name), tensor.to(expected)), name
        for a, b in zip(plan_rows(large.adjacency.rowptr).tensors(), plan_rows(small.adjacency.rowptr).tensors()):
            assert (a.dtype, b.dtype) == (torch.int64, torch.int32)
            assert torch.equal(a, b.long())
    assert torch.equal(graphs[0].to_edge_index(), edge_list())


class Operands:
    """Leaves for every operator, the same on every device."""

    def __init__(self, device: str) -> None:
        shapes = {
            "x": (NODES, HEADS, WIDTH), "weight": (EDGES, HEADS), "flat": (NODES, WIDTH), "one": (EDGES,),
            "att": (HEADS, WIDTH), "per_edge": (EDGES, HEADS, WIDTH),
        }  # fmt: skip
        rng = torch.Generator().manual_seed(0)
        made = {name: torch.randn(shape, generator=rng).to(device).requires_grad_() for name, shape in shapes.items()}
        self.leaves = list(made.values())
        self.x, self.weight, self.flat, self.one, self.att, self.per_edge = self.leaves


REDUCES = ("sum", "mean", "max", "min")
CALLS = {
    **{f"spmm {r}": lambda g, o, r=r: tcg.spmm(g, o.flat, o.one, reduce=r) for r in REDUCES},
    "spmm, unweighted": lambda g, o: tcg.spmm(g, o.flat),
    "spmm, heads": lambda g, o: tcg.spmm(g, o.x, o.weight),
    "sddmm": lambda g, o: tcg.sddmm(g, o.flat, o.flat),
    "sddmm, heads": lambda g, o: tcg.sddmm(g, o.x, o.x),
    "edge_softmax": lambda g, o: tcg.edge_softmax(g, o.weight),
    **{f"segment {r}": lambda g, o, r=r: tcg.segment(g, o.weight, r) for r in REDUCES},
    "gather_src": lambda g, o: tcg.gather_src(g, o.x),
    "gather_dst": lambda g, o: tcg.gather_dst(g, o.x),
    "gat": lambda g, o: tcg.gat_attention(g, o.x, o.x.sum(-1), o.x.mean(-1), edge_logit=o.weight),
    "gatv2": lambda g, o: tcg.gatv2_attention(g, o.x, o.x * 2, o.att, edge=o.per_edge),
    "dot": lambda g, o: tcg.dot_attention(g, o.x, o.x * 2, o.x * 3, edge=o.per_edge),
    "attention weights": lambda g, o: tcg.gat_attention(g, o.x, o.x.sum(-1), o.x.mean(-1), return_attention=True)[1],
}


def forward_and_backward(g: tcg.TCGraph, name: str) -> list[Tensor]:
    operands = Operands(str(g.device))
    out = CALLS[name](g, operands)
    grads = torch.autograd.grad(out.square().sum(), operands.leaves, allow_unused=True)
    return [out.detach(), *(grad for grad in grads if grad is not None)]


@pytest.mark.parametrize("chunk_elements", [1 << 18, 64], ids=["one chunk", "many chunks"])
@pytest.mark.parametrize("name", CALLS)
def test_every_kernel_of_the_cpu_gives_the_same_bits(wide, monkeypatch, name, chunk_elements):
    monkeypatch.setattr(chunk, "CHUNK_ELEMENTS", chunk_elements)
    g = wide()
    assert g.adjacency.rowptr.dtype == torch.int64
    found = forward_and_backward(g, name)
    monkeypatch.undo()
    monkeypatch.setattr(chunk, "CHUNK_ELEMENTS", chunk_elements)
    small = build()
    assert small.adjacency.rowptr.dtype == torch.int32
    for got, expected in zip(found, forward_and_backward(small, name), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("path", ["auto", "cuda", "tc"])
@pytest.mark.parametrize("name", CALLS)
def test_every_kernel_of_the_gpu_gives_the_same_bits(wide, monkeypatch, name, path):
    """In deterministic mode: PyTorch's part of the maximum's gradient has no fixed order otherwise."""
    torch.use_deterministic_algorithms(True)
    try:
        g = wide(device="cuda", path=path)
        assert g.adjacency.rowptr.dtype == torch.int64
        found = forward_and_backward(g, name)
        monkeypatch.undo()
        expected = forward_and_backward(build(device="cuda", path=path), name)
    finally:
        torch.use_deterministic_algorithms(False)
    for got, want in zip(found, expected, strict=True):
        assert torch.equal(got, want)


def test_pointers_are_wide_before_a_step_past_the_end_overflows():
    """Kernels add a step before they compare with a row's end, in the type of the pointers."""
    farthest = 8 * 32 * 2  # eight entries in flight, lanes side by side, fetched a trip ahead
    assert adjacency_module.pointer_type(2**31 - 1) == torch.int64
    assert adjacency_module.pointer_type(2**31 - farthest) == torch.int64
    assert adjacency_module.pointer_type(2**31 - 2_000) == torch.int32
    assert tcg.TCGraph.from_edge_index(edge_list(), NODES).adjacency.rowptr.dtype == torch.int32


def test_a_chunk_that_ends_beyond_int32_ends_with_the_rows():
    rowptr = torch.tensor([0, 3, 4, 9], dtype=torch.int32)
    assert chunk.row_chunks(rowptr, 2**31) == [(0, 3)]


def test_a_copy_and_the_operand_list_keep_the_width(wide):
    g = wide()
    assert tcg.TCGraph.from_dict(g.to_dict()).adjacency.rowptr.dtype == torch.int64
    unpacked = Adjacency.unpack(g.operands())
    assert (unpacked.rowptr.dtype, unpacked.edge.dtype) == (torch.int64, torch.int64)
    assert g.with_weight(None).t().adjacency.edge.dtype == torch.int64


LONG = {"csr_spmm.cu": "Index", "bitblock_spmm.cu": "SlotIndex", "bitblock_sddmm.cu": "SlotIndex"}


def configurations(source: str) -> list:
    int64 = torch.int64
    if source == "csr_spmm.cu":
        return [csr_spmm.configure(torch.float16, 40, 16, w, int64, torch.int32) for w in (False, True)]
    if source == "bitblock_spmm.cu":
        return [bitblock_spmm.configure(torch.float16, 40, True, w, "ieee", True) for w in (False, True)]
    return [bitblock_sddmm.configure(torch.float16, 40, True, "ieee", True)]


@pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))
@pytest.mark.parametrize("source", LONG)
def test_cuda_sources_compile_with_wide_pointers(source, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_TCGNN_CACHE", str(tmp_path))
    for config in configurations(source):
        assert (LONG[source], "long long") in config.macros()
        assert nvrtc.compile_cubin(source, config.macros(), "sm_90")[:4] == b"\x7fELF"
