"""Inputs of the GPU cases: bfloat16 operands from a fixed seed, masks and score modifications in both forms.

Some heads stand for all where outputs are compared (`oracle_gpu`): the first and the last, whose slopes and rows of
tables differ most.
"""

from dataclasses import dataclass

import torch
import torch_flexattn as tfa
from torch import Tensor

from benchmarks.torch_flexattn.plain_mods import CAP, Mask, Score, document_bounds, plain_mask, plain_score, table_of

BATCH, HEADS, LENGTH, WIDTH = 2, 16, 8192, 128

__all__ = ["BATCH", "HEADS", "LENGTH", "WIDTH", "GpuTask", "decode_task", "make_task"]


@dataclass(frozen=True, eq=False, kw_only=True)
class GpuTask:
    """One attention call.

    Args:
        q: ``[B, Hq, L, E]``.
        k, v: ``[B, Hkv, S, E]``.
        grad: gradient of the output; None where there is no backward pass.
        mask: what is visible, from our library; None for all.
        score: score modification, from our library, or None.
        mask_name, score_name, table: the same as plain functions (`plain_mods`).
        wanted: what the backward pass has to give the gradients of; empty for a forward pass.
        batches, heads: which of the outputs are compared.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor | None = None
    mask: tfa.MaskMod | None = None
    score: tfa.ScoreMod | None = None
    mask_name: str = "full"
    score_name: str = ""
    table: Tensor | None = None
    wanted: tuple[Tensor, ...] = ()
    batches: tuple[int, ...]
    heads: tuple[int, ...]

    @property
    def length(self) -> int:
        """S."""
        return self.k.shape[2]

    @property
    def grouped(self) -> bool:
        """Whether query heads share key heads."""
        return self.q.shape[1] != self.k.shape[1]

    @property
    def plain_mask(self) -> Mask | None:
        """The mask as a plain function."""
        return plain_mask(self.mask_name, self.length, self.q.device)

    @property
    def plain_score(self) -> Score | None:
        """The score modification as a plain function."""
        return plain_score(self.score_name, self.table)

    def visible(self) -> Tensor | None:
        """The mask, bool ``[L, S]``; None for all."""
        mask = self.plain_mask
        if mask is None:
            return None
        rows, columns = (torch.arange(n, device=self.q.device) for n in (self.q.shape[2], self.length))
        zero = torch.zeros((), dtype=torch.int32, device=self.q.device)
        return mask(zero, zero, rows[:, None], columns[None])

    def pairs(self) -> int:
        """Visible pairs of all heads."""
        visible = self.visible()
        each = self.q.shape[2] * self.length if visible is None else int(visible.sum())
        return each * self.q.shape[0] * self.q.shape[1]


def _library_mask(name: str, length: int, device: torch.device) -> tfa.MaskMod | None:
    if name == "full":
        return None
    if name == "causal":
        return tfa.masks.causal()
    if name.startswith("window"):
        return tfa.masks.sliding_window(int(name.removeprefix("window")))
    bounds = document_bounds(length, int(name.removeprefix("documents")))
    return tfa.masks.document(torch.tensor(bounds, dtype=torch.int32, device=device), causal=True, total=length)


def _library_score(name: str, table: Tensor | None) -> tfa.ScoreMod | None:
    if name == "softcap":
        return tfa.scores.softcap(CAP)
    if table is None:
        return None
    return tfa.scores.alibi(table) if name == "alibi" else tfa.scores.relative_bias(table)


def _operand(shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=random, device=random.device, dtype=torch.bfloat16)


def make_task(
    mask: str, score: str, width: int, device: torch.device, *, backward: bool = False, of_table: bool = False
) -> GpuTask:
    """The task of a named mask and score modification; ``of_table`` also wants the gradient of its table."""
    random = torch.Generator(device).manual_seed(0)
    q, k, v, grad = (_operand((BATCH, HEADS, LENGTH, width), random) for _ in range(4))
    table = table_of(score, HEADS, LENGTH, device)
    wanted = (q, k, v) if backward else ()
    if of_table:
        assert table is not None
        wanted = (*wanted, table)
    for tensor in wanted:
        tensor.requires_grad_()
    return GpuTask(
        q=q, k=k, v=v, grad=grad if backward else None,
        mask=_library_mask(mask, LENGTH, device), score=_library_score(score, table),
        mask_name=mask, score_name=score, table=table, wanted=wanted,
        batches=tuple(range(BATCH)), heads=(0, HEADS - 1),
    )  # fmt: skip


def decode_task(batch: int, keys: int, device: torch.device, *, heads: int = 32, kv_heads: int = 8) -> GpuTask:
    """One query a sequence over all of its keys, four query heads to a key head."""
    random = torch.Generator(device).manual_seed(0)
    q = _operand((batch, heads, 1, WIDTH), random)
    k, v = (_operand((batch, kv_heads, keys, WIDTH), random) for _ in range(2))
    return GpuTask(q=q, k=k, v=v, batches=tuple(sorted({0, batch - 1})), heads=(0, heads - 1))
