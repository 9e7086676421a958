"""What each operator means, in plain PyTorch over an edge list: slow, obvious, and the oracle of all kernel tests.

``row[e]`` is the target and ``col[e]`` the source of edge ``e``, in input order.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu


def spmm(row: Tensor, col: Tensor, x: Tensor, weight: Tensor | None, num_rows: int) -> Tensor:
    """``out[i] = Σ_{e: row[e]=i} weight[e] · x[col[e]]``; ``x`` ``[K, F]``, or ``[K, H, F]`` and weights ``[E, H]``."""
    message = x[col] if weight is None else x[col] * weight.unsqueeze(-1)
    return x.new_zeros(num_rows, *x.shape[1:]).index_add(0, row, message.to(x.dtype))


def spmm_extremum(row: Tensor, col: Tensor, x: Tensor, weight: Tensor | None, num_rows: int, largest: bool) -> Tensor:
    """``out[i] = max_{e: row[e]=i} weight[e] · x[col[e]]`` (or min), 0 in rows without edges; shapes as :func:`spmm`.

    ``x`` ``[K, F]`` with weights ``[E]``, or ``[K, H, F]`` with ``[E, H]``.
    """
    message = x[col] if weight is None else x[col] * weight.unsqueeze(-1)
    index = row.view(-1, *[1] * (x.dim() - 1)).expand_as(message)
    out = x.new_zeros(num_rows, *x.shape[1:])
    return out.scatter_reduce(0, index, message, "amax" if largest else "amin", include_self=False)


def sddmm(row: Tensor, col: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``out[e] = <a[row[e]], b[col[e]]>`` over the last dimension: ``[E]``, or ``[E, H]`` of ``[·, H, D]`` operands."""
    return (a[row] * b[col]).sum(-1)


def segment_sum(row: Tensor, values: Tensor, num_rows: int) -> Tensor:
    """``out[i] = Σ_{e: row[e]=i} values[e]``; ``values`` ``[E, …]`` to ``[num_rows, …]``."""
    return values.new_zeros(num_rows, *values.shape[1:]).index_add(0, row, values)


def edge_softmax(row: Tensor, logits: Tensor, num_rows: int) -> Tensor:
    """Softmax of ``logits`` (``[E]`` or ``[E, H]``) over the edges that share a row; 0 where all of them are −inf."""
    index = row.view(-1, *[1] * (logits.dim() - 1)).expand_as(logits)
    top = logits.new_full((num_rows, *logits.shape[1:]), float("-inf")).scatter_reduce(0, index, logits, "amax")
    weight = (logits - top.where(top != float("-inf"), 0)[row]).exp()
    total = segment_sum(row, weight, num_rows)
    return weight / total.where(total != 0, 1)[row]


def additive_logits(
    row: Tensor, col: Tensor, source: Tensor, target: Tensor, edge: Tensor | None, slope: float
) -> Tensor:
    """GAT (Veličković 2018, eq. 3): ``LeakyReLU(source[j] + target[i] (+ edge))``, all ``[·, H]``."""
    logit = source[col] + target[row]
    return leaky_relu(logit if edge is None else logit + edge, slope)


def gatv2_logits(
    row: Tensor, col: Tensor, left: Tensor, right: Tensor, att: Tensor, edge: Tensor | None, slope: float
) -> Tensor:
    """GATv2 (Brody 2022, eq. 7): ``<att, LeakyReLU(left[j] + right[i] (+ edge))>``; ``[·, H, C]`` to ``[E, H]``."""
    hidden = left[col] + right[row]
    return (leaky_relu(hidden if edge is None else hidden + edge, slope) * att).sum(-1)


def dot_logits(row: Tensor, col: Tensor, query: Tensor, key: Tensor, edge: Tensor | None, scale: float) -> Tensor:
    """Transformer (Shi 2021, eq. 3): ``scale · <query[i], key[j] (+ edge)>``; ``[·, H, D]`` to ``[E, H]``."""
    keys = key[col]
    return scale * (query[row] * (keys if edge is None else keys + edge)).sum(-1)


def attention(
    row: Tensor, col: Tensor, value: Tensor, logits: Tensor, num_rows: int, edge: Tensor | None = None
) -> Tensor:
    """``out[i] = Σ softmax_i(logits)[e] · (value[col[e]] (+ edge[e]))``; ``value`` ``[K, H, F]``, logits ``[E, H]``."""
    message = value[col] if edge is None else value[col] + edge
    return segment_sum(row, message * edge_softmax(row, logits, num_rows).unsqueeze(-1), num_rows)


def to_dense(row: Tensor, col: Tensor, weight: Tensor | None, num_rows: int, num_cols: int) -> Tensor:
    """``[num_rows, num_cols]`` float64 matrix, duplicates summed."""
    value = torch.ones(row.shape[0], dtype=torch.float64) if weight is None else weight.double()
    return torch.zeros(num_rows, num_cols, dtype=torch.float64).index_put((row, col), value, accumulate=True)
