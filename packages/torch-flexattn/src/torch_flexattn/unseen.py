"""Recording of programs where no tracer watches: what it calls would become a part of the tracer's graph."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch._C._functorch import peek_interpreter_stack

_thread = threading.local()


def unseen(function: Callable[..., Any], *arguments: Any) -> Any:
    """``function(*arguments)``; by another thread where a tracer watches this one, as each watches its own."""
    if getattr(_thread, "records", False):  # what is recorded makes a mod itself
        return function(*arguments)
    watched = torch.compiler.is_exporting() or torch._C._len_torch_dispatch_stack() > 0
    if watched or peek_interpreter_stack() is not None:
        with ThreadPoolExecutor(1) as other:
            return other.submit(_recording, function, *arguments).result()
    return _recording(function, *arguments)


def _recording(function: Callable[..., Any], *arguments: Any) -> Any:
    _thread.records = True
    try:
        return function(*arguments)
    finally:
        _thread.records = False
