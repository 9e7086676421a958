"""Rules on the docstrings of everything that is public: purpose, shapes, errors, an example, the source."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import textwrap
from collections.abc import Callable
from types import ModuleType

import torch

from tests.conformance.package import Package, has_room, load, public_names, public_objects, public_rooms

SHAPE = re.compile(r"\[[^\[\]\n]*[A-Za-z0-9][^\[\]\n]*\]")
RAISES = re.compile(r"^\s*Raises:?\s*$", re.M)
SOURCE = re.compile(r"^\s*(References?|Sources?|Paper)\b", re.M)


def public_callables(package: Package) -> dict[str, Callable]:
    """Public functions and classes written in the package, exported by it or by one of its public rooms."""
    with_lightning = ["lightning"] if importlib.util.find_spec("lightning") else []
    rooms = public_rooms(package) + with_lightning
    return {
        name: value
        for name, value in public_objects(package, *rooms).items()
        if (inspect.isfunction(value) or inspect.isclass(value))
        and (value.__module__ or "").split(".")[0] == package.import_name
    }


def check_docstrings_present(package: Package) -> list[str]:
    """Every public function, class, public method and module has a docstring."""
    problems = [f"{name} has no docstring" for name, value in public_callables(package).items() if not _own_doc(value)]
    for name, value in public_callables(package).items():
        if inspect.isclass(value):
            problems += [f"{name}.{method} has no docstring" for method in _bare_methods(value)]
    for path in package.modules():
        if path.name != "__init__.py" and ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) is None:
            problems.append(f"{package.show(path)} has no docstring")
    return problems


def _bare_methods(cls: type) -> list[str]:
    """Public methods and properties without a docstring, own or inherited; `forward` is described by its class."""
    functions = {
        name: member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        for name, member in vars(cls).items()
        if not name.startswith("_") and name != "forward"
    }
    return [
        name
        for name, function in functions.items()
        if inspect.isfunction(function) and not inspect.getdoc(getattr(cls, name))
    ]


def check_docstrings_give_shapes(package: Package) -> list[str]:
    """Whatever takes a tensor says its shape, like `[num_nodes, dim]`."""
    return [
        f"{name} takes tensors; its docstring gives no shape such as [num_nodes, dim]"
        for name, value in public_callables(package).items()
        if _takes_tensor(value) and not SHAPE.search(_text(value).replace(">>>", ""))
    ]


def check_docstrings_list_errors(package: Package) -> list[str]:
    """Whatever raises has a `Raises:` section."""
    return [
        f"{name} raises; its docstring has no Raises section"
        for name, value in public_callables(package).items()
        if _raises(value) and not RAISES.search(_text(value))
    ]


def check_docstrings_have_example(package: Package) -> list[str]:
    """Every public function and class has a doctest; exceptions and `reference` need none."""
    return [
        f"{name} has no doctest example"
        for name, value in public_callables(package).items()
        if ">>> " not in _text(value)
        and not name.startswith("reference.")
        and not (inspect.isclass(value) and issubclass(value, BaseException))
    ]


def check_docstrings_name_source(package: Package) -> list[str]:
    """Functions of `functional` and every layer name their source (`Reference:` or `Source:`)."""
    functional = load(package, "functional") if has_room(package, "functional") else ModuleType("none")
    maths = [getattr(functional, name) for name in public_names(functional)]
    return [
        f"{name} names no source: a line that begins with Reference or Source"
        for name, value in public_callables(package).items()
        if (_is_layer(name, value) or (inspect.isfunction(value) and any(value is m for m in maths)))
        and not SOURCE.search(_text(value))
    ]


def _is_layer(name: str, value: Callable) -> bool:
    return inspect.isclass(value) and issubclass(value, torch.nn.Module) and not name.startswith("lightning.")


def _own_doc(value: Callable) -> str:
    return vars(value).get("__doc__") or "" if inspect.isclass(value) else value.__doc__ or ""


def _text(value: Callable) -> str:
    text = inspect.cleandoc(_own_doc(value))
    if inspect.isclass(value):
        text += "".join(
            "\n" + (inspect.getdoc(vars(value)[name]) or "") for name in ("__init__", "forward") if name in vars(value)
        )
    return text


def _takes_tensor(value: Callable) -> bool:
    functions = (
        [vars(value)[n] for n in ("__init__", "forward", "__call__") if n in vars(value)]
        if inspect.isclass(value)
        else [value]
    )
    return any(
        "Tensor" in str(note)
        for f in functions
        for key, note in getattr(f, "__annotations__", {}).items()
        if key != "return"
    )


def _raises(value: Callable) -> bool:
    """Whether the function, or the class's `__init__`, `__post_init__` or `forward`, has a `raise` of its own."""
    try:
        top = ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
    except (OSError, TypeError):
        return False
    bodies: list[ast.AST] = [top]
    if isinstance(top, ast.ClassDef):
        entry = ("__init__", "__post_init__", "forward", "__call__")
        bodies = [node for node in top.body if isinstance(node, ast.FunctionDef) and node.name in entry]
    return any(isinstance(node, ast.Raise) for body in bodies for node in ast.walk(body))


RULES = [
    check_docstrings_present,
    check_docstrings_give_shapes,
    check_docstrings_list_errors,
    check_docstrings_have_example,
    check_docstrings_name_source,
]
