"""Rules on how ops are registered: kernels for CPU and CUDA, a fake kernel, and samples in the package's cases."""

from __future__ import annotations

import torch
from torch._library.simple_registry import singleton

from tests.conformance.cases import OpCase
from tests.conformance.package import Package, load, samples
from tests.conformance.tensors import tensors_in


def op_names(package: Package) -> list[str]:
    """Names, without namespace, of every op the package registers."""
    load(package)
    prefix = f"{package.import_name}::"
    return sorted(
        name.removeprefix(prefix) for name in torch._C._dispatch_get_all_op_names() if name.startswith(prefix)
    )


def op(package: Package, name: str) -> torch._ops.OpOverload:
    """The op `name` or `name.overload` of the package."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(getattr(torch.ops, package.import_name), packet), overload or "default")


def op_cases(package: Package) -> dict[str, list[OpCase]]:
    """The package's sample calls, made anew; none when it registers no op."""
    return samples(package, "ops") if op_names(package) else {}


def _has_kernel(package: Package, name: str, *keys: str) -> bool:
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(f"{package.import_name}::{name}", key) for key in keys)


def check_ops_have_cases(package: Package) -> list[str]:
    """Every registered op has sample calls, and no sample is of an op that does not exist."""
    registered, cases = op_names(package), op_cases(package)
    problems = [f"op {name} has no case in ops() of conformance_cases.py" for name in registered if not cases.get(name)]
    return problems + [
        f"ops() has cases of {name}, which is not registered" for name in cases if name not in registered
    ]


def check_op_cases_are_varied(package: Package) -> list[str]:
    """The cases of an op hold an empty and a non-contiguous tensor, an odd size above one, and two dtypes."""
    problems = []
    for name, cases in op_cases(package).items():
        tensors = [t for case in cases for t in tensors_in(case.args)]
        wanted = {
            "empty tensor": any(t.numel() == 0 for t in tensors),
            "non-contiguous tensor": any(not t.is_contiguous() for t in tensors),
            "odd size above one": any(size % 2 and size > 1 for t in tensors for size in t.shape),
            "second dtype": any(len(dtypes) > 1 for dtypes in _dtypes_by_position(cases)),
        }
        problems += [f"the cases of op {name} have no {what}" for what, there in wanted.items() if not there]
    return problems


def _dtypes_by_position(cases: list[OpCase]) -> list[set[torch.dtype]]:
    width = max((len(case.args) for case in cases), default=0)
    return [{t.dtype for case in cases if i < len(case.args) for t in tensors_in(case.args[i])} for i in range(width)]


def check_ops_have_kernels(package: Package) -> list[str]:
    """Every op has an implementation for CPU and one for CUDA in the dispatch tables."""
    return [
        f"op {name} has no {device} kernel"
        for name in op_names(package)
        for device in ("CPU", "CUDA")
        if not _has_kernel(package, name, device, "CompositeExplicitAutograd", "CompositeImplicitAutograd")
    ]


def check_ops_have_fake_kernel(package: Package) -> list[str]:
    """Every op tells shapes and dtypes without computing: a fake kernel, or plain torch operations underneath."""
    problems = []
    for name in op_names(package):
        fake = singleton.find(f"{package.import_name}::{name}").fake_impl.kernel is not None
        if not fake and not _has_kernel(package, name, "Meta", "CompositeImplicitAutograd"):
            problems.append(f"op {name} has no fake kernel")
    return problems


def check_autograd_formulas_are_sampled(package: Package) -> list[str]:
    """An op with an autograd formula has a case with differentiable arguments, so that the formula is checked."""
    return [
        f"op {name} has an autograd formula and no case with differentiable arguments"
        for name, cases in op_cases(package).items()
        if name in op_names(package)
        and _has_kernel(package, name, "Autograd", "AutogradCPU")
        and not any(case.differentiable for case in cases)
    ]


RULES = [
    check_ops_have_cases,
    check_op_cases_are_varied,
    check_ops_have_kernels,
    check_ops_have_fake_kernel,
    check_autograd_formulas_are_sampled,
]
