"""PyTorch's flex_attention, compiled, as a peer that never recompiles in a race.

Dynamo keeps what it compiled by code object, tries one entry after the other, makes lengths dynamic when it sees a
second one, and past a limit runs the eager path, which is far slower. So every peer is compiled from a code object of
its own, for the sizes of the case, and the limits are lifted. Its backward pass is called many times on one graph,
which AOTAutograd allows only where it may not reuse the saved tensors.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from types import FunctionType
from typing import Any

from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.case import Run, Runner
from benchmarks.torch_flexattn.gpu_tasks import GpuTask

MANY = 1 << 20
_numbers = count()

__all__ = ["FORWARD", "compiled", "torch_flex"]


def _attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return flex_attention(q, k, v, **options)


def compiled() -> Callable[..., Tensor]:
    """A compiled flex_attention that shares nothing with another one."""
    import torch._dynamo.config
    import torch._functorch.config

    torch._dynamo.config.recompile_limit = MANY
    torch._dynamo.config.accumulated_recompile_limit = MANY
    torch._functorch.config.donated_buffer = False
    code = _attend.__code__.replace(co_name=f"attend_{next(_numbers)}")
    return torch.compile(FunctionType(code, _attend.__globals__, code.co_name), dynamic=False, fullgraph=True)


def torch_flex(task: GpuTask, options: Mapping[str, Any] | None = None) -> Run:
    """With the block mask made beforehand; ``options`` are those of its kernel."""
    mask, score, device = task.plain_mask, task.plain_score, task.q.device
    rows, keys = task.q.shape[2], task.length
    blocks = None if mask is None else create_block_mask(mask, None, None, rows, keys, device=device)
    attend = compiled()
    return lambda: attend(
        task.q, task.k, task.v, score_mod=score, block_mask=blocks, enable_gqa=task.grouped, kernel_options=options
    )


FORWARD: dict[str, Runner] = {
    "torch-flex": torch_flex,
    "torch-flex-tma": partial(torch_flex, options={"USE_TMA": True}),
}
