"""``paged_forward``: attention of the last queries of sequences whose keys and values lie in pages.

For inference: it has no derivative. Few queries take the decode kernel, which finds the pages itself; more, or a CPU,
take the kernels of ``forward`` on pages that are put side by side.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..call import BLOCK
from ..errors import UnsupportedError
from ..fp8 import result_dtype
from ..kernels.choose import Backend, kernels_for
from ..kernels.pages import side_by_side
from ..masks_of_calls import block_mask_of
from ..mods import MaskMod, ScoreMod
from ..one_line import on_one_line, parts_of
from ..program import Program, parse
from .library import LIBRARY
from .plain import needs_grad, on_device, outside_autocast, plain_eager

LIBRARY.define(
    "paged_forward(Tensor q, Tensor k_pages, Tensor v_pages, Tensor table, Tensor kv_lens, Tensor? slots, "
    "Tensor? sinks, Tensor? descales, Tensor[] captures, Tensor numbers, str program, float scale, SymInt most_keys, "
    "bool check, str backend, bool batch_invariant, bool want_max) -> (Tensor, Tensor, Tensor)"
)

Results = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class PagedCall:
    """What is asked of a kernel.

    Attributes:
        mask: what is visible; sees positions in the sequence. Its numbers do not wait for lengths.
        score: modification of scores.
        scale: of the products.
        most_keys: no sequence has more.
        check: whether reading a captured tensor out of range at a visible position is an error.
        backend: which kernels (see ``kernels.choose``).
        want_max: whether the largest score of each row is asked for.
        descales: of 8-bit pages: float32 ``[2, B, Hq]``, factors of the products and of the values.
        batch_invariant: whether outputs of a sequence may not depend on the others, bit for bit.
    """

    mask: MaskMod | None
    score: ScoreMod | None
    scale: float
    most_keys: int
    check: bool = False
    backend: Backend = "auto"
    want_max: bool = False
    descales: Tensor | None = None
    batch_invariant: bool = False

    @property
    def captures(self) -> tuple[Tensor, ...]:
        """Of the score modification, then of the mask."""
        return tuple(c for mod in (self.score, self.mask) if mod is not None for c in mod.captures)

    def packed(self) -> tuple[Any, ...]:
        """The call as the last arguments of the op."""
        mods = [mod for mod in (self.score, self.mask) if mod is not None]
        numbers = torch.cat([torch.empty(0, dtype=torch.float64, device="cpu"), *(mod.numbers for mod in mods)])
        program = on_one_line(*("" if mod is None else mod.program.text for mod in (self.score, self.mask)))
        return (
            self.descales, list(self.captures), numbers, program, self.scale, self.most_keys, self.check, self.backend,
            self.batch_invariant, self.want_max,
        )  # fmt: skip


def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    table: Tensor,
    kv_lens: Tensor,
    slots: Tensor | None,
    sinks: Tensor | None,
    call: PagedCall,
) -> Results:
    """``out``, ``lse`` and the largest scores (empty unless the call wants them).

    Args:
        q: ``[B, Hq, L, E]``: the last ``L`` tokens of each sequence, all of whose keys are in their pages.
        k_pages: ``[pages, page size, Hkv, E]``, of the type of ``q`` or of 8 bits; the page size is a power of two, at
            least 16.
        v_pages: ``[pages, page size, Hkv, Ev]``.
        table: int32 ``[slots, n]``: the pages of a sequence, in order.
        kv_lens: int32 ``[slots]``: tokens of a sequence.
        slots: int32 ``[B]``: which sequences; ``None``: all.
        sinks: ``[Hq]``.
        call: the rest.

    Raises:
        UnsupportedError: a gradient is asked for.
    """
    inputs = (q, k_pages, v_pages, sinks, *call.captures)
    if needs_grad(*inputs):
        raise UnsupportedError(
            "attention over pages has no gradient: call it under torch.no_grad(), or use flex_attention"
        )
    if plain_eager(*inputs):
        return _run(q, k_pages, v_pages, table, kv_lens, slots, sinks, call)
    return torch.ops.torch_flexattn.paged_forward(q, k_pages, v_pages, table, kv_lens, slots, sinks, *call.packed())


def _run(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    table: Tensor,
    kv_lens: Tensor,
    slots: Tensor | None,
    sinks: Tensor | None,
    call: PagedCall,
) -> Results:
    kernels = kernels_for(call.backend, q.device, q.dtype, call.check)
    with torch.no_grad(), outside_autocast(q), on_device(q):
        if kernels.name != "cpu":
            from ..kernels.triton import decode

            if decode.serves(q, call.mask):
                out, lse, largest = decode.paged(
                    q, k_pages, v_pages, table, kv_lens, mask=call.mask, score=call.score, scale=call.scale,
                    slots=slots, sinks=sinks, want_max=call.want_max, descales=call.descales, most_keys=call.most_keys,
                    batch_invariant=call.batch_invariant,
                )  # fmt: skip
                return out, lse, lse.new_empty(0) if largest is None else largest
        if slots is not None:
            table, kv_lens = table.index_select(0, slots), kv_lens.index_select(0, slots)
        size = k_pages.shape[1]
        keys = min(call.most_keys, table.shape[1] * size)
        k, v = (side_by_side(pages, table[:, : -(-keys // size)])[:, :, :keys] for pages in (k_pages, v_pages))
        first = kv_lens - q.shape[2]
        mask = None
        if call.mask is not None:
            batch, heads, queries, _ = q.shape
            mask = block_mask_of(call.mask, (batch, heads, queries, keys), BLOCK, q.device, first, call.check)
        out, lse, largest = kernels.forward(
            q, k, v, mask=mask, score=call.score, scale=call.scale, q_offset=first, kv_lens=kv_lens, sinks=sinks,
            dropout_p=0.0, seed=0, check=call.check, want_max=call.want_max, descales=call.descales,
            batch_invariant=call.batch_invariant,
        )  # fmt: skip
    return out, lse, lse.new_empty(0) if largest is None else largest


def _forward(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    table: Tensor,
    kv_lens: Tensor,
    slots: Tensor | None,
    sinks: Tensor | None,
    descales: Tensor | None,
    captures: list[Tensor] | None,  # AOTInductor's runtime hands over None for no entries
    numbers: Tensor,
    program: str,
    scale: float,
    most_keys: int,
    check: bool,
    backend: Backend,
    batch_invariant: bool,
    want_max: bool,
) -> Results:
    captures = captures or []
    score, mask = _programs(program)
    values = numbers.tolist()
    split, first = (0, 0) if score is None else (len(score.captures), len(score.scalars))
    call = PagedCall(
        None if mask is None else MaskMod(mask, tuple(captures[split:]), _typed(mask, values[first:])),
        None if score is None else ScoreMod(score, tuple(captures[:split]), _typed(score, values[:first])),
        scale, most_keys, check, backend, want_max, descales, batch_invariant,
    )  # fmt: skip
    return _run(q, k_pages, v_pages, table, kv_lens, slots, sinks, call)


def _fake_forward(q: Tensor, k_pages: Tensor, v_pages: Tensor, *rest: Any) -> Results:
    order = sorted(range(3), key=lambda d: -q.stride(d))
    out = torch.empty_permuted(
        (*q.shape[:3], v_pages.shape[-1]), (*order, 3), dtype=result_dtype(q.dtype), device=q.device
    )
    lse = q.new_empty(q.shape[:3], dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)
    return out, lse, torch.empty_like(lse) if rest[-1] else lse.new_empty(0)


@functools.lru_cache(maxsize=1024)
def _programs(text: str) -> tuple[Program | None, Program | None]:
    score, mask = parts_of(text)
    return parse(score) if score else None, parse(mask) if mask else None


def _typed(program: Program, scalars: list[float]) -> tuple[int | float, ...]:
    """Numbers in the types that the program has them in."""
    return tuple(int(s) if dtype.startswith("int") else s for s, dtype in zip(scalars, program.scalars, strict=True))


for device in ("CPU", "CUDA"):
    LIBRARY.impl("paged_forward", _forward, device)
torch.library.register_fake("torch_flexattn::paged_forward", _fake_forward, lib=LIBRARY)
