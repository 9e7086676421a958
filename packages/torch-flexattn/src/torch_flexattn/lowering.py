"""From the graph that is recorded of a mod to a :class:`Program`.

Composite functions are broken down here (``gelu``, ``softplus``, ``clamp``, …), types are made explicit, and reads of
captured tensors, one index after the other or all at once, become one ``gather`` of as many indices as the tensor has
dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

from .errors import UnsupportedModError
from .program import NAMES, Builder, Program

aten = torch.ops.aten
NEEDS_VALUE = (
    "needs the value of an index or score while it is recorded (if, and, or, not, int(), .item()): "
    "use torch.where, &, |, ~"
)
RANDOM = ("rand", "bernoulli", "dropout", "native_dropout", "exponential_", "uniform_", "normal", "empty_like")
FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Number:
    """A value that a node of the program computes."""

    node: int


@dataclass(frozen=True)
class Indexed:
    """A captured tensor of which some leading dimensions are indexed."""

    capture: int
    indices: tuple[int, ...] = ()


class Lowering:
    """Lowers one graph.

    Args:
        where: ``file:line`` of the user's code that a graph node comes from.
        captured: what the function brings along; other numbers in the graph were made inside it.

    Attributes:
        builder: collects the nodes.
        tensors: the captured tensors, in the order of the program's ``captures``.
    """

    def __init__(self, where: Callable[[fx.Node], str], captured: Sequence[Tensor] = ()) -> None:
        self.builder = Builder()
        self.tensors: list[Tensor] = []
        self._where, self._captured = where, captured
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
        return self.add("gather", dtype, *indexed.indices, value=indexed.capture)

    def _call(self, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        packet = getattr(node.target, "overloadpacket", node.target)
        name = getattr(packet, "__name__", str(packet))
        if packet is aten.index:
            return self._index(args[0], args[1])
        if packet is aten.select and isinstance(args[0], Indexed) and args[1] == 0:
            return self._index(args[0], [args[2]])
        if packet in RESHAPES:
            return args[0]
        result = node.meta.get("val")
        rule = RULES.get(packet)
        if packet is aten._local_scalar_dense:
            raise self.refuse(NEEDS_VALUE)
        if rule is None or not isinstance(result, Tensor):
            raise self.refuse(f"calls {name}, which a kernel cannot evaluate for one query and one key{_remedy(name)}")
        if result.dim() != 0:
            raise self.refuse(f"computes a whole tensor ({name}): compute it once outside, and capture the result")
        options = {name: value for name, value in kwargs.items() if name not in PLACEMENT}
        return rule(self, NAMES[result.dtype], *args, **options)

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
        return self._read(Indexed(tensor.capture, tuple(found)))

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
        if dtype.startswith("int") and own == "int64" and not _fits(value, dtype):
            raise self.refuse(f"uses {value}, which {dtype} cannot hold: write .long() after what it meets")
        return self.builder.const(value, dtype if own != "float32" or dtype in FLOATS else own, self.line)

    def add(self, op: str, dtype: str, *args: int, value: int | None = None) -> Number:
        """Append a node."""
        return Number(self.builder.add(op, dtype, *args, value=value, line=self.line))

    def refuse(self, what: str) -> UnsupportedModError:
        """The error that says what the mod does, and where."""
        return UnsupportedModError(f"the mod{f' at {self.line}' if self.line else ''} {what}")


def _fits(value: int, dtype: str) -> bool:
    info = torch.iinfo(getattr(torch, dtype))
    return info.min <= value <= info.max


def _remedy(name: str) -> str:
    if name.startswith(RANDOM):
        return ": draw random numbers outside and capture them, or use dropout_p"
    return (
        ": it writes in place, use what returns a new value" if name.endswith("_") and not name.endswith("__") else ""
    )


Rule = Callable[..., Any]
PLACEMENT = ("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "copy")
"""Options that say where a result lies: its type is known from the recording."""
RESHAPES = (aten.detach, aten.alias, aten.clone, aten.view, aten.lift_fresh_copy, aten.lift_fresh)
"""What leaves one number as it is."""


def _common(lower: Lowering, dtype: str, *operands: Any) -> str:
    """The type in which operands of a comparison meet: PyTorch's promotion, a Python number taking the other's."""
    typed = [lower.dtype_of(o) for o in operands if isinstance(o, Number)]
    found = typed[0]
    for other in typed[1:]:
        found = NAMES[torch.promote_types(getattr(torch, found), getattr(torch, other))]
    for value in (o for o in operands if not isinstance(o, Number)):
        other = lower.dtype_of(value)
        if other == "float32" and found not in FLOATS:
            found = "float32"
        elif other == "int64" and (found == "bool" or (found == "int32" and not _fits(value, found))):
            found = "int64"
    return found


def _binary(op: str, *, compare: bool = False) -> Rule:
    def rule(lower: Lowering, dtype: str, a: Any, b: Any, **options: Any) -> Number:
        if options.get("alpha", 1) != 1:
            b = _binary("mul")(lower, dtype, b, options["alpha"])
        meet = _common(lower, dtype, a, b) if compare else dtype
        return lower.add(op, dtype, lower.operand(a, meet), lower.operand(b, meet))

    return rule


def _unary(op: str) -> Rule:
    return lambda lower, dtype, a: lower.add(op, dtype, lower.operand(a, dtype))


def _div(lower: Lowering, dtype: str, a: Any, b: Any, rounding_mode: str | None = None) -> Number:
    if rounding_mode == "floor":
        return lower.add("floordiv", dtype, lower.operand(a, dtype), lower.operand(b, dtype))
    if rounding_mode == "trunc":
        if dtype in FLOATS:
            return _unary("trunc")(lower, dtype, _div(lower, dtype, a, b))
        sign = [_unary("sign")(lower, dtype, x) for x in (a, b)]  # |a| // |b| with the sign of the exact quotient
        size = [_unary("abs")(lower, dtype, x) for x in (a, b)]
        product = _binary("mul")(lower, dtype, *sign)
        return _binary("mul")(lower, dtype, _div(lower, dtype, *size, rounding_mode="floor"), product)
    return lower.add("div", dtype, lower.operand(a, dtype), lower.operand(b, dtype))


def _fmod(lower: Lowering, dtype: str, a: Any, b: Any) -> Number:
    quotient = _div(lower, dtype, a, b, rounding_mode="trunc")
    return _binary("sub")(lower, dtype, a, _binary("mul")(lower, dtype, quotient, b))


def _where(lower: Lowering, dtype: str, condition: Any, a: Any, b: Any) -> Number:
    return lower.add("where", dtype, lower.operand(condition, "bool"), lower.operand(a, dtype), lower.operand(b, dtype))


def _clamp(lower: Lowering, dtype: str, a: Any, low: Any = None, high: Any = None, **named: Any) -> Number:
    result = Number(lower.operand(a, dtype))
    for bound, extremum, beyond in ((named.get("min", low), "max", "lt"), (named.get("max", high), "min", "gt")):
        if bound is None:
            continue
        if dtype in FLOATS:  # not an extremum: at the bound itself all of the gradient is the operand's
            result = _beyond(lower, dtype, result, beyond, bound)
        else:
            result = _binary(extremum)(lower, dtype, result, bound)
    return result


def _beyond(lower: Lowering, dtype: str, a: Number, compare: str, bound: Any) -> Number:
    """``bound`` where ``a`` is beyond it, else ``a``, also where that is NaN."""
    other = lower.operand(bound, dtype)
    return lower.add("where", dtype, lower.add(compare, "bool", a.node, other).node, other, a.node)


def _relu(lower: Lowering, dtype: str, a: Any) -> Number:
    x = Number(lower.operand(a, dtype))
    return _beyond(lower, dtype, x, "le", 0.0) if dtype in FLOATS else _binary("max")(lower, dtype, x, 0)


def _extremum_of_numbers(op: str) -> Rule:
    """The smaller or larger one, of a number and NaN the number."""

    def rule(lower: Lowering, dtype: str, a: Any, b: Any) -> Number:
        x, y = lower.operand(a, dtype), lower.operand(b, dtype)
        if dtype not in FLOATS:
            return lower.add(op, dtype, x, y)
        no_y, no_x = (lower.add("ne", "bool", n, n).node for n in (y, x))
        rest = lower.add("where", dtype, no_x, y, lower.add(op, dtype, x, y).node)
        return lower.add("where", dtype, no_y, x, rest.node)

    return rule


def _cast(lower: Lowering, dtype: str, a: Any, *_: Any, **__: Any) -> Number:
    return Number(lower.operand(a, dtype))


def _logical(op: str) -> Rule:
    def rule(lower: Lowering, dtype: str, *operands: Any) -> Number:
        return lower.add(op, "bool", *(lower.operand(_truth(lower, o), "bool") for o in operands))

    return rule


def _truth(lower: Lowering, a: Any) -> Any:
    dtype = lower.dtype_of(a)
    return a if dtype == "bool" else lower.add("ne", "bool", lower.operand(a, dtype), lower.operand(0, dtype))


def _constant(value: float) -> Rule:
    return lambda lower, dtype, *_, **__: Number(lower.builder.const(value, dtype, lower.line))


def _full(lower: Lowering, dtype: str, size: Sequence[int], value: Any, **_: Any) -> Number:
    return Number(lower.operand(value, dtype))


def _rsub(lower: Lowering, dtype: str, a: Any, b: Any, alpha: float = 1) -> Number:
    return _binary("sub")(lower, dtype, b, a if alpha == 1 else _binary("mul")(lower, dtype, a, alpha))


def _math(build: Callable[[Callable[..., Any], Any], Any]) -> Rule:
    """A composite of one operand: ``build(apply, x)``, ``apply(op, *operands)`` in the type of the result."""

    def rule(lower: Lowering, dtype: str, a: Any, *_: Any, **__: Any) -> Number:
        def apply(op: str, *operands: Any) -> Number:
            return lower.add(op, dtype, *(lower.operand(o, dtype) for o in operands))

        return build(apply, Number(lower.operand(a, dtype)))

    return rule


def _gelu(lower: Lowering, dtype: str, a: Any, approximate: str = "none") -> Number:
    def exact(f: Any, x: Any) -> Any:
        return f("mul", f("mul", x, 0.5), f("add", f("erf", f("mul", x, math.sqrt(0.5))), 1.0))

    def by_tanh(f: Any, x: Any) -> Any:
        cubic = f("add", x, f("mul", f("mul", f("mul", x, x), x), 0.044715))
        return f("mul", f("mul", x, 0.5), f("add", f("tanh", f("mul", cubic, math.sqrt(2 / math.pi))), 1.0))

    return _math(exact if approximate == "none" else by_tanh)(lower, dtype, a)


def _softplus(lower: Lowering, dtype: str, a: Any, beta: float = 1.0, threshold: float = 20.0) -> Number:
    x = Number(lower.operand(a, dtype))
    scaled = _binary("mul")(lower, dtype, x, float(beta))
    linear = lower.add("gt", "bool", lower.operand(scaled, dtype), lower.operand(float(threshold), dtype))
    small = _where(lower, dtype, linear, 0.0, scaled)  # exp of a large one would make the gradient 0 · ∞
    soft = _unary("log1p")(lower, dtype, _unary("exp")(lower, dtype, small))
    return _where(lower, dtype, linear, x, _binary("div")(lower, dtype, soft, float(beta)))


def _leaky(lower: Lowering, dtype: str, a: Any, slope: float = 0.01) -> Number:
    x = Number(lower.operand(a, dtype))
    positive = lower.add("gt", "bool", x.node, lower.operand(0.0, dtype))
    return _where(lower, dtype, positive, x, _binary("mul")(lower, dtype, x, slope))


def _square(lower: Lowering, dtype: str, a: Any) -> Number:
    x = lower.operand(a, dtype)
    return lower.add("mul", dtype, x, x)


def _pow(lower: Lowering, dtype: str, a: Any, b: Any) -> Number:
    if b == 2:
        return _square(lower, dtype, a)
    if b == 0.5:
        return _unary("sqrt")(lower, dtype, a)
    if dtype not in FLOATS:
        raise lower.refuse("raises an integer to a power other than 2: cast it to float, or multiply")
    return lower.add("pow", dtype, lower.operand(a, dtype), lower.operand(b, dtype))


RULES: dict[Any, Rule] = {
    aten.add: _binary("add"), aten.sub: _binary("sub"), aten.mul: _binary("mul"), aten.rsub: _rsub, aten.div: _div,
    aten.floor_divide: lambda lower, dtype, a, b: _div(lower, dtype, a, b, rounding_mode="floor"),
    aten.true_divide: _div, aten.remainder: _binary("mod"), aten.fmod: _fmod, aten.pow: _pow,
    aten.minimum: _binary("min"), aten.maximum: _binary("max"), aten.fmin: _extremum_of_numbers("min"),
    aten.fmax: _extremum_of_numbers("max"),
    aten.clamp: _clamp, aten.clip: _clamp,
    aten.clamp_min: lambda lower, dtype, a, low: _clamp(lower, dtype, a, low),
    aten.clamp_max: lambda lower, dtype, a, high: _clamp(lower, dtype, a, None, high),
    **{getattr(aten, op): _binary(op, compare=True) for op in ("eq", "ne", "lt", "le", "gt", "ge")},
    aten.bitwise_and: _binary("and"), aten.bitwise_or: _binary("or"), aten.bitwise_xor: _binary("xor"),
    aten.bitwise_not: _unary("not"), aten.__lshift__: _binary("shl"), aten.__rshift__: _binary("shr"),
    aten.bitwise_left_shift: _binary("shl"), aten.bitwise_right_shift: _binary("shr"),
    aten.__and__: _binary("and"), aten.__or__: _binary("or"), aten.__xor__: _binary("xor"),
    aten.logical_and: _logical("and"), aten.logical_or: _logical("or"), aten.logical_xor: _logical("xor"),
    aten.logical_not: _logical("not"), aten.where: _where, aten.neg: _unary("neg"), aten.abs: _unary("abs"),
    aten.sign: _unary("sign"), aten.sgn: _unary("sign"),
    **{
        getattr(aten, op): _unary(op)
        for op in (
            "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf", "sigmoid",
            "floor", "ceil", "round", "trunc",
        )
    },
    aten.relu: _relu, aten.square: _square, aten.gelu: _gelu, aten.softplus: _softplus,
    aten.reciprocal: _math(lambda f, x: f("div", 1.0, x)), aten.leaky_relu: _leaky,
    aten.silu: _math(lambda f, x: f("mul", x, f("sigmoid", x))),
    aten.to: _cast, aten._to_copy: _cast, aten.scalar_tensor: _cast,
    aten.ones_like: _constant(1), aten.zeros_like: _constant(0), aten.full: _full,
    aten.new_ones: _constant(1), aten.new_zeros: _constant(0), aten.ones: _constant(1), aten.zeros: _constant(0),
    aten.full_like: lambda lower, dtype, a, value, **_: Number(lower.operand(value, dtype)),
    aten.isnan: lambda lower, dtype, a: lower.add("ne", "bool", *[lower.operand(a, lower.dtype_of(a))] * 2),
}  # fmt: skip
