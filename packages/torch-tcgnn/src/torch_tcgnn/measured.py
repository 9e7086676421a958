"""Files of what ``tune`` measured on the user's GPUs."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def read_measured(path: Path, parse: Callable[[Any], dict[Any, T]], otherwise: str) -> dict[Any, T]:
    """What ``parse`` makes of a file; empty where there is none, or, at the price of one warning, where it is damaged.

    Args:
        path: of the file.
        parse: from its content; raises ValueError at what it does not understand.
        otherwise: what applies in its place, for the warning.

    Example:
        >>> read_measured(Path("no such file"), dict, "the defaults apply")
        {}
    """
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        warnings.warn(
            f"torch_tcgnn: {path} cannot be used ({error}); {otherwise}: delete it, or run "
            "'python -m torch_tcgnn tune' again",
            stacklevel=3,
        )
        return {}


def write_measured(path: Path, content: dict[str, Any]) -> None:
    """Replace a file as a whole: whoever reads it meanwhile sees the old one or the new.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(content, indent=1), encoding="utf-8")
    part.replace(path)
