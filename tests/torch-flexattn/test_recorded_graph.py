"""What is recorded of functions is what ``make_fx`` records of them, and no number has a value meanwhile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch_flexattn.errors import UnsupportedModError
from torch_flexattn.lowering import Lowering
from torch_flexattn.program import Program
from torch_flexattn.recorder import Recorder
from torch_flexattn.trace import trace

TABLE, ONE, LIMITS = torch.randn(4, 9), torch.tensor(2.5), torch.arange(9)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda s, b, h, q, kv: s * 2 + (q - kv) / 3 - 1,
    "floors": lambda s, b, h, q, kv: s + (q - kv) // (q - kv) + (kv - q) % (h - b) + q // -4,
    "tables": lambda s, b, h, q, kv: s + TABLE[h, q - kv] * TABLE[b][kv],
    "one number": lambda s, b, h, q, kv: s * ONE + ONE,
    "conditions": lambda s, b, h, q, kv: torch.where((q >= kv) & ~(LIMITS[q] < kv) | (b == 1), s, float("-inf")),
    "functions": lambda s, b, h, q, kv: torch.tanh(s) + torch.exp(-s.abs()) * torch.sigmoid(s).sqrt(),
    "composites": lambda s, b, h, q, kv: torch.nn.functional.gelu(s) + torch.nn.functional.softplus(s).clamp(0, 3),
    "made inside": lambda s, b, h, q, kv: s + torch.tensor(5) * torch.full((), 2.0) + torch.zeros(()),
    "types": lambda s, b, h, q, kv: s.double().to(torch.bfloat16) + q.long() + (kv > 3).float(),
    "bits": lambda s, b, h, q, kv: s + ((q ^ kv) << 2 | (h & 3) >> 1),
    "extrema": lambda s, b, h, q, kv: torch.maximum(s, q.float()) + torch.minimum(kv, q).clamp(min=1),
    "nothing of it": lambda s, b, h, q, kv: 1.5,
}


def by_make_fx(function: Callable[..., Any]) -> tuple[Program, list[Tensor]]:
    names = ("score", "b", "h", "q", "kv")
    inputs: list[Any] = [(name, "float32" if name == "score" else "int32", None) for name in names]

    def run(*numbers: Tensor) -> Tensor:
        with Recorder((), SimpleNamespace(line="")):  # type: ignore[arg-type]
            result = function(*numbers)
            return result if isinstance(result, Tensor) else torch.full((), result)

    example = [torch.zeros((), dtype=getattr(torch, dtype)) for _, dtype, _ in inputs]
    module = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(*example)
    module.graph.eliminate_dead_code()
    captured = {str(n.target): getattr(module, n.target) for n in module.graph.nodes if n.op == "get_attr"}
    lowering = Lowering(lambda node: "", [TABLE, ONE, LIMITS])
    return lowering.run(module.graph, captured, inputs), lowering.tensors


@pytest.mark.parametrize("name", FUNCTIONS)
def test_same_as_make_fx(name: str) -> None:
    found, (program, tensors) = trace(FUNCTIONS[name], "score"), by_make_fx(FUNCTIONS[name])
    assert [(n.op, n.dtype, n.args, n.value) for n in found.program.nodes] == [
        (n.op, n.dtype, n.args, n.value) for n in program.nodes
    ]
    assert found.program.outputs == program.outputs
    assert [id(t) for t in found.captures] == [id(t) for t in tensors]


@pytest.mark.parametrize(
    "function",
    [
        lambda b, h, q, kv: q.item() > 3,
        lambda b, h, q, kv: q > int(kv),
        lambda b, h, q, kv: bool(q == kv),
        lambda b, h, q, kv: torch.tensor(torch.equal(q, kv)),
        lambda b, h, q, kv: q > q.tolist(),
        lambda b, h, q, kv: LIMITS[0].item() > q,
        lambda b, h, q, kv: q > float(kv),
    ],
)
def test_no_number_has_a_value(function: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedModError, match=r"needs the value of an index"):
        trace(function, "mask")


def test_a_first_recording_imports_neither_dynamo_nor_sympy() -> None:
    script = (
        "import sys, torch, torch_flexattn as tfa\n"
        "before = set(sys.modules)\n"
        "tfa.score_mod(lambda s, b, h, q, kv: torch.tanh(s / 3) + (q - kv) % 5)\n"
        "new = set(sys.modules) - before\n"
        "sys.exit(' '.join(n for n in new if n.split('.')[0] == 'sympy' or n == 'torch._dynamo') or None)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-500:]
