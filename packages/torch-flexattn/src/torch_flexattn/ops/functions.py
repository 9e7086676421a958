"""A call whose modifications are still functions, inside ``torch.compile``.

Dynamo, which reads the call, is given a body that runs the functions on single indices and, beside them, the operator
without them. So it inlines what the functions do, guards what they read, and makes what they capture (tensors,
parameters, open numbers) inputs of the body's graph. When that graph is called, mostly by AOTAutograd while it traces,
the functions are recorded from it as programs, once, and the operator is called with them: nothing else stays.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.variables import higher_order_ops as known_to_dynamo
from torch._ops import HigherOrderOperator

from ..call import Call, Packed, pack, programs
from ..mods import MaskMod
from ..mods import mask_mod as as_mask
from ..mods import score_mod as as_score
from ..one_line import on_one_line, parts_of
from ..program import Program
from .recorded_body import Recorded, record

CAPTURES, NUMBERS, PROGRAM = (4 + Packed._fields.index(name) for name in ("captures", "numbers", "program"))
"""Arguments of the operator, behind query, key, value and sinks."""

_rewritten: weakref.WeakKeyDictionary[fx.GraphModule, Callable[..., Any]] = weakref.WeakKeyDictionary()


class WithFunctions(HigherOrderOperator):
    """What Dynamo takes for an operator on a graph; it is the operator of this package on programs."""

    def __init__(self) -> None:
        super().__init__("torch_flexattn_with_functions")

    def __call__(self, body: Any, /, *operands: Any, **kwargs: Any) -> Any:
        if not isinstance(body, fx.GraphModule):
            return _recorded_now(*operands)
        found = _rewritten.get(body)
        if found is None:
            found = _rewritten[body] = rewritten(body)
        return found(*operands)


WITH_FUNCTIONS = WithFunctions()
# Dynamo has a fixed list of those it reads. Of them ``wrap`` just runs its body, on inputs that may share storage, as
# query, key and value of one projection do.
known_to_dynamo._hop_name_to_variable_class[WITH_FUNCTIONS.__name__] = known_to_dynamo.WrapHigherOrderVariable


def attention_with_functions(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    call: Call,
    score: Callable[..., Any] | None,
    mask: Callable[..., Any] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``out``, ``lse`` and the largest scores, as of ``attention``; only Dynamo may read this.

    Args:
        q: as of ``attention``; so are ``k``, ``v`` and ``sinks``.
        k: see above.
        v: see above.
        sinks: see above.
        call: the rest of the call, with what modifications it has beside the functions.
        score: a function where the call has no score modification.
        mask: a function; both masks apply where the call has one.
    """
    out, lse, largest, *_ = WITH_FUNCTIONS(_body, q, k, v, sinks, call, score, mask)
    return out, lse, largest


def _body(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    call: Call,
    score: Callable[..., Any] | None,
    mask: Callable[..., Any] | None,
) -> tuple[Tensor, ...]:
    """What Dynamo reads; :func:`rewritten` knows its results."""
    out, lse, largest = torch.ops.torch_flexattn.forward(q, k, v, sinks, *pack(call), call.want_max)
    # Of one element, not none: PyTorch asks for the value of an index without dimensions.
    b, h, i, j = (torch.zeros(1, dtype=torch.int32, device=q.device) for _ in range(4))
    s = torch.zeros(1, device=q.device)
    indices = torch.stack((b, h, i, j))
    changed = s if score is None else score(s, b, h, i, j)
    visible = s if mask is None else mask(b, h, i, j)
    return out, lse, largest, indices, s.clone(), _result(changed, s), _result(visible, s)


@torch.compiler.disable
def _recorded_now(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    call: Call,
    score: Callable[..., Any] | None,
    mask: Callable[..., Any] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The call where Dynamo could not read its functions, and left the graph (without ``fullgraph=True``)."""
    whole = call.mask
    if mask is not None:
        whole = as_mask(mask) & whole if isinstance(whole, MaskMod) else as_mask(mask)
    call = replace(call, mask=whole, score=call.score if score is None else as_score(score))
    return torch.ops.torch_flexattn.forward(q, k, v, sinks, *pack(call), call.want_max)


def _result(result: Any, like: Tensor) -> Any:
    """Of a modification, apart from its arguments, which a body may not give back."""
    if isinstance(result, bool | int | float):
        dtype = torch.bool if isinstance(result, bool) else torch.float32
        result = torch.full((), result, dtype=dtype, device=like.device)
    return result.clone()


def rewritten(subgraph: fx.GraphModule) -> fx.GraphModule:
    """A body with its functions as programs of its operator; it computes nothing else.

    Args:
        subgraph: as Dynamo read it.
    """
    (ending,) = subgraph.graph.find_nodes(op="output")
    out, lse, largest, indices, s, changed, visible = ending.args[0]
    inputs, score = indices.args[0], s.args[0]
    of_score = None if changed.args[0] is score else record(changed.args[0], "score", [score, *inputs])
    of_mask = None if visible.args[0] is score else record(visible.args[0], "mask", inputs)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(subgraph.graph, copies)
    call = copies[out.args[0]]
    with graph.inserting_before(call):
        _fill(call, of_score, of_mask, copies)
    graph.output((copies[out], copies[lse], copies[largest], None, None, None, None))
    graph.eliminate_dead_code()
    return fx.GraphModule(subgraph, graph)


def _fill(call: fx.Node, score: Recorded | None, mask: Recorded | None, copies: dict[fx.Node, fx.Node]) -> None:
    """Give the operator the programs, what they capture, and their numbers, in the order of a packed call."""
    arguments: list[Any] = list(call.args)
    graph = call.graph
    captures, numbers = list(arguments[CAPTURES]), arguments[NUMBERS]
    old_score, old_mask, _ = programs(arguments[PROGRAM])
    options = parts_of(arguments[PROGRAM])[-1]

    added = [[] if part is None else [copies[n] for n in part.numbers] for part in (score, mask)]
    if any(added):
        before, behind = ([_as_tensor(graph, n) for n in nodes] for nodes in added)
        ends = [graph.call_function(operator.getitem, (numbers, part)) for part in (slice(-2), slice(-2, None))]
        numbers = graph.call_function(torch.cat, ([*before, ends[0], *behind, ends[1]],))
    if score is not None:
        old_score, captures = score.program, [*(copies[n] for n in score.captures), *captures]
    if mask is not None:
        old_mask = mask.program if old_mask is None else _both(old_mask, mask.program)
        captures += [copies[n] for n in mask.captures]
    arguments[CAPTURES], arguments[NUMBERS] = captures, numbers
    texts = ["" if part is None else part.text for part in (old_score, old_mask)]
    arguments[PROGRAM] = on_one_line(*texts, options)
    call.args = tuple(arguments)


def _as_tensor(graph: fx.Graph, number: fx.Node) -> fx.Node:
    """An open number as float64 ``[1]``."""
    made = graph.call_function(torch.scalar_tensor, (number,), {"dtype": torch.float64})
    return graph.call_function(torch.unsqueeze, (made, 0))


def _both(first: Program, second: Program) -> Program:
    """Visible in both; captures and numbers of the first stand before those of the second."""
    one, other = (
        MaskMod(p, tuple(torch.empty([0] * dims) for _, dims in p.captures), (0,) * len(p.scalars))
        for p in (first, second)
    )
    return (one & other).program
