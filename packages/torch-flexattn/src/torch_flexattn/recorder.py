"""What happens to a function while it is recorded: the user's lines are noted, a read of a table becomes one operation,
numbers that were made tensors promote like the numbers they are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .errors import KindError, UnsupportedModError
from .recorded_graph import VALUE_WANTED, GraphOfCalls

SIZES = (
    vars(torch._C.TensorBase)["shape"].__get__,
    Tensor.size,
    Tensor.__len__,
    Tensor.numel,
    Tensor.nelement,
    torch.numel,
)
OF_NUMPY = (Tensor.numpy, Tensor.__array__, Tensor.__dlpack__)
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
OPERATORS = (
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "div",
    "truediv",
    "rtruediv",
    "rdiv",
    "floordiv",
    "rfloordiv",
    "floor_divide",
    "mod",
    "rmod",
    "remainder",
    "pow",
    "rpow",
    "neg",
    "abs",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
    "rlshift",
    "rrshift",
)
_HERE, _TORCH = str(Path(__file__).parent), str(Path(torch.__file__).parent)


class Recorder(TorchFunctionMode):
    """See above.

    Args:
        numbers: Python numbers, as tensors whose values are open.
        calls: where the user's lines are noted.

    Attributes:
        reads_size: whether the size of a captured tensor was asked for.
        line: of the user's code, where it is known otherwise than from the frames.
    """

    def __init__(self, numbers: Iterable[Tensor], calls: GraphOfCalls) -> None:
        super().__init__()
        self._calls = calls
        self.reads_size = False
        self.line = ""
        self._numbers = {id(n): n for n in numbers}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        line = self.line or user_line(sys._getframe(1))
        if line:
            self._calls.line = line
        self.reads_size |= func in SIZES
        if func in OF_NUMPY:
            raise RuntimeError("numpy")
        if func is Tensor.tolist:
            raise RuntimeError(VALUE_WANTED)
        if func in (Tensor.__repr__, Tensor.__format__):
            raise UnsupportedModError(
                f"{_place(line)} prints or formats a tensor, whose numbers have no value while it is recorded: look at "
                "create_mask(…), or call the mask_mod or score_mod object on indices"
            )
        if func is Tensor.__setitem__:
            raise UnsupportedModError(f"{_place(line)} writes in place, t[…] = …: use torch.where, or write it outside")
        if func is Tensor.requires_grad_:
            raise UnsupportedModError(f"{_place(line)} calls requires_grad_: do so outside, or use .detach()")
        kwargs = kwargs or {}
        if kwargs.get("out") is not None:
            raise UnsupportedModError(f"{_place(line)} writes to out=…: use the value that is returned")
        if func is Tensor.__getitem__:
            result = _read(line, *args)
        elif any(id(a) in self._numbers for a in (*args, *kwargs.values())):
            result = self._with_numbers(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        return result if torch.is_grad_enabled() else self._detached(result)

    def _detached(self, result: Any) -> Any:
        """What is computed under ``torch.no_grad()`` passes no gradient on; numbers have none."""
        has_one = isinstance(result, Tensor) and result.is_floating_point() and id(result) not in self._numbers
        return result.detach() if has_one else result

    def _with_numbers(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call ``func``; as of Python's numbers, the type of the result is that of its tensors."""
        name = getattr(func, "__name__", "").strip("_")
        values = (args[1:] if name == "where" else args, kwargs.values())
        others = [a.dtype for group in values for a in group if isinstance(a, Tensor) and id(a) not in self._numbers]
        if not others:
            if name not in OPERATORS:
                return func(*args, **kwargs)
            result = func(*(self._exact(a) for a in args), **kwargs)
            self._numbers[id(result)] = result
            return result
        meet = others[0]
        for other in others[1:]:
            meet = torch.promote_types(meet, other)

        def typed(a: Any) -> Any:
            return _typed(a, meet, keep=name in COMPARISONS) if id(a) in self._numbers else a

        return func(*map(typed, args), **{key: typed(a) for key, a in kwargs.items()})

    def _exact(self, a: Any) -> Any:
        """An operand of Python's arithmetic, whose integers do not overflow."""
        return a.long() if id(a) in self._numbers and not a.is_floating_point() else a


def user_line(frame: Any) -> str:
    """``file:line`` of the innermost frame that is neither PyTorch's nor ours."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_HERE, _TORCH)) and not file.startswith("<"):
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _typed(number: Tensor, meet: torch.dtype, *, keep: bool) -> Tensor:
    """A number in the type in which it meets tensors of type ``meet``; ``keep``: of integers, not a smaller one."""
    if number.is_floating_point():
        return number.to(meet) if meet.is_floating_point else number
    if meet.is_floating_point:
        return number.to(meet)
    if meet == torch.bool or (keep and number.dtype == torch.int64):
        return number.long()
    return number.to(meet)


def _read(line: str, tensor: Tensor, index: Any) -> Tensor:
    indices = index if isinstance(index, tuple) else (index,)
    of_tensors = [i for i in indices if isinstance(i, Tensor)]
    wrong = [i.dtype for i in of_tensors if i.is_floating_point() or i.dtype == torch.bool]
    if wrong:
        raise KindError(f"{_place(line)} indexes with {wrong[0]}, not with integers")
    if not of_tensors:
        return tensor[index]
    if not all(isinstance(i, Tensor | int) for i in indices):
        raise UnsupportedModError(
            f"{_place(line)} reads a whole row of a tensor (t[:, i], t[..., i] or t[None, i]): a mod reads one "
            "number at a time, t[i, j] with an integer for each of all dimensions"
        )
    return torch.ops.aten.index.Tensor(tensor, [i if isinstance(i, Tensor) else torch.full((), i) for i in indices])


def _place(line: str) -> str:
    return f"the mod at {line}" if line else "the mod"
