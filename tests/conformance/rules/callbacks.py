"""Rules on every callback that a package's `lightning.py` exports, each in real Trainer runs of a few steps."""

from __future__ import annotations

import functools
import inspect
import logging
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.conformance.cases import CallbackCase
from tests.conformance.package import Package, has_room, load, public_names, samples
from tests.conformance.tensors import differences, first_line, tensors_in

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "num_sanity_val_steps": 0,
}


def callback_classes(package: Package) -> dict[str, type]:
    """Exported callback classes; none without a `lightning` room."""
    if not has_room(package, "lightning"):
        return {}
    from lightning.pytorch.callbacks import Callback

    module = load(package, "lightning")
    found = {name: getattr(module, name) for name in public_names(module)}
    return {name: value for name, value in found.items() if inspect.isclass(value) and issubclass(value, Callback)}


def _cases(package: Package) -> list[CallbackCase]:
    return samples(package, "callbacks") if callback_classes(package) else []


def _each(package: Package, judge: Callable[[CallbackCase, Path], str]) -> list[str]:
    problems = []
    for case in _cases(package):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
            try:
                said = judge(case, Path(folder))
            except Exception as error:
                said = first_line(error)
            if said:
                problems.append(f"{case.label}: {said}")
    return problems


def _fit(
    case: CallbackCase, callback: Any, model: Any, folder: Path, *, ckpt_path: Path | None = None, **options: Any
) -> Any:
    """One training run of two batches an epoch on the CPU; returns the trainer."""
    from lightning.pytorch import Trainer

    settings = QUIET | {"max_epochs": 1, "limit_train_batches": 2, "default_root_dir": folder} | options
    trainer = Trainer(callbacks=[callback], **settings)
    torch.manual_seed(0)
    trainer.fit(model, train_dataloaders=case.dataloader(), ckpt_path=ckpt_path)
    return trainer


def _structure(model: torch.nn.Module) -> dict[str, tuple[type, int]]:
    """Type and number of hooks of every submodule."""
    return {name: (type(m), sum(len(getattr(m, hooks, ())) for hooks in HOOKS)) for name, m in model.named_modules()}


def _left_behind(case: CallbackCase, before: dict, model: torch.nn.Module) -> str:
    after = _structure(model)
    hooked = [name or "the model" for name, (_, count) in after.items() if count > before.get(name, (None, 0))[1]]
    if hooked:
        return f"leaves hooks on {', '.join(hooked)}"
    if case.converts:
        return ""
    changed = [
        name or "the model"
        for name in sorted(before.keys() | after.keys())
        if before.get(name, (None,))[0] != after.get(name, (None,))[0]
    ]
    return f"leaves replaced or added modules: {', '.join(changed)}" if changed else ""


def check_callbacks_have_cases(package: Package) -> list[str]:
    """Every exported callback is made by some case."""
    made = {type(case.factory()) for case in _cases(package)}
    return [
        f"callback {name} has no case in callbacks() of conformance_cases.py"
        for name, cls in callback_classes(package).items()
        if cls not in made
    ]


def check_callbacks_fit(package: Package) -> list[str]:
    """Training with the callback finishes, moves the parameters, and leaves no hook or replaced module behind."""

    def judge(case: CallbackCase, folder: Path) -> str:
        model = case.model()
        structure, start = _structure(model), {name: p.detach().clone() for name, p in model.named_parameters()}
        trainer = _fit(case, case.factory(), model, folder)
        end = dict(model.named_parameters())
        if trainer.global_step < 1 or not any(name in end and differences(end[name], start[name]) for name in start):
            return "training with the callback moved no parameter"
        if not all(torch.isfinite(p).all() for p in end.values()):
            return "a parameter is not finite after training with the callback"
        return _left_behind(case, structure, model)

    return _each(package, judge)


def check_callbacks_clean_up_after_error(package: Package) -> list[str]:
    """An exception in the second training step reaches the user, and no hook or replaced module stays."""

    def judge(case: CallbackCase, folder: Path) -> str:
        model, steps = case.model(), []
        structure, step = _structure(model), model.training_step

        @functools.wraps(step)  # the Trainer reads the step's signature
        def failing(*args: Any, **kwargs: Any) -> Any:
            steps.append(1)
            if len(steps) == 2:
                raise ArithmeticError("planted by the conformance suite")
            return step(*args, **kwargs)

        model.training_step = failing
        try:
            _fit(case, case.factory(), model, folder)
        except ArithmeticError:
            told = _left_behind(case, structure, model)
            return f"after an exception it {told}" if told else ""
        return "the exception of a training step did not reach the caller"

    return _each(package, judge)


def check_callbacks_fast_dev_run(package: Package) -> list[str]:
    """The callback works under `fast_dev_run=True` and cleans up there too."""

    def judge(case: CallbackCase, folder: Path) -> str:
        model = case.model()
        structure = _structure(model)
        _fit(case, case.factory(), model, folder, fast_dev_run=True)
        return _left_behind(case, structure, model)

    return _each(package, judge)


def check_callbacks_resume(package: Package) -> list[str]:
    """One epoch, checkpoint, a new callback and a second epoch give the state that two epochs give without a break."""

    def judge(case: CallbackCase, folder: Path) -> str:
        whole, whole_model = case.factory(), case.model()
        _fit(case, whole, whole_model, folder, max_epochs=2)
        first, path = case.factory(), folder / "first.ckpt"
        _fit(case, first, case.model(), folder).save_checkpoint(path)
        second, second_model = case.factory(), case.model()
        trainer = _fit(case, second, second_model, folder, ckpt_path=path, max_epochs=2)
        if trainer.current_epoch != 2:
            return f"the resumed run ended in epoch {trainer.current_epoch}, expected 2"
        expected, got = _plain(whole), _plain(second)
        lost = [
            f"{name} is {got.get(name)!r} instead of {value!r}"
            for name, value in expected.items()
            if got.get(name) != value
        ]
        if lost:
            return f"after resuming, {'; '.join(lost)}"
        told = differences(second.state_dict(), whole.state_dict(), rtol=1e-4, atol=1e-5)
        return f"after resuming, the state differs: {told}" if told else ""

    return _each(package, judge)


def _plain(callback: Any) -> dict[str, Any]:
    """Whole numbers, flags and words that the callback holds or would save."""
    values = vars(callback) | callback.state_dict()
    return {name: value for name, value in values.items() if isinstance(value, bool | int | str)}


def check_callback_attributes(package: Package) -> list[str]:
    """No callback has an attribute `log`: the Trainer replaces it; its saved state is tensors and plain values."""
    problems = []
    for case in _cases(package):
        callback = case.factory()
        if hasattr(callback, "log"):
            problems.append(f"{case.label}: the callback has an attribute `log`, which the Trainer replaces")
        odd = _odd_values(callback.state_dict())
        problems += [
            f"{case.label}: state_dict holds a {kind.__name__}, which a weights_only checkpoint refuses" for kind in odd
        ]
    return problems


def _odd_values(state: Any) -> list[type]:
    if isinstance(state, dict):
        return [kind for value in state.values() for kind in _odd_values(value)]
    if isinstance(state, list | tuple):
        return [kind for value in state for kind in _odd_values(value)]
    plain = (torch.Tensor, bool, int, float, str, type(None))
    return [] if type(state) in plain or tensors_in(state) else [type(state)]


RULES = [
    check_callbacks_have_cases,
    check_callbacks_fit,
    check_callbacks_clean_up_after_error,
    check_callbacks_fast_dev_run,
    check_callbacks_resume,
    check_callback_attributes,
]
