"""Inputs of the cases, and the masks and score modifications by name.

Documents are cut from a fixed seed: lengths between 1 and 999, about 500 on average.
"""

from dataclasses import dataclass

import torch
import torch_flexattn as tfa
from torch import Tensor

BATCH, HEADS, WIDTH = 1, 8, 64

__all__ = ["BATCH", "HEADS", "WIDTH", "Task", "make_task", "mask_of", "score_of"]


@dataclass(frozen=True)
class Task:
    """One attention call.

    Args:
        q, k, v: ``[1, 8, S, 64]``.
        grad: gradient of the output.
        mask: what is visible.
        score: score modification, or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor
    mask: tfa.MaskMod
    score: tfa.ScoreMod | None

    @property
    def length(self) -> int:
        """S."""
        return self.q.shape[2]


def documents(length: int, device: torch.device) -> Tensor:
    """Where documents begin, and the end."""
    lengths = torch.randint(1, 1000, (length,), generator=torch.Generator().manual_seed(0)).cumsum(0)
    inner = lengths[lengths < length]
    return torch.cat([torch.tensor([0]), inner, torch.tensor([length])]).to(torch.int32).to(device)


def mask_of(name: str, length: int, device: torch.device) -> tfa.MaskMod:
    """A mask by name."""
    if name == "full":
        return tfa.masks.always()
    if name == "causal":
        return tfa.masks.causal()
    if name.startswith("window"):
        return tfa.masks.sliding_window(int(name.removeprefix("window")))
    if name == "documents":
        return tfa.masks.causal() & tfa.masks.document(documents(length, device))
    if name == "prefix":
        return tfa.masks.prefix_lm(length // 8)
    raise ValueError(f"mask {name!r} is not known")


def score_of(name: str, device: torch.device) -> tfa.ScoreMod | None:
    """A score modification by name; "" is none."""
    if not name:
        return None
    if name == "alibi":
        return tfa.scores.alibi(tfa.scores.alibi_slopes(HEADS).to(device))
    if name == "softcap":
        return tfa.scores.softcap(20.0)
    raise ValueError(f"score modification {name!r} is not known")


def make_task(mask: str, score: str, length: int, device: torch.device) -> Task:
    """The task of a named mask and score modification, with float32 operands from a fixed seed."""
    random = torch.Generator(device).manual_seed(0)
    q, k, v, grad = (torch.randn(BATCH, HEADS, length, WIDTH, generator=random, device=device) for _ in range(4))
    return Task(q, k, v, grad, mask_of(mask, length, device), score_of(score, device))
