"""From the graph that is recorded of a mod to a :class:`Program`.

Operations become nodes by ``rules`` and ``compositions``. Reads of captured tensors, one index after the other or all
at once, become one ``gather`` of as many indices as the tensor has dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, fx
from torch.fx.node import map_aggregate

from .compositions import RULES
from .errors import UnsupportedModError
from .program import NAMES, Builder, Program
from .remedies import remedy
from .rules import FLOATS, Number, aten, fits

NEEDS_VALUE = (
    "needs the value of an index or score while it is recorded (if, and, or, not, a < b < c, max(), int(), .item()): "
    "use torch.where, &, |, ~, torch.maximum"
)
SAME = (aten.detach, aten.alias, aten.clone, aten.view, aten.lift_fresh_copy, aten.lift_fresh)
"""What leaves one number as it is."""
CONSTANT = ("const", "scalar", "detach")
"""What has no gradient anyway."""
PLACEMENT = ("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "copy")
"""Options that say where a result lies: its type is known from the recording."""


@dataclass(frozen=True)
class Indexed:
    """A captured tensor of which some leading dimensions are indexed; ``detached``: no gradient goes to it."""

    capture: int
    indices: tuple[int, ...] = ()
    detached: bool = False


class Lowering:
    """Lowers one graph.

    Args:
        where: ``file:line`` of the user's code that a graph node comes from.
        captured: what the function brings along; other numbers in the graph were made inside it.
        has_gradient: whether the program will be differentiated, so that ``detach`` counts.

    Attributes:
        builder: collects the nodes.
        tensors: the captured tensors, in the order of the program's ``captures``.
    """

    def __init__(
        self, where: Callable[[fx.Node], str], captured: Sequence[Tensor] = (), *, has_gradient: bool = False
    ) -> None:
        self.builder = Builder()
        self.tensors: list[Tensor] = []
        self._where, self._captured, self._has_gradient = where, captured, has_gradient
        self.line = ""

    def run(
        self, graph: fx.Graph, tensors: Mapping[str, Tensor], inputs: Sequence[tuple[str, str, int | None]]
    ) -> Program:
        """The program of a graph.

        Args:
            graph: what was recorded.
            tensors: those that its ``get_attr`` nodes name.
            inputs: op, dtype and value of the program's node for each placeholder.
        """
        values: dict[fx.Node, Any] = {}
        given = iter(inputs)
        for node in graph.nodes:
            self.line = self._where(node)
            if node.op == "placeholder":
                op, dtype, value = next(given)
                values[node] = Number(self.builder.add(op, dtype, value=value))
            elif node.op == "get_attr":
                values[node] = self._capture(tensors[str(node.target)])
            elif node.op == "output":
                result = node.args[0]
                result = values[result] if isinstance(result, fx.Node) else result
                return self.builder.finish([self.operand(result, self.dtype_of(result))])
            else:
                args, kwargs = map_aggregate(
                    (node.args, node.kwargs), lambda a: values.get(a, a) if isinstance(a, fx.Node) else a
                )
                values[node] = self._call(node, args, kwargs)
        raise AssertionError("a graph without output")

    def _capture(self, tensor: Tensor) -> Number | Indexed:
        if tensor.dim() == 0 and not any(known is tensor for known in self._captured):
            return Number(self.builder.const(tensor.item(), NAMES[tensor.dtype], self.line))
        numbers = [n for n, known in enumerate(self.tensors) if known is tensor]
        if not numbers:
            numbers = [len(self.tensors)]
            self.tensors.append(tensor)
            if tensor.dtype not in NAMES:
                raise self.refuse(f"captures a tensor of {tensor.dtype}; kernels read {', '.join(NAMES.values())}")
            self.builder.captures.append((NAMES[tensor.dtype], tensor.dim()))
        return self._read(Indexed(numbers[0]))

    def _read(self, indexed: Indexed) -> Number | Indexed:
        """A gather, once all dimensions are indexed."""
        dtype, dims = self.builder.captures[indexed.capture]
        if len(indexed.indices) < dims:
            return indexed
        read = self.add("gather", dtype, *indexed.indices, value=indexed.capture)
        return self._detached(read) if indexed.detached else read

    def _call(self, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        packet = getattr(node.target, "overloadpacket", node.target)
        name = getattr(packet, "__name__", str(packet))
        if packet is aten.index:
            return self._index(args[0], args[1])
        if packet is aten.select and isinstance(args[0], Indexed) and args[1] == 0:
            return self._index(args[0], [args[2]])
        if packet in SAME:
            self._check_same(node, args[0])
            return self._detached(args[0]) if packet is aten.detach else args[0]
        result = node.meta.get("val")
        rule = RULES.get(packet)
        if packet is aten._local_scalar_dense:
            raise self.refuse(NEEDS_VALUE)
        if rule is None or not isinstance(result, Tensor):
            raise self.refuse(f"calls {name}, which a kernel cannot evaluate for one query and one key{remedy(name)}")
        if result.dim() != 0:
            raise self.refuse(f"computes a whole tensor ({name}): compute it once outside, and capture the result")
        options = {name: value for name, value in kwargs.items() if name not in PLACEMENT}
        return rule(self, NAMES[result.dtype], *args, **options)

    def _check_same(self, node: fx.Node, value: Any) -> None:
        """Raise where a view is not the same number, or not a captured tensor of the same shape."""
        before, after = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
        if before.dtype != after.dtype:
            raise self.refuse(f"reads the bits of {before.dtype} as {after.dtype}: .to(dtype) converts numbers")
        if isinstance(value, Indexed) and before.shape != after.shape:
            raise self.refuse(
                f"views a captured tensor of shape {tuple(before.shape)} as {tuple(after.shape)}: do so once outside, "
                "and capture the result"
            )

    def _detached(self, value: Any) -> Any:
        if isinstance(value, Indexed):
            return replace(value, detached=True)
        nodes = self.builder.nodes
        if not self._has_gradient or nodes[value.node].dtype not in FLOATS or nodes[value.node].op in CONSTANT:
            return value
        return self.add("detach", nodes[value.node].dtype, value.node)

    def _index(self, tensor: Any, indices: Sequence[Any]) -> Number | Indexed:
        if not isinstance(tensor, Indexed):
            raise self.refuse("indexes a value that is no captured tensor")
        found = list(tensor.indices)
        for index in indices:
            if index is None:
                raise self.refuse("skips a dimension with ':' before an index: index the leading dimensions")
            if not self.dtype_of(index).startswith("int"):
                raise self.refuse(f"indexes with {self.dtype_of(index)}, not with integers")
            found.append(self.operand(index, self.dtype_of(index)))
        return self._read(replace(tensor, indices=tuple(found)))

    def dtype_of(self, value: Any) -> str:
        """Of an operand; Python's numbers are bool, int64 and float32."""
        if isinstance(value, Number):
            return self.builder.nodes[value.node].dtype
        if isinstance(value, Indexed):
            raise self.refuse("uses a captured tensor without indexing all of its dimensions")
        if not isinstance(value, bool | int | float):
            raise self.refuse(f"uses {value!r} where a number is needed")
        return "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float32"

    def operand(self, value: Any, dtype: str) -> int:
        """The number of the node of an operand, cast to ``dtype``."""
        own = self.dtype_of(value)
        if isinstance(value, Number):
            return self.builder.cast(value.node, dtype, self.line)
        if dtype.startswith("int") and own == "int64" and not fits(value, dtype):
            raise self.refuse(f"uses {value}, which {dtype} cannot hold: write .long() after what it meets")
        return self.builder.const(value, dtype if own != "float32" or dtype in FLOATS else own, self.line)

    def add(self, op: str, dtype: str, *args: int, value: int | None = None) -> Number:
        """Append a node."""
        return Number(self.builder.add(op, dtype, *args, value=value, line=self.line))

    def refuse(self, what: str) -> UnsupportedModError:
        """The error that says what the mod does, and where."""
        return UnsupportedModError(f"the mod{f' at {self.line}' if self.line else ''} {what}")
