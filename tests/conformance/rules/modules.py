"""Rules on every exported `torch.nn.Module`: copies, state, dtype, compilation, printing."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.conformance.cases import ModuleCase
from tests.conformance.package import Package, public_objects, samples
from tests.conformance.tensors import differences, first_line, tensors_in, to_device, to_dtype


def module_classes(package: Package) -> dict[str, type[torch.nn.Module]]:
    """Exported module classes of the package; metrics are torchmetrics' business."""
    return {
        name: value
        for name, value in public_objects(package, "nn").items()
        if inspect.isclass(value) and issubclass(value, torch.nn.Module) and ".metrics" not in value.__module__
    }


def _cases(package: Package) -> list[ModuleCase]:
    return samples(package, "modules") if module_classes(package) else []


def _each(package: Package, judge: Callable[[ModuleCase], str]) -> list[str]:
    """Run `judge` on every case; what it says, or the error it meets, is a violation."""
    problems = []
    for case in _cases(package):
        try:
            said = judge(case)
        except Exception as error:
            said = first_line(error)
        if said:
            problems.append(f"{case.label}: {said}")
    return problems


def _make(case: ModuleCase) -> torch.nn.Module:
    return case.factory().eval()


def _stir(module: torch.nn.Module) -> torch.nn.Module:
    """Move every floating parameter and buffer a little, so that no two modules agree by their initialisation."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for tensor in module.state_dict(keep_vars=True).values():
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                tensor.add_(torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype), alpha=0.1)
    return module


def _same_output(a: torch.nn.Module, b: torch.nn.Module, inputs: tuple[Any, ...]) -> str:
    with torch.no_grad():
        return differences(b(*inputs), a(*inputs))


def check_modules_have_cases(package: Package) -> list[str]:
    """Every exported module class is made by some case."""
    made = {type(case.factory()) for case in _cases(package)}
    return [
        f"{name} has no case in modules() of conformance_cases.py"
        for name, cls in module_classes(package).items()
        if cls not in made
    ]


def check_state_dict(package: Package) -> list[str]:
    """A second module that loads the first one's state_dict, strictly, computes the same."""

    def judge(case: ModuleCase) -> str:
        first, second = _stir(_make(case)), _make(case)
        second.load_state_dict(first.state_dict(), strict=True)
        return _said("after load_state_dict", _same_output(first, second, case.inputs))

    return _each(package, judge)


def check_deepcopy(package: Package) -> list[str]:
    """A deep copy computes the same and shares no parameter."""

    def judge(case: ModuleCase) -> str:
        first = _stir(_make(case))
        second = copy.deepcopy(first)
        shared = {p.data_ptr() for p in first.parameters() if p.numel()} & {
            p.data_ptr() for p in second.parameters() if p.numel()
        }
        return (
            "the deep copy shares parameters"
            if shared
            else _said("the deep copy", _same_output(first, second, case.inputs))
        )

    return _each(package, judge)


def check_pickle(package: Package) -> list[str]:
    """A pickled and unpickled module computes the same, also after it has been called."""

    def judge(case: ModuleCase) -> str:
        first = _stir(_make(case))
        first(*case.inputs)
        return _said("after pickle", _same_output(first, pickle.loads(pickle.dumps(first)), case.inputs))

    return _each(package, judge)


def check_to_dtype(package: Package) -> list[str]:
    """After `.to(torch.float64)` every state is float64, the output is float64, and close to the float32 output."""

    def judge(case: ModuleCase) -> str:
        module = _stir(_make(case))
        with torch.no_grad():
            single = module(*case.inputs)
            module.to(torch.float64)
            double = module(*to_dtype(case.inputs, torch.float64))
        left = [name for name, t in module.state_dict().items() if t.is_floating_point() and t.dtype != torch.float64]
        if left:
            return f".to(float64) leaves {', '.join(left)} behind"
        wrong = [t.dtype for t in tensors_in(double) if t.is_floating_point() and t.dtype != torch.float64]
        return (
            f"gives {wrong[0]} after .to(float64)"
            if wrong
            else _said("in float64", differences(double, single, rtol=1e-3, atol=1e-4))
        )

    return _each(package, judge)


def check_to_device(package: Package, device: str = "meta") -> list[str]:
    """After a call, `.to(device)` moves every tensor the module keeps; on a real device the output stays the same."""

    def judge(case: ModuleCase) -> str:
        module = _stir(_make(case))
        with torch.no_grad():
            here = module(*case.inputs)
            module.to(device)
            left = [name for name, t in _kept_tensors(module) if t.device.type != torch.device(device).type]
            if left or device == "meta":
                return f".to({device!r}) leaves {', '.join(left)} behind" if left else ""
            there = module(*to_device(case.inputs, device))
        return _said(f"on {device}", differences(to_device(there, "cpu"), here, rtol=1e-4, atol=1e-5))

    return _each(package, judge)


def _kept_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.state_dict(keep_vars=True).items()
    for owner, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor):
                yield f"{owner}.{name}".lstrip("."), value


def check_compile(package: Package) -> list[str]:
    """`torch.compile(fullgraph=True, backend="aot_eager")` gives the eager output and the eager gradients."""

    def judge(case: ModuleCase) -> str:
        if not case.compile:
            return ""
        torch._dynamo.reset()
        module = _stir(_make(case))
        eager = _output_and_gradients(module, module, case.inputs)
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        return _said(
            "compiled", differences(_output_and_gradients(module, compiled, case.inputs), eager, rtol=1e-5, atol=1e-6)
        )

    return _each(package, judge)


def _output_and_gradients(module: torch.nn.Module, call: Callable, inputs: tuple[Any, ...]) -> tuple:
    module.zero_grad(set_to_none=True)
    outputs = tensors_in(call(*inputs))
    total = [out.square().sum() for out in outputs if out.requires_grad]
    if total:
        torch.stack([t.double() for t in total]).sum().backward()
    return [out.detach() for out in outputs], [p.grad.clone() for p in module.parameters() if p.grad is not None]


def check_repr(package: Package) -> list[str]:
    """`repr` begins with the class, gives the sizes when there are parameters, and shows no address."""

    def judge(case: ModuleCase) -> str:
        module = case.factory()
        text, name = repr(module), type(module).__name__
        if not text.startswith(f"{name}("):
            return f"repr begins with {text[:40]!r}, expected {name}("
        if any(p.numel() > 1 for p in module.parameters(recurse=False)) and text == f"{name}()":
            return f"repr is {text!r}: it says nothing of the sizes"
        return f"repr shows an address: {text[:80]!r}" if " at 0x" in text else ""

    return _each(package, judge)


def _said(when: str, told: str) -> str:
    return f"{when}: {told}" if told else ""


RULES = [
    check_modules_have_cases,
    check_state_dict,
    check_deepcopy,
    check_pickle,
    check_to_dtype,
    check_to_device,
    check_compile,
    check_repr,
]
ON_CUDA_TOO = [check_to_device]
