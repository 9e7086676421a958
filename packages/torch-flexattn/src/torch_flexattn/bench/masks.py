"""Who finds the blocks of a mask: this package, and PyTorch's create_block_mask, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as theirs

from ..build import create_block_mask
from .memory import check_room
from .suites import Build
from .variants import variant

Builder = Callable[[Build, torch.device], Callable[[], Any]]


def ours(case: Build, device: torch.device) -> Callable[[], Any]:
    """Of this package."""
    mask = variant(case.mod, 1, case.length, device, torch.bfloat16, case.documents).mask
    assert mask is not None
    return lambda: create_block_mask(mask, None, None, case.length, case.length, device=device)


def torch_flex(case: Build, device: torch.device, compiled: bool) -> Callable[[], Any]:
    """PyTorch's."""
    mask = variant(case.mod, 1, case.length, device, torch.bfloat16, case.documents).plain_mask
    assert mask is not None
    make = theirs.create_block_mask
    if compiled:
        make = torch.compile(make, dynamic=False)
    else:
        check_room("a mask of all positions", case.length**2, device)
    return lambda: make(mask, None, None, case.length, case.length, device=device)


PEERS: dict[str, Builder] = {
    "torch_flex": partial(torch_flex, compiled=True),
    "torch_flex_eager": partial(torch_flex, compiled=False),
}


def blocks_of(found: Any) -> list[Tensor]:
    """Which blocks are visible, as numbers."""
    return [found.to_dense().to(torch.float32)]
