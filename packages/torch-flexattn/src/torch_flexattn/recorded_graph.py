"""A function of numbers without values, as a graph of PyTorch's operations.

The graph is the one that ``make_fx`` records; the tests compare the two. ``make_fx`` itself imports Inductor, with it
Dynamo and SymPy, which takes a second or more of a first call; so do many operations on the meta device. Here a number
is a tensor that holds a 1, or what becomes of it, which nobody can ask for; captured tensors are on the meta device.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

CPU, META = torch.device("cpu"), torch.device("meta")
VALUE_WANTED = "data-dependent: aten._local_scalar_dense"
"""What is said where Python needs the value of a number."""


class GraphOfCalls(TorchDispatchMode):
    """Collects the operations that are called while it is entered.

    Args:
        inputs: numbers: the placeholders.

    Attributes:
        graph: what was called; ``meta["val"]`` of a node has the shape and the type of its result.
        tensors: the captured tensors, by the targets of their nodes.
        line: of the user's code, noted with each node.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.tensors: dict[str, Tensor] = {}
        self.line = ""
        self._nodes: dict[int, fx.Node] = {}
        self._stand_ins: dict[int, Tensor] = {}
        self._alive: list[Any] = []
        for number, tensor in enumerate(inputs):
            self._noted(self.graph.placeholder(f"input_{number}"), tensor)

    def _called(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError(VALUE_WANTED)
        args, kwargs = tree_map(self._stand_in, (tuple(args), dict(kwargs or {})))
        arguments = tree_map(self._node_of, (args, kwargs))
        result = tree_map(_number, _result(func, args, kwargs))
        if isinstance(result, bool | int | float):
            raise RuntimeError(VALUE_WANTED)
        node = self.graph.call_function(func, *arguments)
        self._noted(node, result)
        if isinstance(result, tuple | list):
            for number, part in enumerate(result):
                if isinstance(part, Tensor):
                    self._noted(self.graph.call_function(operator.getitem, (node, number)), part)
        return result

    def finish(self, result: Tensor) -> fx.Graph:
        """The graph whose result is ``result``, without what it does not need."""
        self.graph.output(self._node_of(self._stand_in(result)))
        self.graph.eliminate_dead_code()
        return self.graph

    def _noted(self, node: fx.Node, result: Any) -> None:
        node.meta["val"] = result
        if self.line:
            node.meta["stack_trace"] = self.line
        self._alive.append(result)
        if isinstance(result, Tensor):
            self._nodes[id(result)] = node

    def _stand_in(self, value: Any) -> Any:
        """A tensor that stands for a captured one; others are results of the graph."""
        if not isinstance(value, Tensor) or id(value) in self._nodes:
            return value
        found = self._stand_ins.get(id(value))
        if found is None:
            found = _number(torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META))
            name = f"captured_{len(self.tensors)}"
            self._noted(self.graph.create_node("get_attr", name), found)
            self._stand_ins[id(value)] = found
            self.tensors[name] = value
        return found

    def _node_of(self, value: Any) -> Any:
        return self._nodes[id(value)] if isinstance(value, Tensor) else value


# Set here, as PyTorch wraps what a class body defines, and what it wraps imports Dynamo when it is first called.
GraphOfCalls.__torch_dispatch__ = GraphOfCalls._called  # type: ignore[method-assign]


def _result(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operation gives: with tensors of more than one number, on the meta device."""
    place = META if any(isinstance(a, Tensor) and a.is_meta for a in tree_leaves((args, kwargs))) else CPU
    if place is META:
        args, kwargs = tree_map(lambda a: a.to(META) if isinstance(a, Tensor) else a, (args, kwargs))
    if any(option.name == "device" for option in func._schema.arguments):
        kwargs = kwargs | {"device": place}
    try:
        return func(*args, **kwargs)
    except RuntimeError as error:
        if "ZeroDivisionError" not in str(error):
            raise
    args = tree_map(lambda a: torch.ones_like(a) if isinstance(a, Tensor) else a, args)
    return func(*args, **kwargs)


def _number(value: Any) -> Any:
    """Of a single number on the meta device, one that holds a 1."""
    if isinstance(value, Tensor) and value.is_meta and value.dim() == 0:
        return torch.ones((), dtype=value.dtype, device=CPU)
    return value


def _unseen_by_checkpoints() -> AbstractContextManager[Any]:
    """What is recorded once must not count among what a forward pass keeps, which checkpoints compare with a second."""
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():  # type: ignore[attr-defined]
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)


def recorded(run: Callable[..., Tensor], dtypes: Sequence[torch.dtype]) -> tuple[fx.Graph, dict[str, Tensor]]:
    """The graph of a function of numbers, and the tensors that it captures.

    Gradients are on while it runs, whatever they are at the call, so that its own ``no_grad`` is seen.

    Args:
        run: called with a :class:`GraphOfCalls`, and a number of each type.
        dtypes: of the numbers.
    """
    with _disable_current_modes(), torch.enable_grad(), _unseen_by_checkpoints():
        inputs = [torch.ones((), dtype=dtype, device="cpu") for dtype in dtypes]
        calls = GraphOfCalls(inputs)
        with calls:
            result = run(calls, *inputs)
        return calls.finish(result), calls.tensors
