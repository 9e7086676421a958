"""Rules on what ops compute: opcheck, fake against real metadata, gradients in float64, equality with the reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tests.conformance.cases import OpCase
from tests.conformance.package import Package
from tests.conformance.rules.ops import op, op_cases, op_names
from tests.conformance.tensors import differences, first_line, map_tensors, tensors_in, to_device, to_dtype

GRADCHECK_ELEMENTS = 250


def _all_cases(package: Package, device: str) -> Iterator[tuple[str, Any, OpCase]]:
    registered = op_names(package)
    for name, cases in op_cases(package).items():
        if name in registered:
            for case in cases:
                yield name, op(package, name), dataclasses.replace(case, args=to_device(case.args, device))


def check_opcheck(package: Package, device: str = "cpu") -> list[str]:
    """`torch.library.opcheck`: schema on every case, all of its tests on each op's largest case.

    Of 8-bit floats, which PyTorch does not compare, the fake kernel in place of the schema.
    """
    problems = []
    largest = {
        name: max(cases, key=lambda c: (bool(c.differentiable), _elements(c)))
        for name, cases in op_cases(package).items()
        if cases
    }
    for name, call, case in _all_cases(package, device):
        whole = largest[name].label == case.label
        tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
        if any(t.is_floating_point() and t.element_size() == 1 for t in tensors_in(case.args)):
            tests = ("test_faketensor",)
        args = _with_grad(case, case.args) if whole else case.args
        result = torch.library.opcheck(call, args, test_utils=tests if whole else tests[:1], raise_exception=False)
        problems += [
            f"op {name}, {case.label}: {test}: {_short(said)}" for test, said in result.items() if said != "SUCCESS"
        ]
    return problems


def _short(said: object) -> str:
    return first_line(said) if isinstance(said, BaseException) else " ".join(str(said).split())[:300]


def _elements(case: OpCase) -> int:
    return sum(t.numel() for t in tensors_in(case.args))


def _with_grad(case: OpCase, args: tuple) -> tuple:
    return tuple(
        a.detach().clone().requires_grad_() if i in case.differentiable and a.is_floating_point() else a
        for i, a in enumerate(args)
    )


def check_fake_matches_real(package: Package, device: str = "cpu") -> list[str]:
    """Under fake tensors every case gives the shape, dtype, device and strides of the real result."""
    problems = []
    for name, call, case in _all_cases(package, device):
        try:
            real = call(*case.args)
            with FakeTensorMode(shape_env=ShapeEnv()) as mode:
                fake = call(*map_tensors(lambda t: mode.from_tensor(t, static_shapes=True), case.args))
        except Exception as error:
            problems.append(f"op {name}, {case.label}: {first_line(error)}")
            continue
        for index, (told, made) in enumerate(zip(tensors_in(fake), tensors_in(real), strict=True)):
            problems += [
                f"op {name}, {case.label}: output {index}: {text}" for text in _metadata_differences(told, made)
            ]
    return problems


def _metadata_differences(fake: torch.Tensor, real: torch.Tensor) -> Iterator[str]:
    known = fake.dim() == real.dim() and all(isinstance(size, int) for size in fake.shape)
    pairs = {
        "dtype": (fake.dtype, real.dtype),
        "device": (fake.device, real.device),
        "dimensions": (fake.dim(), real.dim()),
    }
    if known:
        pairs["shape"] = (tuple(fake.shape), tuple(real.shape))
        if tuple(fake.shape) == tuple(real.shape) and real.numel() > 1:
            pairs["strides"] = (_used_strides(fake), _used_strides(real))
    for what, (told, made) in pairs.items():
        if told != made:
            yield f"the fake kernel says {what} {told}, the real one gives {made}"


def _used_strides(t: torch.Tensor) -> list[int]:
    return [stride for size, stride in zip(t.shape, t.stride(), strict=True) if size > 1]


def check_gradients(package: Package, device: str = "cpu") -> list[str]:
    """Differentiable arguments pass gradcheck in float64; with empty tensors backward runs and gives their shape."""
    problems = []
    for name, call, case in _all_cases(package, device):
        if not case.differentiable:
            continue
        args = _with_grad(case, to_dtype(case.args, torch.float64))
        leaves = [args[i] for i in case.differentiable]
        count = sum(leaf.numel() for leaf in leaves)
        if count > GRADCHECK_ELEMENTS:
            problems.append(f"op {name}, {case.label}: {count} differentiable elements, at most {GRADCHECK_ELEMENTS}")
            continue
        try:
            problems += [
                f"op {name}, {case.label}: {text}" for text in _gradient_problems(call, args, case.differentiable)
            ]
        except Exception as error:
            problems.append(f"op {name}, {case.label}: {first_line(error)}")
    return problems


def _gradient_problems(call: Any, args: tuple, positions: tuple[int, ...]) -> Iterator[str]:
    def function(*leaves: torch.Tensor) -> Any:
        full = list(args)
        for position, leaf in zip(positions, leaves, strict=True):
            full[position] = leaf
        outputs = tensors_in(call(*full))
        return tuple(out for out in outputs if out.is_floating_point() and out.requires_grad)

    leaves = tuple(args[i] for i in positions)
    outputs = function(*leaves)
    if not outputs:
        yield "no output requires grad"
    elif all(leaf.numel() for leaf in leaves) and all(out.numel() for out in outputs):
        torch.autograd.gradcheck(function, leaves, eps=1e-6, atol=1e-6, rtol=1e-4)
    else:
        sum(out.sum() for out in outputs).backward()
        for position, leaf in zip(positions, leaves, strict=True):
            if leaf.grad is not None and leaf.grad.shape != leaf.shape:
                yield f"argument {position} is {list(leaf.shape)}, its gradient {list(leaf.grad.shape)}"


def check_reference(package: Package, device: str = "cpu") -> list[str]:
    """Every case gives what the reference gives, and changes no argument unless the schema says so."""
    problems = []
    for name, call, case in _all_cases(package, device):
        before = map_tensors(lambda t: t.clone(), case.args)
        try:
            actual, expected = call(*case.args), case.reference(*to_device(before, "cpu"))
        except Exception as error:
            problems.append(f"op {name}, {case.label}: {first_line(error)}")
            continue
        told = differences(to_device(actual, "cpu"), expected, rtol=case.rtol, atol=case.atol)
        if told:
            problems.append(f"op {name}, {case.label}: differs from the reference: {told}")
        if not call._schema.is_mutable and differences(case.args, before):
            problems.append(f"op {name}, {case.label}: changes an argument, which its schema does not say")
    return problems


ON_CUDA_TOO = [check_opcheck, check_fake_matches_real, check_gradients, check_reference]
RULES = ON_CUDA_TOO
