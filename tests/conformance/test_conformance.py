"""Every rule of the house on every package under `packages/`. A new package is covered as soon as its folder exists."""

import pytest

from tests.conformance.package import Package, find_packages
from tests.conformance.rules import RULES, Rule, modules, op_values

PACKAGES = find_packages()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__.removeprefix("check_"))
def test_package_keeps_the_rule(package: Package, rule: Rule) -> None:
    problems = rule(package)
    assert not problems, f"{package.name}: {rule.__doc__.splitlines()[0]}\n  " + "\n  ".join(problems)


def test_some_package_was_found() -> None:
    assert PACKAGES, "no folder packages/torch-*/src: nothing was checked"


@pytest.mark.gpu
@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
@pytest.mark.parametrize(
    "rule", [*op_values.ON_CUDA_TOO, *modules.ON_CUDA_TOO], ids=lambda rule: rule.__name__.removeprefix("check_")
)
def test_package_keeps_the_rule_on_cuda(package: Package, rule: Rule) -> None:
    problems = rule(package, device="cuda")
    assert not problems, f"{package.name}: {rule.__doc__.splitlines()[0]}\n  " + "\n  ".join(problems)
