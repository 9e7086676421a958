"""Sample and wrong calls of selected blocks; `conformance_ops.py` and `conformance_errors.py` use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch_flexattn as tfa
from torch import Tensor
from torch_flexattn import reference

from tests.conformance.cases import BadInputCase, OpCase

SIZE = 16


@dataclass(frozen=True)
class Sample:
    """Sizes and options of one call; its tensors are drawn from a fixed seed."""

    label: str
    q: tuple[int, int, int, int] = (1, 4, 5, 3)  # batch, query heads, queries, features
    k: tuple[int, int, int, int] = (1, 2, 19, 5)  # batch, key heads, keys, features of values
    entries: int = 2
    causal: bool = True
    q_offset: int = 14
    strided: bool = False
    grad_lse: bool = True
    dtype: torch.dtype = torch.float32
    differentiable: bool = False

    def cases(self, tolerance: float) -> tuple[OpCase, OpCase]:
        """The forward call, and the backward call with its results."""
        rng = torch.Generator().manual_seed(0)

        def draw(*shape: int) -> Tensor:
            drawn = torch.randn(shape, generator=rng, dtype=torch.float64).to(self.dtype)
            return drawn.transpose(1, 2).contiguous().transpose(1, 2) if self.strided else drawn

        keys, values = (*self.k[:3], self.q[3]), self.k
        q, k, v = draw(*self.q), draw(*keys), draw(*values)
        columns = -(-self.k[2] // SIZE)
        shape = (*self.k[:2], self.q[2], max(columns, self.entries))
        blocks = torch.rand(shape, generator=rng).argsort(-1)[..., : self.entries].to(torch.int32)
        if not self.differentiable:
            blocks[:, :, 3:4] = -1  # of a query that sees nothing: its lse, −inf, has no difference quotient
        options = {"block_size": SIZE, "scale": 0.6, "causal": self.causal, "q_offset": self.q_offset}

        def meaning(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
            return reference.selected_attention(q, k, v, blocks, **options)

        def backward(
            grad_out: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *rest: Any
        ) -> tuple[Tensor, ...]:
            leaves = [t.detach().double().requires_grad_() for t in (q, k, v)]
            out, lse = meaning(*leaves)
            given = torch.zeros_like(lse) if grad_lse is None else grad_lse.double()
            return torch.autograd.grad((out, lse), leaves, (grad_out.double(), given))

        packed = (blocks, *options.values(), "auto")
        out, lse = torch.ops.torch_flexattn.selected_forward(q, k, v, *packed)
        grad_out = draw(*out.shape)
        grad_lse = torch.where(lse == float("-inf"), 0, torch.ones_like(lse)) if self.grad_lse else None
        label = f"{self.label}, {self.dtype}"
        at = (0, 1, 2) if self.differentiable else ()
        return (
            OpCase(label, (q, k, v, *packed), meaning, tolerance, tolerance, at),
            OpCase(label, (grad_out, grad_lse, q, k, v, out, lse, *packed), backward, tolerance, tolerance),
        )


def selected_ops(tolerances: dict[torch.dtype, float]) -> dict[str, list[OpCase]]:
    """Sample calls of both ops."""
    samples = [
        Sample("a group", (1, 2, 5, 3), (1, 1, 19, 5), differentiable=True),
        Sample("one head a group", (2, 2, 5, 3), (2, 2, 7, 3), 1, q_offset=0, differentiable=True),
        Sample("strided", (2, 3, 5, 2), (2, 1, 19, 2), strided=True),
        Sample("not causal", causal=False, q_offset=0, grad_lse=False),
        Sample("no entries", entries=0),
        Sample("no queries", (1, 4, 0, 3), (1, 1, 19, 5), differentiable=True),
        Sample("grouped heads"),
        Sample("no keys", k=(1, 2, 0, 5), entries=1),
        Sample("no batch", (0, 4, 5, 3), (0, 2, 7, 5)),
        Sample("grouped heads", dtype=torch.float64),
        Sample("grouped heads", dtype=torch.bfloat16),
    ]
    pairs = [sample.cases(tolerances[sample.dtype]) for sample in samples]
    return {"selected_forward": [f for f, _ in pairs], "selected_backward": [b for _, b in pairs]}


def selected_errors() -> list[BadInputCase]:
    """Wrong calls of the function."""
    q, k, v = torch.ones(2, 4, 5, 8), torch.ones(2, 2, 40, 8), torch.ones(2, 2, 40, 3)
    blocks, counts = torch.tensor([0, 2]).expand(2, 2, 5, 2), torch.ones(2, 2, 5, dtype=torch.int64)

    def case(raises: type[Exception], *fragments: str, **changed: Any) -> BadInputCase:
        arguments = {"query": q, "key": k, "value": v, "block_indices": blocks, "block_size": 16, **changed}
        call: Callable[[], Any] = lambda: tfa.selected_attention(**arguments)  # noqa: E731
        return BadInputCase("selected_attention", call, raises, fragments)

    return [
        case(TypeError, "query", "list", query=[1.0]),
        case(ValueError, "heads", "(2, 3, 5, 8)", query=q[:, :3]),
        case(TypeError, "block_indices", "torch.float32", block_indices=blocks.float()),
        case(TypeError, "block_indices", "list", block_indices=[0]),
        case(ValueError, "block_indices", "(2, 2, 5)", block_indices=blocks[..., 0]),
        case(ValueError, "block_indices", "(2, 4, 5, 2)", block_indices=blocks.repeat(1, 2, 1, 1)),
        case(ValueError, "block_indices", "got 3", block_indices=blocks + 1),
        case(ValueError, "block_indices", "got -2", block_indices=blocks - 2),
        case(ValueError, "block_indices", "block 1 twice", block_indices=blocks // 2 * 0 + 1),
        case(TypeError, "block_counts", "torch.bool", block_counts=counts > 0),
        case(TypeError, "block_counts", "float", block_counts=2.5),
        case(ValueError, "block_counts", "(2, 2)", block_counts=counts[..., 0]),
        case(ValueError, "block_counts", "got 3", block_counts=counts + 2),
        case(ValueError, "block_counts", "got 7", block_counts=7),
        case(ValueError, "block_counts", "-1", block_counts=-1),
        case(ValueError, "block_size", "24", block_size=24),
        case(TypeError, "block_size", "16.0", block_size=16.0),
        case(TypeError, "scale", "'small'", scale="small"),
        case(ValueError, "q_offset", "-1", q_offset=-1),
        case(TypeError, "q_offset", "0.5", q_offset=0.5),
        case(ValueError, "backend", "'fast'", backend="fast"),
        case(NotImplementedError, "backend='triton'", "float64", backend="triton", query=q.double(), key=k.double(),
             value=v.double()),
    ]  # fmt: skip
