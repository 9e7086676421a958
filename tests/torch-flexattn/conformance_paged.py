"""Sample calls of `paged_forward` and wrong calls of the paged cache; `conformance_ops.py`, `conformance_errors.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch_flexattn as tfa
from torch import Tensor
from torch_flexattn import masks, mods, reference, scores
from torch_flexattn.ops.paged import PagedCall

from tests.conformance.cases import BadInputCase, OpCase

SIZE = 16


@dataclass(frozen=True)
class Sample:
    """Sizes and options of one call; pages lie in reversed order, and behind the keys is NaN."""

    label: str
    heads: int = 4
    kv_heads: int = 2
    queries: int = 1
    lens: tuple[int, ...] = (19, 5)
    slots: tuple[int, ...] | None = None
    mask: Callable[[], mods.MaskMod] | None = None
    score: Callable[[], mods.ScoreMod] | None = None
    sinks: bool = False
    want_max: bool = False
    dtype: torch.dtype = torch.float32
    strided: bool = False
    eight_bits: bool = False
    batch_invariant: bool = False

    def case(self, tolerance: float) -> OpCase:
        """Packed arguments, and what they mean."""
        batch = len(self.lens if self.slots is None else self.slots)
        rng = torch.Generator().manual_seed(0)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=rng, dtype=torch.float64).to(self.dtype)

        each = -(-max(self.lens, default=0) // SIZE)
        count = len(self.lens) * each
        q = (
            draw(batch, self.queries, self.heads, 3).transpose(1, 2)
            if self.strided
            else draw(batch, self.heads, self.queries, 3)
        )
        k, v = draw(len(self.lens), self.kv_heads, each * SIZE, 3), draw(len(self.lens), self.kv_heads, each * SIZE, 5)
        lens = torch.tensor(self.lens, dtype=torch.int32)
        table = torch.arange(count - 1, -1, -1, dtype=torch.int32).view(len(self.lens), each)
        if self.eight_bits:
            k, v = (t.to(torch.float8_e4m3fn).to(t.dtype) for t in (k, v))
        behind = torch.arange(each * SIZE) >= lens[:, None]

        def paged(t: Tensor) -> Tensor:
            t = t.masked_fill(behind[:, None, :, None], float("nan"))
            rows = t.transpose(1, 2).reshape(count, SIZE, self.kv_heads, t.shape[3]).flip(0)
            rows = rows.transpose(1, 2).contiguous().transpose(1, 2) if self.strided else rows
            return rows.to(torch.float8_e4m3fn) if self.eight_bits else rows

        call = PagedCall(
            mask=None if self.mask is None else self.mask(),
            score=None if self.score is None else self.score(),
            scale=0.6,
            most_keys=max(self.lens, default=0),
            check=True,
            want_max=self.want_max,
            descales=torch.rand(2, batch, self.heads) + 0.5 if self.eight_bits else None,
            batch_invariant=self.batch_invariant,
        )
        slots = None if self.slots is None else torch.tensor(self.slots, dtype=torch.int32)
        sinks = draw(self.heads) if self.sinks else None

        def meaning(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
            chosen = torch.arange(len(self.lens)) if slots is None else slots.long()
            own = lens[chosen]
            of_products, of_values = (1.0, 1.0) if call.descales is None else call.descales[..., None, None]
            out, lse, largest = reference.attention(
                q * of_products, k[chosen], v[chosen], score_mod=call.score, mask_mod=call.mask, scale=call.scale,
                sinks=sinks, q_offset=own - self.queries, kv_lens=own,
            )  # fmt: skip
            return out * of_values, lse, largest if self.want_max else largest.new_empty(0)

        arguments = (q, paged(k), paged(v), table, lens, slots, sinks, *call.packed())
        return OpCase(f"{self.label}, {self.dtype}", arguments, meaning, tolerance, tolerance)


def paged_forward(tolerances: dict[torch.dtype, float]) -> list[OpCase]:
    """Sample calls of the op."""

    def window() -> mods.MaskMod:
        return masks.causal() & masks.sliding_window(7)

    samples = [
        Sample("everything"),
        Sample("window, slots", queries=3, lens=(19, 5, 33), slots=(2, 0), mask=window),
        Sample("softcap and sinks", score=lambda: scores.softcap(2.0), sinks=True, want_max=True),
        Sample("strided", queries=3, mask=window, strided=True),
        Sample("a prompt", queries=17, lens=(17,), mask=masks.causal),
        Sample("an empty sequence", lens=(19, 0)),
        Sample("batch-invariant", queries=3, lens=(19, 5, 33), slots=(2, 0), mask=window, batch_invariant=True),
        Sample("no queries", queries=0),
        Sample("no sequences", lens=()),
        Sample("window", mask=window, dtype=torch.float64),
        Sample("window", mask=window, dtype=torch.bfloat16),
        Sample("8 bits", mask=window, eight_bits=True),
        Sample("a prompt in 8 bits", queries=17, lens=(17,), mask=masks.causal, eight_bits=True),
        Sample("8 bits, batch-invariant", queries=3, mask=window, eight_bits=True, batch_invariant=True),
    ]
    return [sample.case(tolerances[sample.dtype]) for sample in samples]


def paged_append() -> list[OpCase]:
    """Sample calls of the op, which gives nothing back; ``test_paged_append.py`` looks at the pages."""

    def case(label: str, tokens: int, n: int, dtype: torch.dtype = torch.float32, *, strided: bool = False) -> OpCase:
        rng = torch.Generator().manual_seed(0)
        k, v = (torch.randn(n, 3, tokens, width, generator=rng).to(dtype) for width in (5, 3))
        if strided:
            k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (k, v))
        pages = [torch.zeros(7, SIZE, 3, width, dtype=dtype) for width in (5, 3)]
        table = torch.tensor([[6, 1, 0], [3, 5, 2]], dtype=torch.int32)
        lengths, slots = torch.tensor([19, 33], dtype=torch.int32), torch.tensor([1, 0], dtype=torch.int32)[:n]
        return OpCase(label, (*pages, table, lengths, slots, k, v, None), lambda *_: ())

    return [
        case("one token", 1, 2),
        case("several pages, strided", 19, 2, strided=True),
        case("no tokens", 0, 2),
        case("no sequences", 3, 0),
        case("bfloat16", 3, 1, torch.bfloat16),
    ]


def paged_errors() -> list[BadInputCase]:
    """Wrong calls of the cache."""

    def make(**changed: Any) -> tfa.PagedKVCache:
        sizes = {"num_pages": 4, "page_size": 16, "num_kv_heads": 2, "head_dim": 8, "max_seqs": 2}
        return tfa.PagedKVCache(**{**sizes, **changed})

    def case(call: Callable[[], Any], raises: type[Exception], *fragments: str) -> BadInputCase:
        return BadInputCase("PagedKVCache", call, raises, fragments)

    cache = make()
    seq = cache.allocate(5)
    new, q = torch.ones(1, 2, 5, 8), torch.ones(1, 4, 1, 8)
    cache.append([seq], new, new)
    freed = cache.allocate()
    cache.free(freed)
    blocks = tfa.create_block_mask(tfa.masks.causal(), None, None, 1, 64)
    return [
        BadInputCase("to_physical", lambda: tfa.to_physical(blocks, cache, [seq]), ValueError, ("page_size=16", "128")),
        BadInputCase("to_physical", lambda: tfa.to_physical(3, cache, [seq]), TypeError, ("what", "int")),  # type: ignore
        case(lambda: make(page_size=24), ValueError, "page_size", "24"),
        case(lambda: make(page_size=8), ValueError, "page_size", "8"),
        case(lambda: make(page_size=0), ValueError, "page_size", "0"),
        case(lambda: make(page_size=-4), ValueError, "page_size", "-4"),
        case(lambda: make(num_pages=0), ValueError, "num_pages", "0"),
        case(lambda: make(max_seqs=2.0), TypeError, "max_seqs", "2.0"),
        case(lambda: make(dtype=torch.int8), TypeError, "dtype", "torch.int8"),
        case(lambda: make(dtype=torch.float8_e4m3fn, k_descale=0.0), ValueError, "k_descale", "0.0"),
        case(lambda: make(dtype=torch.float8_e4m3fn, v_descale="a"), TypeError, "v_descale", "'a'"),
        case(lambda: make(v_descale=2.0), ValueError, "v_descale", "torch.float32"),
        case(lambda: cache.allocate(-1), ValueError, "n must", "-1"),
        case(lambda: cache.allocate(2.5), TypeError, "n must", "2.5"),  # type: ignore[arg-type]
        case(lambda: cache.allocate(64), RuntimeError, "4 pages", "3 are free"),
        case(lambda: cache.free(freed), KeyError, "seq", str(freed)),
        case(lambda: cache.trim(seq, 6), ValueError, "n must be from 0 to 5", "6"),
        case(lambda: cache.extend(seq, 60), RuntimeError, "4 pages", "3 are free"),
        case(lambda: cache.extend(seq, -1), ValueError, "n must", "-1"),
        case(lambda: make(max_tokens=40).allocate(41), ValueError, "n must be from 0 to 40", "41"),
        case(lambda: cache.append(seq, new, new), TypeError, "seqs must be a list", "got 0"),  # type: ignore[arg-type]
        case(lambda: cache.write(seq, new, new), TypeError, "seqs must be a list", "got 0"),  # type: ignore[arg-type]
        case(lambda: cache.attend(q, seq), TypeError, "seqs must be a list", "got 0"),  # type: ignore[arg-type]
        case(lambda: cache.advance(seq, 1), TypeError, "seqs must be a list", "got 0"),  # type: ignore[arg-type]
        case(lambda: cache.block_table(seq), TypeError, "seqs must be a list", "got 0"),  # type: ignore[arg-type]
        case(lambda: cache.length([seq]), TypeError, "seq must be a number", "[0]"),  # type: ignore[arg-type]
        case(lambda: cache.free(torch.tensor(seq)), TypeError, "seq must be a number", "tensor(0)"),  # type: ignore
        case(lambda: cache.append([seq], new[:, :1], new), ValueError, "k must", "(1, 1, 5, 8)"),
        case(lambda: cache.append([seq], new, new[..., :7]), ValueError, "v must", "(1, 2, 5, 7)"),
        case(lambda: cache.append([seq], new.half(), new), TypeError, "k must", "torch.float16"),
        case(lambda: cache.append([seq, seq], *[torch.ones(2, 2, 1, 8)] * 2), ValueError, "seqs", "0 twice"),
        case(lambda: cache.write([seq], *[torch.ones(1, 2, 6, 8)] * 2), ValueError, "k is of 6", "has 5"),
        case(lambda: cache.attend(q[:, :3], [seq]), ValueError, "num_kv_heads=2", "(1, 3, 1, 8)"),
        case(lambda: cache.attend(q, [seq, seq]), ValueError, "q must", "(1, 4, 1, 8)"),
        case(lambda: cache.attend(q.expand(1, 4, 6, 8), [seq]), ValueError, "q is of 6", "has 5"),
        case(lambda: cache.attend(q, [seq], backend="reference"), ValueError, "backend", "'reference'"),  # type: ignore[arg-type]
        case(lambda: cache.attend(q, [seq], sinks=torch.ones(3)), ValueError, "sinks", "(3,)"),
        case(lambda: cache.attend(q.requires_grad_(), [seq]), NotImplementedError, "gradient", "flex_attention"),
    ]
