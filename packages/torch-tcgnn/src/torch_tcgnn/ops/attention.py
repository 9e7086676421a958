"""Fused attention: logits, softmax over the edges of each target and weighted sum in one pass, nothing kept an edge.

Three forms with one signature. Forward returns ``out`` ``[M, H, F]`` and ``lse`` ``[M, H]``, the logarithm of each
softmax's denominator. Backward recomputes the weights ``α = exp(logit − lse)`` in a pass over rows for what belongs to
targets and edges, and in a pass over columns for what belongs to sources. With ``g`` the gradient of ``out`` and
``d_i = <g_i, out_i>``: ``dvalue_j = Σ_i α_ij g_i`` and ``dlogit_ij = α_ij (<g_i, value_j> − d_i)``; under dropout, with
factors ``m_ij`` of :mod:`..kernels.dropout`, ``dvalue_j = Σ_i α_ij m_ij g_i`` and
``dlogit_ij = α_ij (m_ij <g_i, value_j> − d_i)``. Second derivatives go through operators that hold ``[E, H]``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ..adjacency import Adjacency
from .attention_weights import additive_logits, attention_weights, dot_logits, gatv2_logits, weighted_values
from .library import LIBRARY, NAMESPACE
from .plain import Structure, needs_grad


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
        self, adj: Structure, adj_t: Structure, tensors: list[Any], factor: float, dropout: float, seed: Tensor
    ) -> Tensor:
        """The output, from operators that differentiate any number of times."""
        weight = attention_weights(adj, self.logits(adj, adj_t, *tensors, factor), dropout, seed)
        return weighted_values(adj, adj_t, weight, tensors[self.value], tensors[3] if self.edge_in_value else None)


ADDITIVE = Form("additive", ("value", "source", "target"), "slope", 0, False, additive_logits)
GATV2 = Form("gatv2", ("left", "right", "att"), "slope", 0, False, gatv2_logits)
DOT = Form("dot", ("query", "key", "value"), "scale", 2, True, dot_logits)


def attention(form: Form, adj: Structure, adj_t: Structure, *operands: Any) -> tuple[Tensor, Tensor]:
    """The op on tensor lists, or the same past the dispatcher on adjacencies (see ``plain``)."""
    if isinstance(adj, Adjacency):
        return _autograd(form, adj, adj_t, *operands)
    return getattr(torch.ops.torch_tcgnn, f"{form.name}_attention")(adj, adj_t, *operands)


class Attention(torch.autograd.Function):
    """The derivative; ``adj_t`` may be empty where no gradient will be asked for."""

    @staticmethod
    def forward(ctx: Any, form: Form, adj: Structure, adj_t: Structure, *operands: Any) -> tuple[Tensor, Tensor]:
        *tensors, factor, dropout, seed = operands
        out, lse = _below(form, adj, adj_t, *operands)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        ctx.settings = form, adj, adj_t, factor, dropout
        ctx.save_for_backward(*tensors, seed, out, lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        grad = grad_outputs[0]
        form, adj, adj_t, factor, dropout = ctx.settings
        *tensors, seed, out, lse = ctx.saved_tensors
        needs = ctx.needs_input_grad[3:7]
        if grad is None:
            grads = [None] * 4
        elif torch.is_grad_enabled():  # someone will differentiate again
            inputs = [None if t is None else t.view_as(t) for t in tensors]
            value = form.compose(adj, adj_t, inputs, factor, dropout, seed)
            wanted = [t for t, needed in zip(inputs, needs) if needed and t is not None]
            found = iter(torch.autograd.grad(value, wanted, grad.to(value.dtype), create_graph=True))
            grads = [next(found) if needed else None for needed in needs]
        else:
            found = _below(form, adj, adj_t, *tensors, factor, dropout, seed, out, lse, grad, step="_backward")
            grads = [g if needed else None for g, needed in zip(found, needs)]
        return None, None, None, *grads, None, None, None


def _autograd(form: Form, adj: Structure, adj_t: Structure, *operands: Any) -> tuple[Tensor, Tensor]:
    run = Attention.apply if needs_grad(*operands[:4]) else _below
    return run(form, adj, adj_t, *operands)


def _below(form: Form, adj: Structure, adj_t: Structure, *operands: Any, step: str = "") -> Any:
    """Output and lse or, with ``step="_backward"``, the four gradients; autograd does not watch."""
    if isinstance(adj, Adjacency):
        family = "triton" if operands[0].is_cuda else "cpu"
        return _kernel(family, form.name, step)(adj, *([adj_t] if step else []), *operands)
    with torch._C._AutoDispatchBelowAutograd():
        return getattr(torch.ops.torch_tcgnn, f"{form.name}_attention{step}")(adj, adj_t, *operands)


@cache
def _kernel(family: str, form: str, step: str) -> Callable[..., tuple[Tensor, ...]]:
    """A form's kernel, its module imported at the first call: Triton's need triton."""
    module = import_module(f"..kernels.{family}.attention_{form}", __package__)
    return getattr(module, f"{form}_attention{step}")


def _register(form: Form) -> None:
    forward, backward = f"{form.name}_attention", f"{form.name}_attention_backward"
    gradients = ", ".join(f"Tensor grad_{operand}" for operand in (*form.operands, "edge"))
    LIBRARY.define(f"{forward}({form.schema}) -> (Tensor out, Tensor lse)")
    LIBRARY.define(f"{backward}({form.schema}, Tensor out, Tensor lse, Tensor grad) -> ({gradients})")
    LIBRARY.impl(forward, partial(_autograd, form), "Autograd")
    for device in ("CPU", "CUDA"):
        LIBRARY.impl(forward, partial(_unpacked, form, ""), device)
        LIBRARY.impl(backward, partial(_unpacked, form, "_backward"), device)
    torch.library.register_fake(f"{NAMESPACE}::{forward}", _fake_forward(form), lib=LIBRARY)
    torch.library.register_fake(f"{NAMESPACE}::{backward}", _fake_backward, lib=LIBRARY)


def _unpacked(form: Form, step: str, adj: list[Tensor], adj_t: list[Tensor], *operands: Any) -> tuple[Tensor, ...]:
    transposed = Adjacency.unpack(adj_t) if step else []
    return _below(form, Adjacency.unpack(adj), transposed, *operands, step=step)


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


for _form in (ADDITIVE, GATV2, DOT):
    _register(_form)
