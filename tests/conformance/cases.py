"""What a package hands to the conformance suite: `tests/<package>/conformance_cases.py`.

That file is a plain module, loaded by path, with these functions, each without arguments:

| function | returns | needed when the package |
|---|---|---|
| `ops()` | `dict[str, list[OpCase]]`, keyed by the op's name without namespace | registers ops |
| `modules()` | `list[ModuleCase]` | exports `torch.nn.Module` classes |
| `callbacks()` | `list[CallbackCase]` | exports callbacks from its `lightning.py` |
| `bad_inputs()` | `list[BadInputCase]` | has public functions or classes that raise |
| `extras()` | `dict[str, Callable[[], object]]`, extra -> a call that needs it | declares extras |

A call of `extras()` raises ImportError where the extra is missing. Where the package goes on with something slower, the
call returns, as a string, what the user is told.

The cases of an op must, taken together, hold an empty tensor, a non-contiguous tensor, an odd size above one, and two
dtypes. Keep them tiny: gradcheck perturbs every element of the cases that name differentiable arguments.
A long file may be split: `from .conformance_ops import ops` finds `conformance_ops.py` beside it.
Everything is made when the function runs, so that importing the file costs nothing and needs no extra.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class OpCase:
    """One call of an op.

    Args:
        label: what is special about the call, for example `"7 x 3, bfloat16"`.
        args: every positional argument, exactly as the op's schema lists them.
        reference: what the op means; called with `args`, returns the op's outputs in the same structure.
        rtol: relative tolerance of the comparison with the reference.
        atol: absolute tolerance.
        differentiable: positions in `args` of the tensors whose gradients are checked in float64; empty for none.
    """

    label: str
    args: tuple[Any, ...]
    reference: Callable[..., Any]
    rtol: float = 1e-5
    atol: float = 1e-6
    differentiable: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class ModuleCase:
    """One `torch.nn.Module` and inputs it takes.

    Args:
        label: for example `"GCNConv, edge_index"`.
        factory: makes a new module, initialised as a user's would be.
        inputs: positional arguments of `forward`; tensors may sit inside registered pytrees.
        compile: whether `torch.compile(fullgraph=True)` is promised for these inputs.
        why_not_compiled: the reason, when it is not.
    """

    label: str
    factory: Callable[[], Any]
    inputs: tuple[Any, ...]
    compile: bool = True
    why_not_compiled: str = ""

    def __post_init__(self) -> None:
        if not self.compile and not self.why_not_compiled:
            raise ValueError(f"why_not_compiled must give the reason when compile=False, got '' for {self.label!r}")


@dataclass(frozen=True, eq=False)
class CallbackCase:
    """One Lightning callback and a tiny training run.

    Args:
        label: for example `"TCGNNAccelerator, two GCN layers"`.
        factory: makes a new callback.
        model: makes a new LightningModule on which the callback has something to do.
        dataloader: makes the training dataloader: at least two batches, same order each time.
        converts: the callback is documented to leave replaced layers in the model after `fit`.
    """

    label: str
    factory: Callable[[], Any]
    model: Callable[[], Any]
    dataloader: Callable[[], Any]
    converts: bool = False


@dataclass(frozen=True, eq=False)
class BadInputCase:
    """One wrong call and what its error must say.

    Args:
        of: public name of the function or class, as in `__all__`: `"spmm"`.
        call: makes the wrong call.
        raises: exception type.
        fragments: what the message must hold: at least the argument's name and the value (or shape, dtype) it got.
    """

    of: str
    call: Callable[[], Any]
    raises: type[Exception]
    fragments: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.fragments) < 2:
            raise ValueError(
                f"fragments must hold the argument's name and the value it got, got {self.fragments!r} for {self.of!r}"
            )
