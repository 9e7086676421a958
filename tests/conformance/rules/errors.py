"""Rules on error messages: each names the argument and the value it got."""

from __future__ import annotations

import inspect
import re

from tests.conformance.package import Package, samples
from tests.conformance.rules.docstrings import RAISES, _raises, _text, public_callables


def raising(package: Package) -> list[str]:
    """Public functions and classes that raise or say so; not exceptions, nor what only misses an extra."""
    return [
        name
        for name, value in public_callables(package).items()
        if (_raises(value) or RAISES.search(_text(value)))
        and _listed_errors(_text(value)) != {"ImportError"}
        and not (inspect.isclass(value) and issubclass(value, BaseException))
    ]


def _listed_errors(text: str) -> set[str]:
    """Names in a docstring's Raises section."""
    section = re.search(r"^\s*Raises:?\s*\n(.*?)(?:\n\s*\n|\Z)", text, flags=re.M | re.S)
    return set(re.findall(r"^\s*([\w.]+):", section.group(1), flags=re.M)) if section else set()


def check_bad_inputs_have_cases(package: Package) -> list[str]:
    """Whatever is public and raises has a wrong call in the package's cases."""
    needed = raising(package)
    known = {case.of for case in samples(package, "bad_inputs")} if needed else set()
    return [
        f"{name} raises and has no case in bad_inputs() of conformance_cases.py"
        for name in needed
        if not known & {name, name.split(".")[-1]}
    ]


def check_bad_inputs_are_explained(package: Package) -> list[str]:
    """Every wrong call raises the promised exception, and the message holds the argument's name and the value."""
    if not raising(package):
        return []
    problems = []
    for case in samples(package, "bad_inputs"):
        try:
            case.call()
        except case.raises as error:
            missing = [fragment for fragment in case.fragments if fragment not in str(error)]
            if missing:
                problems.append(f"{case.of}: the message {str(error)[:200]!r} lacks {', '.join(map(repr, missing))}")
        except Exception as error:
            problems.append(
                f"{case.of}: raises {type(error).__name__} ({str(error)[:150]}), expected {case.raises.__name__}"
            )
        else:
            problems.append(
                f"{case.of}: accepts a wrong call, expected an error with {', '.join(map(repr, case.fragments))}"
            )
    return problems


RULES = [check_bad_inputs_have_cases, check_bad_inputs_are_explained]
