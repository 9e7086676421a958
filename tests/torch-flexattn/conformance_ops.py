"""Sample calls of the ops of torch-flexattn, for the conformance suite; `conformance_cases.py` hands them over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch_flexattn import BlockMask, build, masks, mods, reference, scores
from torch_flexattn.call import Call, pack

from tests.conformance.cases import OpCase

from .conformance_paged import paged_append, paged_forward
from .conformance_selected import selected_ops

FP8 = torch.float8_e4m3fn
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2, FP8: 2e-2}
BLOCK = (16, 16)


@dataclass(frozen=True)
class Sample:
    """Sizes and options of one call; its tensors are drawn from a fixed seed."""

    label: str
    q: tuple[int, int, int, int]  # batch, query heads, queries, features
    k: tuple[int, int, int, int]  # batch, key heads, keys, features of values
    mask: Callable[[], mods.MaskMod] | None = None
    score: Callable[[], mods.ScoreMod] | None = None
    sinks: bool = False
    q_offset: int | tuple[int, ...] = 0
    kv_lens: tuple[int, ...] | None = None
    want_max: bool = False
    dtype: torch.dtype = torch.float32
    strided: bool = False
    blocks: bool = True  # the blocks of the mask are handed over; else the op finds them
    differentiable: bool = False
    descales: bool = False
    modes: bool = False  # deterministic and batch-invariant

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Query, key, value and sinks."""
        rng = torch.Generator().manual_seed(0)

        def draw(*shape: int) -> Tensor:
            if self.strided and len(shape) == 4:  # heads behind the length, as a projection leaves them
                return draw(*(shape[d] for d in (0, 2, 1)), shape[3], 1)[..., 0].transpose(1, 2)
            return torch.randn(shape, generator=rng, dtype=torch.float64).to(self.dtype)

        keys, values = (*self.k[:3], self.q[3]), self.k
        return draw(*self.q), draw(*keys), draw(*values), draw(self.q[1]) if self.sinks else None

    def call(self) -> Call:
        """What the packed arguments say."""
        offset = self.q_offset if isinstance(self.q_offset, int) else torch.tensor(self.q_offset)
        return Call(
            mask=None if self.mask is None else self._blocks(self.mask(), offset) if self.blocks else self.mask(),
            score=None if self.score is None else self.score(),
            scale=0.6,
            q_offset=offset,
            kv_lens=None if self.kv_lens is None else torch.tensor(self.kv_lens),
            want_max=self.want_max,
            descales=torch.rand(2, *self.q[:2]) + 0.5 if self.descales else None,
            deterministic=self.modes,
            batch_invariant=self.modes,
        )

    def _blocks(self, mod: mods.MaskMod, offset: int | Tensor) -> BlockMask:
        """Blocks as kernels read them: of queries numbered from ``offset`` on, with the mask itself as ``mod``."""

        def shifted(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return mod(b, h, q_idx + (offset if isinstance(offset, int) else offset[b]), kv_idx)

        found = build.create_block_mask(shifted, *self.q[:3], self.k[2], BLOCK_SIZE=BLOCK)
        return replace(found, mod=mod)


def ops() -> dict[str, list[OpCase]]:
    """Sample calls of every op."""
    samples = _samples()
    pairs = [_pair(sample) for sample in samples]
    return {
        "forward": [forward for forward, _ in pairs],
        "backward": [backward for sample, (_, backward) in zip(samples, pairs) if sample.dtype != FP8],
        "merge": _merges(),
        "paged_append": paged_append(),
        "paged_forward": paged_forward(TOLERANCE),
        **selected_ops(TOLERANCE),
    }


def _merges() -> list[OpCase]:
    def case(label: str, *shape: int, dtype: torch.dtype = torch.float32, hidden: int = 0) -> OpCase:
        rng = torch.Generator().manual_seed(3)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        one, two = (torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype) for _ in range(2))
        lse, other = (torch.randn(shape[:-1], generator=rng, dtype=torch.float64).to(wide) for _ in range(2))
        lse.flatten()[:hidden] = float("-inf")
        if label.startswith("strided"):
            one, lse = one.transpose(1, 2), lse.transpose(1, 2)
            two, other = two.transpose(1, 2), other.transpose(1, 2)
        at = (0, 1, 2, 3) if dtype == torch.float32 and not hidden else ()
        return OpCase(f"{label}, {dtype}", (one, lse, two, other), _merged, TOLERANCE[dtype], TOLERANCE[dtype], at)

    return [
        case("parts", 1, 2, 3, 5),
        case("strided", 2, 3, 5, 2),
        case("one that saw nothing", 7, 3, hidden=2),
        case("no rows", 2, 0, 3),
        case("parts", 2, 5, 3, dtype=torch.float64),
        case("parts", 2, 5, 3, dtype=torch.bfloat16, hidden=1),
        case("parts", 2, 5, 3, dtype=torch.float16),
    ]


def _merged(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    return reference.merge_attention([(out, lse), (other, other_lse)])


def _samples() -> list[Sample]:
    def packed() -> mods.MaskMod:
        return masks.causal() & masks.document([0, 5, 20, 33])

    def bias() -> mods.ScoreMod:
        rng = torch.Generator().manual_seed(1)
        return scores.relative_bias(torch.randn(2, 2 * 33 - 1, generator=rng))

    def strictly_before() -> mods.MaskMod:
        return mods.mask_mod(lambda b, h, q_idx, kv_idx: kv_idx < q_idx)

    small, grouped = (1, 1, 33, 2), (1, 2, 33, 2)
    return [
        Sample("everything", (2, 2, 5, 3), (2, 2, 7, 3), differentiable=True),
        Sample("packed documents", small, small, packed, differentiable=True),
        Sample("softcap", (1, 2, 7, 3), (1, 2, 7, 2), masks.causal, lambda: scores.softcap(2.0), differentiable=True),
        Sample("grouped heads, sinks", (1, 4, 5, 3), (1, 2, 7, 5), sinks=True, differentiable=True),
        Sample("strided", (1, 2, 17, 2), (1, 2, 17, 2), masks.causal, strided=True, differentiable=True),
        Sample("mask without blocks", (1, 2, 31, 2), grouped, packed, bias, q_offset=2, blocks=False),
        Sample("bias table", grouped, grouped, packed, bias),
        Sample("first query sees nothing", grouped, grouped, strictly_before, want_max=True),
        Sample("modes", (2, 1, 3, 2), (2, 1, 19, 2), packed, q_offset=(4, 15), kv_lens=(5, 12), modes=True),
        Sample("offset, lengths", (2, 1, 3, 2), (2, 1, 19, 2), masks.causal, q_offset=(4, 15), kv_lens=(5, 12)),
        Sample("keys shared by the batch", (3, 1, 3, 2), (1, 1, 19, 2), masks.causal, q_offset=16),
        Sample("no queries", (1, 2, 0, 3), (1, 2, 7, 3), masks.causal, differentiable=True),
        Sample("no keys", (1, 2, 5, 3), (1, 2, 0, 3), differentiable=True),
        Sample("no batch", (0, 2, 5, 3), (0, 2, 7, 3)),
        Sample("packed documents", grouped, grouped, packed, dtype=torch.float64),
        Sample("packed documents", grouped, grouped, packed, dtype=torch.bfloat16),
        Sample("causal", grouped, grouped, masks.causal, dtype=torch.float16),
        Sample("packed documents", grouped, grouped, packed, dtype=FP8),
        Sample("modes", (2, 4, 5, 8), (2, 2, 7, 8), masks.causal, dtype=FP8, descales=True, modes=True),
        Sample("factors of heads", (2, 4, 5, 8), (2, 2, 7, 8), masks.causal, want_max=True, dtype=FP8, descales=True),
    ]


def _meaning(call: Call, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """By the reference, in float64, and the mask by its function alone: blocks are checked too."""
    mask = call.mask.mod if isinstance(call.mask, BlockMask) else call.mask
    of_products, of_values = (1.0, 1.0) if call.descales is None else call.descales[..., None, None]
    out, lse, largest = reference.attention(
        q.float() * of_products if q.dtype == FP8 else q, k, v, score_mod=call.score, mask_mod=mask, scale=call.scale,
        sinks=sinks, q_offset=call.q_offset, kv_lens=call.kv_lens,
    )  # fmt: skip
    return out * of_values, lse, largest


def _pair(sample: Sample) -> tuple[OpCase, OpCase]:
    """The forward call, and the backward call with its results."""
    q, k, v, sinks = sample.tensors()
    call = sample.call()
    packed = pack(call)
    wide = torch.float64 if sample.dtype == torch.float64 else torch.float32
    tolerance, label = TOLERANCE[sample.dtype], f"{sample.label}, {sample.dtype}"

    def forward(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        out, lse, largest = _meaning(call, q, k, v, sinks)
        return out, lse, largest if sample.want_max else largest.new_empty(0)

    def backward(
        grad_out: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
        sinks: Tensor | None, *rest: Any,
    ) -> list[Tensor]:  # fmt: skip
        captures = [c.detach().double().requires_grad_() for c in call.captures]
        score = None if call.score is None else replace(call.score, captures=tuple(captures))
        leaves = [t.detach().double().requires_grad_() for t in (q, k, v, *([] if sinks is None else [sinks]))]
        meant = _meaning(replace(call, score=score), *leaves[:3], None if sinks is None else leaves[3])
        grads = [grad_out.double(), torch.zeros_like(meant[1]) if grad_lse is None else grad_lse.double()]
        return list(
            torch.autograd.grad(meant[:2], [*leaves, *captures], grads, allow_unused=True, materialize_grads=True)
        )

    arguments = (q, k, v, sinks, *packed, sample.want_max)
    out, lse, _ = torch.ops.torch_flexattn.forward(*arguments)
    rng = torch.Generator().manual_seed(2)
    grad_out = torch.randn(out.shape, generator=rng, dtype=torch.float64).to(sample.dtype)
    grad_lse = torch.randn(lse.shape, generator=rng, dtype=torch.float64).to(wide) if sample.sinks else None
    at = (0, 1, 2, 3) if sample.sinks else (0, 1, 2)
    return (
        OpCase(label, arguments, forward, tolerance, tolerance, at if sample.differentiable else ()),
        OpCase(
            label,
            (grad_out, grad_lse, q, k, v, out, lse, sinks, *packed, [True] * len(call.captures)),
            backward,
            tolerance,
            tolerance,
        ),
    )
