"""Wrong calls of context parallelism, for the conformance suite; `conformance_errors.py` hands them over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_flexattn as tfa
from torch_flexattn import masks, parallel

from tests.conformance.cases import BadInputCase


def parallel_errors() -> list[BadInputCase]:
    """Wrong plans, shards and calls, without processes."""
    blocks = tfa.create_block_mask(masks.causal(), None, None, 64, 64, BLOCK_SIZE=16)
    one, two = parallel.shard_plan(blocks, 1), parallel.shard_plan(blocks, 2)
    x, part = torch.ones(1, 2, 64, 8), torch.ones(1, 2, 32, 8)

    def case(name: str, call: Callable[[], Any], raises: type[Exception], *fragments: str) -> BadInputCase:
        return BadInputCase(f"parallel.{name}", call, raises, fragments)

    def attend(raises: type[Exception], *fragments: str, **changed: Any) -> BadInputCase:
        arguments = {"q": x, "k": x, "v": x, "plan": one, **changed}
        return case(
            "context_parallel_attention", lambda: parallel.context_parallel_attention(**arguments), raises, *fragments
        )

    plan: Any = parallel.shard_plan
    return [
        case("shard_plan", lambda: plan(masks.causal(), 2), TypeError, "block_mask", "MaskMod"),
        case("shard_plan", lambda: plan(blocks, 2.0), TypeError, "world", "2.0"),
        case("shard_plan", lambda: plan(blocks, 3), ValueError, "block_mask", "world=3"),
        case("shard_plan", lambda: plan(blocks, 2, "even"), ValueError, "kind", "'even'"),
        case("ShardPlan", lambda: two.positions(2), ValueError, "rank", "2"),
        case("ShardPlan", lambda: two.positions(1.0), TypeError, "rank", "1.0"),  # type: ignore[arg-type]
        case("shard", lambda: parallel.shard(x, two, 0, 1), ValueError, "x must", "(1, 2, 64, 8)"),
        case("shard", lambda: parallel.shard(x, two, 2, 2), ValueError, "rank", "2"),
        case("unshard", lambda: parallel.unshard([part], two, 2), ValueError, "parts", "1"),
        case("gather_shards", lambda: parallel.gather_shards(part, two, 2), ValueError, "plan", "2 ranks"),
        case("gather_shards", lambda: parallel.gather_shards(part, two, 4), ValueError, "dim", "4"),
        attend(TypeError, "plan", "int", plan=2),
        attend(ValueError, "q must", "32", q=part),
        attend(ValueError, "plan", "2 ranks", plan=two, q=part, k=part, v=part),
        attend(ValueError, "method", "'tree'", method="tree"),
        attend(TypeError, "scale", "'small'", scale="small"),
        attend(TypeError, "mask_mod", "int", mask_mod=3),
    ]
