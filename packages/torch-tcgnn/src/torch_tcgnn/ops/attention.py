"""Fused attention: logits, softmax over the edges of each target and weighted sum in one pass, nothing kept an edge.

Three forms with one signature. Forward returns ``out`` ``[M, H, F]`` and ``lse`` ``[M, H]``, the logarithm of each
softmax's denominator. Backward recomputes the weights ``α = exp(logit − lse)`` in a pass over rows for what belongs to
targets and edges, and in a pass over columns for what belongs to sources. With ``g`` the gradient of ``out`` and
``d_i = <g_i, out_i>``: ``dvalue_j = Σ_i α_ij g_i`` and ``dlogit_ij = α_ij (<g_i, value_j> − d_i)``; under dropout, with
factors ``m_ij`` of :mod:`..kernels.dropout`, ``dvalue_j = Σ_i α_ij m_ij g_i`` and
``dlogit_ij = α_ij (m_ij <g_i, value_j> − d_i)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ..adjacency import Adjacency
from .attention_weights import additive_logits, attention_weights, dot_logits, gatv2_logits, weighted_values
from .library import LIBRARY, NAMESPACE


@dataclass(frozen=True)
class Form:
    """One kind of attention.

    Attributes:
        name: of the operator, without ``_attention``.
        operands: names of its three tensors; a fourth, ``edge``, may be ``None``.
        factor: name of its number.
        value: which operand is summed.
        edge_in_value: whether the edge operand is added to the values as well.
        logits: the same logits from differentiable operators.
    """

    name: str
    operands: tuple[str, str, str]
    factor: str
    value: int
    edge_in_value: bool
    logits: Callable[..., Tensor]

    @property
    def schema(self) -> str:
        tensors = ", ".join(f"Tensor {operand}" for operand in self.operands)
        return f"Tensor[] adj, Tensor[] adj_t, {tensors}, Tensor? edge, float {self.factor}, float dropout, Tensor seed"

    def compose(
        self, adj: list[Tensor], adj_t: list[Tensor], tensors: list[Any], factor: float, dropout: float, seed: Tensor
    ) -> Tensor:
        """The output, from operators that differentiate any number of times."""
        weight = attention_weights(adj, self.logits(adj, adj_t, *tensors, factor), dropout, seed)
        return weighted_values(adj, adj_t, weight, tensors[self.value], tensors[3] if self.edge_in_value else None)


ADDITIVE = Form("additive", ("value", "source", "target"), "slope", 0, False, additive_logits)
GATV2 = Form("gatv2", ("left", "right", "att"), "slope", 0, False, gatv2_logits)
DOT = Form("dot", ("query", "key", "value"), "scale", 2, True, dot_logits)


def _register(form: Form) -> None:
    forward, backward = f"{form.name}_attention", f"{form.name}_attention_backward"
    gradients = ", ".join(f"Tensor grad_{operand}" for operand in (*form.operands, "edge"))
    LIBRARY.define(f"{forward}({form.schema}) -> (Tensor out, Tensor lse)")
    LIBRARY.define(f"{backward}({form.schema}, Tensor out, Tensor lse, Tensor grad) -> ({gradients})")
    for device, family in (("CPU", "cpu"), ("CUDA", "triton")):
        LIBRARY.impl(forward, _forward_kernel(family, form.name), device)
        LIBRARY.impl(backward, _backward_kernel(family, form.name), device)
    torch.library.register_fake(f"{NAMESPACE}::{forward}", _fake_forward(form), lib=LIBRARY)
    torch.library.register_fake(f"{NAMESPACE}::{backward}", _fake_backward, lib=LIBRARY)
    torch.library.register_autograd(f"{NAMESPACE}::{forward}", _derivative(form), setup_context=_save, lib=LIBRARY)


@cache
def _kernel_module(family: str, form: str) -> Any:
    """The module that holds a form's kernels, imported at its first call: Triton's need triton."""
    return import_module(f"..kernels.{family}.attention_{form}", __package__)


def _forward_kernel(family: str, form: str) -> Callable[..., tuple[Tensor, Tensor]]:
    def kernel(adj: list[Tensor], adj_t: list[Tensor], *operands: Any) -> tuple[Tensor, Tensor]:
        run = getattr(_kernel_module(family, form), f"{form}_attention")
        return run(Adjacency.unpack(adj), *operands)

    return kernel


def _backward_kernel(family: str, form: str) -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]:
    def kernel(adj: list[Tensor], adj_t: list[Tensor], *operands: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        run = getattr(_kernel_module(family, form), f"{form}_attention_backward")
        return run(Adjacency.unpack(adj), Adjacency.unpack(adj_t), *operands)

    return kernel


def _fake_forward(form: Form) -> Callable[..., tuple[Tensor, Tensor]]:
    def fake(adj: list[Tensor], adj_t: list[Tensor], *operands: Any) -> tuple[Tensor, Tensor]:
        value, rows = operands[form.value], adj[0].shape[0] - 1
        wide = any(isinstance(t, Tensor) and t.dtype == torch.float64 for t in operands[:4])
        lse = value.new_empty(rows, value.shape[1], dtype=torch.float64 if wide else torch.float32)
        return value.new_empty(rows, *value.shape[1:]), lse

    return fake


def _fake_backward(adj: list[Tensor], adj_t: list[Tensor], *operands: Any) -> tuple[Tensor, ...]:
    *tensors, edge = operands[:4]
    grad_edge = tensors[0].new_empty(0) if edge is None else edge.new_empty(edge.shape)
    return (*(t.new_empty(t.shape) for t in tensors), grad_edge)


def _save(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    adj, adj_t, a, b, c, edge, ctx.factor, ctx.dropout, seed = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.sizes = len(adj), len(adj_t)
    ctx.save_for_backward(*adj, *adj_t, seed, *output, a, b, c, *([] if edge is None else [edge]))


def _derivative(form: Form) -> Callable[..., tuple]:
    backward = f"{form.name}_attention_backward"

    def derivative(ctx: Any, grad: Tensor, _: Any) -> tuple:
        num_adj, num_adj_t = ctx.sizes
        saved = list(ctx.saved_tensors)
        adj, adj_t, saved = saved[:num_adj], saved[num_adj : num_adj + num_adj_t], saved[num_adj + num_adj_t :]
        seed, out, lse, *tensors = saved
        tensors += [None] * (4 - len(tensors))
        needs = ctx.needs_input_grad[2:6]
        if torch.is_grad_enabled():  # someone will differentiate again
            inputs = [None if t is None else t.view_as(t) for t in tensors]
            value = form.compose(adj, adj_t, inputs, ctx.factor, ctx.dropout, seed)
            wanted = [t for t, needed in zip(inputs, needs) if needed and t is not None]
            found = iter(torch.autograd.grad(value, wanted, grad.to(value.dtype), create_graph=True))
            grads = [next(found) if needed else None for needed in needs]
        else:
            call = getattr(torch.ops.torch_tcgnn, backward)
            grads = call(adj, adj_t, *tensors, ctx.factor, ctx.dropout, seed, out, lse, grad)
            grads = [g if needed else None for g, needed in zip(grads, needs)]
        return [None] * num_adj, [None] * num_adj_t, *grads, None, None, None

    return derivative


for _form in (ADDITIVE, GATV2, DOT):
    _register(_form)
