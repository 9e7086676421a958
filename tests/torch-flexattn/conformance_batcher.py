"""Wrong calls of the batcher, for `conformance_errors.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch_flexattn as tfa

from tests.conformance.cases import BadInputCase


def batcher_errors() -> list[BadInputCase]:
    """Wrong calls of the batcher."""

    def cache(**changed: Any) -> tfa.PagedKVCache:
        sizes = {"num_pages": 4, "page_size": 16, "num_kv_heads": 2, "head_dim": 8, "max_seqs": 2}
        return tfa.PagedKVCache(**{**sizes, **changed})

    def make(*arguments: Any, **options: Any) -> tfa.ContinuousBatcher:
        return tfa.ContinuousBatcher(*(arguments or (cache(),)), **options)

    def case(call: Callable[[], Any], raises: type[Exception], *fragments: str) -> BadInputCase:
        return BadInputCase("ContinuousBatcher", call, raises, fragments)

    used = cache()
    used.free(used.allocate())
    full = cache()
    full.append([full.allocate(1)], *[full.k_pages.new_ones(1, 2, 1, 8)] * 2)
    busy = make()
    busy.add(5, 1)
    busy.schedule()
    sharing = make(prefix_block=16)
    twice = cache()
    return [
        case(lambda: make(3), TypeError, "cache", "int"),
        case(lambda: make([]), ValueError, "cache", "[]"),
        case(lambda: make([cache(), None]), TypeError, "cache[1]", "NoneType"),
        case(lambda: make([twice, twice]), ValueError, "cache[1]", "twice", "4 pages of 16"),
        case(lambda: make([cache(), cache(num_pages=5)]), ValueError, "cache[1]", "5 pages of 16"),
        case(lambda: make([cache(), full]), ValueError, "cache[1]", "sequences=1"),
        case(lambda: make([cache(), used]), ValueError, "cache", "same calls"),
        case(lambda: make(cache(), "lifo"), ValueError, "policy", "'lifo'"),
        case(lambda: make(token_budget=0), ValueError, "token_budget", "0"),
        case(lambda: make(token_budget=2.5), TypeError, "token_budget", "2.5"),
        case(lambda: make(prefix_block=0), ValueError, "prefix_block", "0"),
        case(lambda: make().add(0, 1), ValueError, "prompt_tokens", "0"),
        case(lambda: make().add(1, -2), ValueError, "max_new_tokens", "-2"),
        case(lambda: make().add(1.5, 1), TypeError, "prompt_tokens", "1.5"),  # type: ignore[arg-type]
        case(lambda: make().add(60, 6), ValueError, "prompt_tokens and max_new_tokens", "65", "60 and 6"),
        case(lambda: make().add(20, 1, blocks=[7]), ValueError, "blocks", "prefix_block", "1"),
        case(lambda: sharing.add(20, 1, blocks=[1, 2, 3]), ValueError, "blocks", "at most 2", "3"),
        case(lambda: sharing.add(20, 1, blocks=[1, []]), TypeError, "blocks[1]", "[]"),
        case(busy.schedule, RuntimeError, "update", "5 tokens"),
        case(lambda: busy.update([4]), ValueError, "ended", "4"),
        case(make().update, RuntimeError, "update", "schedule"),
    ]
