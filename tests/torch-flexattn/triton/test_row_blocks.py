"""Blocks of keys found on the device against those found element by element."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_flexattn import mask_mod, masks
from torch_flexattn.kernels.triton.row_blocks import row_blocks
from torch_flexattn.mods import MaskMod

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WINDOWS = torch.tensor([150, 300, 20])

CASES: dict[str, dict[str, Any]] = {
    "causal": {"mask": masks.causal(), "q_offset": 500},
    "causal, up to the last key of a block": {"mask": masks.causal(), "q_offset": 509},
    "window": {"mask": masks.sliding_window(200), "q_offset": torch.tensor([0, 700])},
    "of each head": {"mask": mask_mod(lambda b, h, i, j: i - j < WINDOWS[h]), "q_offset": 600},
    "of each batch entry": {"mask": mask_mod(lambda b, h, i, j: j < 200 * b + 3)},
    "of both": {"mask": mask_mod(lambda b, h, i, j: (j // 128 + b + h) % 3 != 0)},
    "of the key alone": {"mask": mask_mod(lambda b, h, i, j: (j // 128) % 2 == 0)},
    "of the query alone": {"mask": mask_mod(lambda b, h, i, j: i > 1)},
    "nothing": {"mask": masks.never()},
    "everything": {"mask": masks.always()},
    "lengths": {"mask": masks.always(), "kv_lens": torch.tensor([0, 300])},
    "lengths of slots": {
        "mask": masks.causal(),
        "kv_lens": torch.tensor([900, 30, 512]),
        "slots": torch.tensor([2, 1]),
        "offset": "last",
    },
}


def expected(mask: MaskMod, shape: tuple[int, ...], first: list[int], lens: list[int]) -> list[list[tuple[int, int]]]:
    """Runs of each batch entry and head, from every position."""
    batches, heads, queries, _ = shape
    found = []
    for b in range(batches):
        for h in range(heads):
            i, j = torch.arange(queries)[:, None] + first[b], torch.arange(lens[b])
            seen = mask(torch.tensor(b), torch.tensor(h), i, j).expand(queries, lens[b])
            kinds = [int(part.any()) + int(part.all()) for part in seen.split(128, 1)] if lens[b] else []
            runs: list[tuple[int, int]] = []
            for column, kind in enumerate(kinds):
                if kind and column and kinds[column - 1] == kind:
                    runs[-1] = (runs[-1][0], (column + 1) << 1 | (kind == 2))
                elif kind:
                    runs.append((column, (column + 1) << 1 | (kind == 2)))
            found.append(runs)
    return found


@pytest.mark.parametrize("name", CASES)
def test_as_element_by_element(name: str) -> None:
    case = dict(CASES[name])
    mask, shape = case.pop("mask"), (2, 3, 3, 700)
    lens, first = case.get("kv_lens"), case.get("q_offset", 0)
    if "slots" in case:
        lens = lens[case["slots"]]
    if case.get("offset") == "last":
        lens = lens.clamp(max=700)
        first = lens - 3
    elif isinstance(first, torch.Tensor):
        case["offset"] = "each"
    firsts = first.tolist() if isinstance(first, torch.Tensor) else [first] * 2
    lengths = [700] * 2 if lens is None else lens.tolist()
    there = {key: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for key, value in case.items()}
    found = row_blocks(mask.to(DEVICE), shape, torch.device(DEVICE), **there)
    per_plane = [
        [tuple(run) for run in found.runs[begin:end].tolist()]
        for begin, end in zip(found.begins.tolist(), found.ends.tolist())
    ]
    planes = [
        per_plane[(b if found.batches > 1 else 0) * found.heads + (h if found.heads > 1 else 0)]
        for b in range(2)
        for h in range(3)
    ]
    assert planes == expected(mask, shape, firsts, lengths)


def test_only_as_many_planes_as_the_mask_tells_apart() -> None:
    device = torch.device(DEVICE)
    of_head = mask_mod(lambda b, h, i, j: j > h)
    found = row_blocks(masks.causal(), (2, 3, 1, 40), device)
    assert (found.batches, found.heads) == (1, 1)
    found = row_blocks(of_head, (2, 3, 1, 40), device)
    assert (found.batches, found.heads) == (1, 3)
    found = row_blocks(masks.causal(), (2, 3, 1, 40), device, kv_lens=torch.tensor([1, 2], device=device))
    assert (found.batches, found.heads) == (2, 1)


def test_more_columns_than_are_looked_at_at_a_time() -> None:
    """Runs go on from one stretch of columns to the next."""
    from torch_flexattn.kernels.triton.row_runs_kernel import row_runs

    generator = torch.Generator().manual_seed(0)
    kinds = torch.randint(0, 3, (2, 50), generator=generator, dtype=torch.int8)
    kinds[:, 14:18] = 2
    begins, ends = (torch.empty(2, dtype=torch.int32, device=DEVICE) for _ in range(2))
    runs = torch.full((100, 2), -1, dtype=torch.int32, device=DEVICE)
    row_runs[2,](kinds.to(DEVICE), begins, ends, runs, 50, WIDTH=16)
    for row in range(2):
        again = torch.zeros(50, dtype=torch.int8)
        for begin, code in runs[int(begins[row]) : int(ends[row])].tolist():
            assert not again[begin : code >> 1].any()
            again[begin : code >> 1] = 1 + (code & 1)
        assert torch.equal(again, kinds[row])
        changes = torch.cat([kinds[row, :1] >= 0, kinds[row, 1:] != kinds[row, :-1]])
        assert int(ends[row]) - int(begins[row]) == int((changes & (kinds[row] > 0)).sum())
