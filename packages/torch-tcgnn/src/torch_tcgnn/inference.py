"""What inference mode derives may be used in training: it is built outside that mode, without recording a gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")


def outliving_inference(build: Callable[Given, Result]) -> Callable[Given, Result]:
    """A function whose tensors are ordinary ones even where it is called in inference mode.

    Example:
        >>> ones = outliving_inference(torch.ones)
        >>> with torch.inference_mode():
        ...     ones(2).is_inference()
        False
    """

    @functools.wraps(build)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
            return build(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return build(*args, **kwargs)

    return run
