"""GATv2 attention on the CPU: logits are ``<att, LeakyReLU(left[j] + right[i] (+ edge))>``, values are ``left``.

Sums over features are products with ``att`` as a block matrix ``[H, H·C]``, row ``h`` of which is ``att[h]`` in its own
columns: a matrix product is faster than a reduction over short rows, and gives logits head by head. Little else is
done with ``[e, H·C]``, so a chunk may have twice the usual elements. The zeros of that matrix make NaN of what is not
finite in other heads; then products are taken head by head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from ...adjacency import Adjacency
from .attention import Held, Softmax, aggregate, at_edges, by_head, compute_dtype, fits, table
from .chunk import Chunk, chunks
from .sddmm import padded


def gatv2_attention(
    adjacency: Adjacency,
    left: Tensor,
    right: Tensor,
    att: Tensor,
    edge: Tensor | None,
    slope: float,
    dropout: float,
    seed: Tensor,
) -> tuple[Tensor, Tensor]:
    """Output and lse of left ``[K, H, C]``, right ``[M, H, C]``, att ``[H, C]``, edge ``[E, H, C]``."""
    dtype = compute_dtype(left, right, att, edge)
    lefts, rights, blocks = table(left, dtype).flatten(1), table(right, dtype).flatten(1), _blocks(att, dtype)

    def logits(chunk: Chunk) -> Tensor:
        hidden = _hidden(chunk, rights, lefts, edge)
        return _products(leaky_relu(hidden, slope, inplace=True), blocks, att)

    return aggregate(adjacency, left, logits, dtype, att.numel() // 2, dropout, seed)


def gatv2_attention_backward(
    adjacency: Adjacency,
    transposed: Adjacency,
    left: Tensor,
    right: Tensor,
    att: Tensor,
    edge: Tensor | None,
    slope: float,
    dropout: float,
    seed: Tensor,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of left, right, att and edge (empty where there is no edge operand)."""
    dtype, width, (num_cols, heads, _) = lse.dtype, att.numel(), left.shape
    grad_left, grad_right, grad_att = (t.new_zeros(t.shape) for t in (left, right, att))
    grad_edge = left.new_empty(0) if edge is None else edge.new_zeros(edge.shape)
    if left.numel() == 0:
        return grad_left, grad_right, grad_att, grad_edge
    softmax = Softmax.of(grad, out, lse, dropout, seed)
    lefts, rights, blocks = table(left, dtype).flatten(1), table(right, dtype).flatten(1), _blocks(att, dtype)
    products = padded(table(left, dtype))
    weights = grads = sums = None
    by_entry = heads, adjacency.num_edges
    if fits(adjacency, heads + width, dtype):
        weights = Held(adjacency, transposed, by_entry, 1, dtype)
        sums = Held(adjacency, transposed, (adjacency.num_edges, width), 0, dtype)
    elif fits(adjacency, 2 * heads, dtype):
        weights, grads = (Held(adjacency, transposed, by_entry, 1, dtype) for _ in range(2))
    all_grad_att = blocks.new_zeros(blocks.shape)
    for chunk in chunks(adjacency, width // 2, heads, num_cols):
        hidden = _hidden(chunk, rights, lefts, edge)
        active = leaky_relu(hidden, slope)
        grad_weight = chunk.product(softmax.grad_by_head, products)
        weight, grad_logits = softmax.at_rows(chunk, _products(active, blocks, att), grad_weight)
        all_grad_att.addmm_(grad_logits, active)
        grad_hidden = _through_leaky(grad_logits, hidden, blocks, att, slope)
        grad_right[chunk.rows] = chunk.total(grad_hidden).view(-1, *right.shape[1:])
        if edge is not None:
            grad_edge.index_copy_(0, chunk.edge.long(), grad_hidden.view(-1, *edge.shape[1:]).to(edge.dtype))
        for held, found in ((weights, weight), (grads, grad_logits), (sums, grad_hidden)):
            if held is not None:
                held.put(chunk, found)
    grad_att.copy_(all_grad_att.view(heads, *att.shape).diagonal().t())
    total = None if sums is None else sums.total().view(left.shape)
    cols = softmax.grad
    if weights is None:
        products, cols = padded(by_head(left, dtype)), padded(softmax.grad)
    for chunk in chunks(transposed, width // 2, heads, adjacency.num_rows):
        if total is not None and weights is not None:
            part, weight = total[chunk.rows], weights.at(chunk)
        else:
            hidden = _hidden(chunk, lefts, rights, edge)
            if weights is not None and grads is not None:
                weight, grad_logits = weights.at(chunk), grads.at(chunk)
            else:
                logits = _products(leaky_relu(hidden, slope), blocks, att)
                weight, grad_logits = softmax.at_cols(chunk, logits, chunk.product(products, cols))
            part = chunk.total(_through_leaky(grad_logits, hidden, blocks, att, slope)).view(-1, *left.shape[1:])
        grad_left[chunk.rows] = chunk.weighted_sum(weight, softmax.grad).add_(part)
    return grad_left, grad_right, grad_att, grad_edge


def _blocks(att: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.block_diag(*att.detach().to(dtype)) if att.numel() else att.new_zeros(att.shape[0], 0, dtype=dtype)


def _products(active: Tensor, blocks: Tensor, att: Tensor) -> Tensor:
    """``[H, e]``: ``<att[h], active[e, h]>``."""
    found = blocks @ active.t()
    if math.isfinite(found.sum().item()):
        return found
    return (active.view(-1, *att.shape) * att.detach().to(active.dtype)).sum(-1).t().contiguous()


def _hidden(chunk: Chunk, by_row: Tensor, by_col: Tensor, edge: Tensor | None) -> Tensor:
    """``[e, H·C]`` before the LeakyReLU."""
    hidden = by_row.index_select(0, chunk.row).add_(by_col.index_select(0, chunk.col))
    return hidden if edge is None else hidden.add_(at_edges(chunk, edge, hidden.dtype).flatten(1))


def _through_leaky(grad_logits: Tensor, hidden: Tensor, blocks: Tensor, att: Tensor, slope: float) -> Tensor:
    """``[e, H·C]`` gradient before the LeakyReLU, in the place of ``hidden``."""
    grad = grad_logits.t() @ blocks
    if not math.isfinite(grad_logits.sum().item()):
        grad = (grad_logits.t().unsqueeze(-1) * att.detach().to(grad.dtype)).flatten(1)
    return torch.ops.aten.leaky_relu_backward.grad_input(grad, hidden, slope, False, grad_input=hidden)
