"""A program as Triton statements, each as far outside the loop over keys as what it depends on allows.

Indices have the shapes ``b``, ``h`` scalars, ``q`` ``[BLOCK_M, 1]``, ``kv`` ``[1, BLOCK_N]``; so a value that depends
on the key alone is computed once a column, not once an element. Triton divides towards zero, as C does: where operands
may be negative the quotient is corrected to what Python gives. A gather out of range reads nothing and gives 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...program import INPUTS, Node, Program
from .factors import FLOAT, split
from .slanted import Box, Slope, slanted_read, slope

Side = Literal["q", "kv"]
Place = Literal["once", "kept", "moving", "inner"]
PLACES: tuple[Place, ...] = ("once", "kept", "moving", "inner")
"""What depends on batch and head alone; on the side of which a program keeps one block as well; on the side along which
it moves, at every tile; on both."""
TYPES = {
    "bool": "tl.int1", "int32": "tl.int32", "int64": "tl.int64", "float16": "tl.float16", "bfloat16": "tl.bfloat16",
    "float32": "tl.float32", "float64": "tl.float64",
}  # fmt: skip
FLOATS = ("float16", "bfloat16", "float32", "float64")
IN_16_BITS = ("cast", "where", "neg", "abs", "sign", "min", "max")
"""Operations that need no more bits than their operands have."""
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
}  # fmt: skip
_CALLS = {
    "exp": "tl.exp({0})", "exp2": "tl.exp2({0})", "log": "tl.log({0})", "log2": "tl.log2({0})", "sqrt": "tl.sqrt({0})",
    "rsqrt": "tl.rsqrt({0})", "sin": "tl.sin({0})", "cos": "tl.cos({0})", "erf": "tl.erf({0})",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})", "abs": "tl.abs({0})", "where": "tl.where({0}, {1}, {2})", "neg": "(-{0})",
    "expm1": "(tl.exp({0}) - 1.0)", "log1p": "tl.log(1.0 + {0})", "sigmoid": "(1.0 / (1.0 + tl.exp(-{0})))",
    "tanh": "tanh({0})", "tanh_approx": "tanh({0})",
    "trunc": "tl.where({0} < 0, tl.ceil({0}), tl.floor({0}))",
    "round": "round_half_even({0})", "pow": "power({0}, {1})",
}  # fmt: skip


@dataclass(frozen=True)
class Product:
    """A value of a tile that is not multiplied yet: ``base`` changes in the tile, ``factor`` does not."""

    base: str
    factor: str


@dataclass(frozen=True)
class Word:
    """How an operation is written where it takes a whole tile: ``text`` of its argument times ``factor``."""

    text: str
    factor: float


@dataclass(frozen=True)
class Printed:
    """Statements by place, the results, all values, and those of them that are products (see ``factors``)."""

    lines: dict[Place, list[str]]
    outputs: list[str]
    values: list[str]
    products: dict[int, Product]

    @property
    def outside(self) -> list[str]:
        """Statements before the loop over tiles."""
        return self.lines["once"] + self.lines["kept"]

    @property
    def inside(self) -> list[str]:
        """Statements of every tile."""
        return self.lines["moving"] + self.lines["inner"]


def place_of(dependencies: frozenset[str], kept: Side = "q") -> Place:
    """The outermost place where a value with these dependencies is known."""
    sides = dependencies - {"b", "h"}
    if not sides:
        return "once"
    if sides == {kept}:
        return "kept"
    return "moving" if sides < {"q", "kv"} else "inner"


def print_program(
    program: Program,
    prefix: str,
    names: dict[str, str],
    first: tuple[int, int] = (0, 0),
    box: Box | None = None,
    kept: Side = "q",
    scale: str = "",
    words: Mapping[str, Word] | None = None,
) -> Printed:
    """Triton statements for a program.

    Args:
        program: what to compute.
        prefix: of the names of its values.
        names: of the inputs, by input.
        first: how many captured tensors and scalars of the kernel belong to programs before this one.
        box: the tile, where ``b`` and ``h`` are single numbers.
        kept: the side of which a program keeps one block: queries forward, keys backward.
        scale: what the score under its name has still to be multiplied by; nothing if empty.
        words: other ways to write operations on scores, by operation.
    """
    lines: dict[Place, list[str]] = {place: [] for place in PLACES}
    values: list[str] = []
    products: dict[int, Product] = {}
    not_negative: list[bool] = []
    for number, (node, depends) in enumerate(zip(program.nodes, program.dependencies, strict=True)):
        args = [values[a] for a in node.args]
        known = [not_negative[a] for a in node.args]
        not_negative.append(_is_not_negative(node, [program.nodes[a] for a in node.args], known))
        if node.op in INPUTS:
            values.append(names[node.op])
            if node.op == "score" and scale:
                products[len(values) - 1] = Product(names["score"], scale)
                values[-1] = f"({names['score']} * {scale})"
            continue
        if node.op == "const":
            values.append(_literal(node))
            continue
        if node.op == "detach":
            values.append(args[0])
            continue
        if node.op == "scalar":
            number = f"s{first[1] + int(node.value)}"  # type: ignore[arg-type]
            as_given = node.dtype == program.scalars[int(node.value)]  # type: ignore[arg-type]
            values.append(number if as_given else _cast(number, node.dtype, ""))
            continue
        name = f"{prefix}{number}"
        parts = split(program, number)
        if parts is not None:
            whole = products.get(parts.inner, Product(values[parts.inner], ""))
            by = f"{whole.factor or '1.0'} {'/' if parts.divides else '*'} {values[parts.factor]}"
            lines["once"].append(f"{name} = {by}" + (f"  # {node.line}" if node.line else ""))
            products[number] = Product(whole.base, name)
            values.append(f"({whole.base} * {name})")
            continue
        word = words.get(node.op) if words is not None and "score" in depends and node.dtype == FLOAT else None
        if word is not None:
            given = products.get(node.args[0], Product(args[0], "1.0"))
            lines["once"].append(f"{name}_by = {given.factor} * {word.factor!r}")
            text = word.text.format(f"{given.base} * {name}_by")
        elif node.op == "gather":
            text = _gather(program, node, args, known, first[0])
        elif node.dtype in ("float16", "bfloat16") and node.op not in IN_16_BITS:  # as PyTorch: in 32, then rounded
            text = _text(program, node, depends, [f"tl.cast({a}, tl.float32)" for a in args], known)
            text = f"tl.cast({text}, {TYPES[node.dtype]})"
        else:
            text = _text(program, node, depends, args, known)
        comment = f"  # {node.line}" if node.line else ""
        slopes = _slopes(program, node, values, depends) if box is not None else None
        if slopes is not None and box is not None:
            statement = slanted_read(name, f"c{first[0] + int(node.value)}", slopes, box, text)  # type: ignore[arg-type]
            lines["inner"] += [f"{statement[0]}{comment}", *statement[1:]]
        else:
            lines[place_of(depends, kept)].append(f"{name} = {text}{comment}")
        values.append(name)
    return Printed(lines, [values[o] for o in program.outputs], values, products)


def scores_of(program: Program, output: str, zeros: str) -> str:
    """The modified score in float32 and of the whole tile (``zeros``), of whatever type and whatever it depends on."""
    node, depends = program.nodes[program.outputs[0]], program.dependencies[program.outputs[0]]
    text = (
        f"({output})"
        if node.dtype == "float32" and node.op not in ("const", "scalar")
        else f"tl.cast({output}, tl.float32)"
    )
    return text if "score" in depends else f"({text} + {zeros})"


def _text(program: Program, node: Node, depends: frozenset[str], args: Sequence[str], known: Sequence[bool]) -> str:
    whole = node.dtype not in FLOATS
    if node.op == "cast":
        if node.dtype == "bool":
            return f"({args[0]} != 0)"
        return _cast(args[0], node.dtype, program.nodes[node.args[0]].dtype)
    if node.op in ("min", "max"):
        of_nan = "" if whole else ", propagate_nan=tl.PropagateNan.ALL"
        return f"tl.{node.op}imum({args[0]}, {args[1]}{of_nan})"
    if node.op == "not":
        return f"(~{args[0]})" if node.dtype != "bool" else f"({args[0]} == 0)"
    if node.op == "sign":
        zero, one = ("0", "1") if whole else ("0.0", "1.0")
        return f"tl.where({args[0]} > 0, {one}, tl.where({args[0]} < 0, -{one}, {zero}))"
    if node.op in ("floordiv", "mod"):
        if not whole:
            quotient = f"tl.floor({args[0]} / {args[1]})"
            return quotient if node.op == "floordiv" else f"({args[0]} - {quotient} * {args[1]})"
        if all(known):
            return f"({args[0]} {'//' if node.op == 'floordiv' else '%'} {args[1]})"
        return f"{'floor_div' if node.op == 'floordiv' else 'floor_mod'}({args[0]}, {args[1]})"
    if node.op == "div" and node.dtype == FLOAT and "score" not in depends:
        return f"tl.div_rn({args[0]}, {args[1]})"  # what is rounded to an index, or compared, must be exact
    if node.op in _INFIX:
        return f"({args[0]} {_INFIX[node.op]} {args[1]})"
    return _CALLS[node.op].format(*args)


def _cast(value: str, dtype: str, own: str) -> str:
    if dtype == "bfloat16" and own != "float32":  # PyTorch rounds to float32 on the way, too
        value = f"tl.cast({value}, tl.float32)"
    return f"tl.cast({value}, {TYPES[dtype]})"


def _gather(program: Program, node: Node, args: Sequence[str], known: Sequence[bool], first: int) -> str:
    """A load with its bounds; indices count from the end where they are negative."""
    capture = first + int(node.value)  # type: ignore[arg-type]
    if not args:
        return f"tl.load(c{capture})"
    offsets, inside = [], []
    for dim, (index, positive) in enumerate(zip(args, known, strict=True)):
        size = f"c{capture}_n{dim}"
        wrapped = index if positive else f"tl.where({index} < 0, {index} + {size}, {index})"
        offsets.append(f"({wrapped}) * c{capture}_s{dim}")
        inside.append(f"({index} < {size})" if positive else f"({index} < {size}) & ({index} >= -{size})")
    return f"tl.load(c{capture} + ({' + '.join(offsets)}), mask={' & '.join(inside)}, other=0)"


def _slopes(program: Program, node: Node, values: Sequence[str], depends: frozenset[str]) -> list[Slope] | None:
    """The indices of a read that depends on query and key, if all of them are slopes."""
    if node.op != "gather" or not depends >= {"q", "kv"}:
        return None
    found = [slope(program, a, values) for a in node.args]
    return None if any(f is None for f in found) else [f for f in found if f is not None]


def _is_not_negative(node: Node, args: Sequence[Node], known: Sequence[bool]) -> bool:
    """Whether an integer is 0 or more for certain: not a product, nor a cast from a wider type, which may wrap."""
    if node.op in ("b", "h", "q", "kv", "abs"):
        return True
    if node.op == "const":
        return 0 <= node.value < 2**30  # type: ignore[operator]
    if node.op == "cast":
        return known[0] and args[0].dtype in ("bool", "int32")
    if node.op in ("add", "floordiv", "mod", "min", "shr", "and", "max"):
        return bool(known) and (any(known) if node.op == "max" else all(known))
    return False


def _literal(node: Node) -> str:
    value = node.value
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f'float("{value}")'
    return repr(value)
