"""Which kernel a call takes on a GPU: tensor cores over bit blocks, or CUDA cores over compressed rows.

Both are bound by gathering feature rows. Blocks gather a row once a window and amortise the cost of a row over eight,
but run at eight columns a step, full or not; rows gather once an entry. The time of either is close to linear in sizes
that tensor shapes tell, so the choice costs nothing and never depends on values. Coefficients: relative least squares
over graphs × widths, shipped below, or fitted on the user's own GPU (``python -m torch_tcgnn tune``) and read from a
file.
"""

from __future__ import annotations

import functools
import json
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

from .cache_dir import cache_dir

FORMAT = 1
"""Version of the file of fitted rates."""


@dataclass(frozen=True)
class Rate:
    """Microseconds: ``fixed + per_row · rows + per_entry · entries + per_byte · entries · row bytes`` (in millions)."""

    fixed: float
    per_row: float
    per_entry: float
    per_byte: float

    def predict_us(self, rows: int, entries: int, row_bytes: int) -> float:
        """Predicted time for ``entries`` gathers of ``row_bytes`` bytes into ``rows`` rows (or windows)."""
        return self.fixed + (self.per_row * rows + self.per_entry * entries + self.per_byte * entries * row_bytes) / 1e6


WEIGHTS_TO_SLOTS = Rate(fixed=5.0, per_row=0.0, per_entry=35.0, per_byte=0.0)
"""What edge weights add to the tensor-core path: they are permuted to slots first."""
WEIGHTS_BY_ENTRY = Rate(fixed=0.0, per_row=0.0, per_entry=15.0, per_byte=0.0)
"""What edge weights add to the CUDA-core path."""


@dataclass(frozen=True)
class Rates:
    """Both paths of one device and feature type.

    Attributes:
        blocks: tensor cores; rows are windows of 8, entries are blocks of 8 columns.
        rows: CUDA cores; rows are rows, entries are entries of the adjacency.
    """

    blocks: Rate
    rows: Rate

    def predict_us(
        self, rows: int, entries: int, blocks: int, row_bytes: int, *, weighted: bool = False
    ) -> dict[str, float]:
        """Predicted time by path, ``"tc"`` and ``"cuda"``; arguments as :func:`prefer_blocks`."""
        by_blocks = self.blocks.predict_us(-(-rows // 8), blocks, row_bytes)
        by_rows = self.rows.predict_us(rows, entries, row_bytes)
        if weighted:
            by_blocks += WEIGHTS_TO_SLOTS.predict_us(rows, entries, row_bytes)
            by_rows += WEIGHTS_BY_ENTRY.predict_us(rows, entries, row_bytes)
        return {"tc": by_blocks, "cuda": by_rows}


# Measured on an H200. Other GPUs borrow these until somebody measures them: the choice depends on the ratio of the two
# paths more than on their speed, and `tune` replaces it.
SM90 = Rates(
    blocks=Rate(fixed=4.33, per_row=806.0, per_entry=24.9, per_byte=1.066),
    rows=Rate(fixed=5.38, per_row=44.4, per_entry=0.0, per_byte=0.1006),
)
SM90_16BIT = Rates(
    blocks=Rate(fixed=3.77, per_row=843.0, per_entry=53.3, per_byte=0.874),
    rows=Rate(fixed=7.82, per_row=47.2, per_entry=0.458, per_byte=0.1467),
)


@functools.cache
def rates_on(device: torch.device, dtype: torch.dtype) -> Rates:
    """The rates of ``device`` for features of ``dtype``: fitted ones where the user ran ``tune``, else the shipped."""
    shipped = SM90_16BIT if dtype.itemsize == 2 else SM90
    if device.type != "cuda":
        return shipped
    return fitted_rates().get((torch.cuda.get_device_name(device), dtype_name(dtype)), shipped)


def rates_file() -> Path:
    """Where ``tune`` stores what it fitted."""
    return cache_dir() / "rates.json"


@functools.cache
def fitted_rates() -> dict[tuple[str, str], Rates]:
    """``{(device name, dtype name): rates}`` of :func:`rates_file`, read once; empty where there is none.

    A file that cannot be understood costs one warning, and the shipped rates apply.
    """
    path = rates_file()
    try:
        return _parse(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        warnings.warn(
            f"torch_tcgnn: {path} cannot be used ({error}); the shipped rates apply: delete it, or run "
            "'python -m torch_tcgnn tune' again",
            stacklevel=2,
        )
        return {}


def forget_rates() -> None:
    """Read :func:`rates_file` again at the next call."""
    fitted_rates.cache_clear()
    rates_on.cache_clear()


def store_rates(device_name: str, fitted: Mapping[torch.dtype, Rates]) -> Path:
    """Add rates to :func:`rates_file`, beside those of other devices, and use them from now on.

    Raises:
        OSError: the file cannot be written.
    """
    path = rates_file()
    known = fitted_rates() | {(device_name, dtype_name(dtype)): rates for dtype, rates in fitted.items()}
    devices: dict[str, dict[str, object]] = {}
    for (name, dtype), rates in sorted(known.items()):
        devices.setdefault(name, {})[dtype] = asdict(rates)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps({"format": FORMAT, "devices": devices}, indent=1), encoding="utf-8")
    part.replace(path)
    forget_rates()
    return path


def dtype_name(dtype: torch.dtype) -> str:
    """``"float32"`` of ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def _parse(content: object) -> dict[tuple[str, str], Rates]:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"not a file of rates in format {FORMAT}")
    return {
        (device, dtype): Rates(blocks=_rate(_item(pair, "blocks")), rows=_rate(_item(pair, "rows")))
        for device, by_dtype in _items(content.get("devices"))
        for dtype, pair in _items(by_dtype)
    }


def _items(content: object) -> list[tuple[str, object]]:
    if not isinstance(content, dict):
        raise ValueError(f"expected an object, got {content!r}")
    return list(content.items())


def _item(content: object, key: str) -> object:
    if not isinstance(content, dict) or key not in content:
        raise ValueError(f"key {key!r} is missing in {content!r}")
    return content[key]


def _rate(content: object) -> Rate:
    return Rate(*(_coefficient(_item(content, field.name)) for field in fields(Rate)))


def _coefficient(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return float(value)
    raise ValueError(f"coefficients must be finite and not negative, got {value!r}")


def paths_on(path: str, device: torch.device) -> tuple[str, ...]:
    """The paths that a graph with ``path`` may take on ``device``: some of ``"tc"``, ``"cuda"``; none on a CPU.

    Raises:
        RuntimeError: ``path="tc"`` without a GPU that has the instructions used (compute capability 8.0).
    """
    capable = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    if path == "tc" and not capable:
        raise RuntimeError(f"path='tc' needs a GPU of compute capability 8.0 or later, got {device}: use path='auto'")
    if device.type != "cuda":
        return ()
    if path == "auto":
        return ("tc", "cuda") if capable else ("cuda",)
    return (path,)


def prefer_blocks(
    rows: int,
    entries: int,
    blocks: int,
    row_bytes: int,
    *,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    weighted: bool = False,
) -> bool:
    """Whether the tensor-core kernel is predicted to be faster.

    Args:
        rows: rows of the adjacency.
        entries: its entries.
        blocks: its blocks of 8 rows × 8 condensed columns.
        row_bytes: bytes of one gathered feature row.
        device: the GPU that runs; default: the shipped rates of compute capability 9.0.
        dtype: type of the features.
        weighted: whether edges have weights of their own.
    """
    rates = SM90 if device is None else rates_on(device, dtype)
    predicted = rates.predict_us(rows, entries, blocks, row_bytes, weighted=weighted)
    return predicted["tc"] < predicted["cuda"]
