"""Which kernel a call takes on a GPU: tensor cores over bit blocks, or CUDA cores over compressed rows.

Both are bound by gathering feature rows. Blocks gather a row once a window and amortise the cost of a row over eight,
but run at eight columns a step, full or not; rows gather once an entry. The time of either is close to linear in sizes
that tensor shapes tell, so the choice costs nothing and never depends on values. It is made twice: when a graph is
translated, for each window, at a typical width (the balance hardly moves with the width); and at each call, between
that split and rows for all. Coefficients: relative least squares over graphs × widths, shipped below, or fitted on the
user's own GPU (``python -m torch_tcgnn tune``) and read from a file.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from .cache_dir import cache_dir
from .measured import read_measured, write_measured

FORMAT = 1
"""Version of the file of fitted rates."""
TYPICAL_WIDTH = 128
"""Features a row for which windows are sent to one path or the other."""
LEAST = 0.05
"""Share of the windows that must prefer a path, and of the time that must be saved, for both paths to run."""


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


WEIGHTS_TO_SLOTS = Rate(fixed=4.0, per_row=0.0, per_entry=16.0, per_byte=0.0)
"""What edge weights add to the tensor-core path: they are permuted to slots first, and looked up by rank."""
WEIGHTS_BY_ENTRY = Rate(fixed=0.0, per_row=0.0, per_entry=8.0, per_byte=0.0)
"""What edge weights add to the CUDA-core path."""


@dataclass(frozen=True)
class Work:
    """What one call gathers, by either path or both; sizes that tensor shapes tell.

    Attributes:
        windows: work items of tensor cores: windows of 8 rows.
        blocks: their blocks of 8 columns.
        slots: the entries that these hold.
        rows: rows that CUDA cores sum.
        entries: their entries.
    """

    windows: int = 0
    blocks: int = 0
    slots: int = 0
    rows: int = 0
    entries: int = 0


@dataclass(frozen=True)
class Rates:
    """Both paths of one device and feature type.

    Attributes:
        blocks: tensor cores; rows are windows of 8, entries are blocks of 8 columns.
        rows: CUDA cores; rows are rows, entries are entries of the adjacency.
    """

    blocks: Rate
    rows: Rate

    def predict_us(self, work: Work, row_bytes: int, *, weighted: bool = False) -> float:
        """Predicted time of ``work`` on feature rows of ``row_bytes`` bytes.

        Example:
            >>> rates = Rates(blocks=Rate(5.0, 0.0, 10.0, 1.0), rows=Rate(5.0, 0.0, 0.0, 0.25))
            >>> rates.predict_us(Work(rows=1_000, entries=100_000), row_bytes=512)
            17.8
        """
        us = 0.0
        if work.windows:
            us += self.blocks.predict_us(work.windows, work.blocks, row_bytes)
            us += WEIGHTS_TO_SLOTS.predict_us(0, work.slots, 0) if weighted else 0.0
        if work.rows:
            us += self.rows.predict_us(work.rows, work.entries, row_bytes)
            us += WEIGHTS_BY_ENTRY.predict_us(0, work.entries, 0) if weighted else 0.0
        return us


# Measured on an H200. Other GPUs borrow these until somebody measures them: the choice depends on the ratio of the two
# paths more than on their speed, and `tune` replaces it.
SM90 = Rates(
    blocks=Rate(fixed=4.55, per_row=828.0, per_entry=28.4, per_byte=0.989),
    rows=Rate(fixed=4.45, per_row=45.8, per_entry=0.0, per_byte=0.0929),
)
SM90_16BIT = Rates(
    blocks=Rate(fixed=3.75, per_row=736.0, per_entry=41.1, per_byte=0.926),
    rows=Rate(fixed=5.08, per_row=46.5, per_entry=1.04, per_byte=0.1275),
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
    return read_measured(rates_file(), _parse, "the shipped rates apply")


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
    write_measured(path, {"format": FORMAT, "devices": devices})
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


def prefer_blocks_by_window(
    entries: Tensor, blocks: Tensor, row_bytes: int = 4 * TYPICAL_WIDTH, rates: Rates | None = None
) -> Tensor:
    """Which windows tensor cores are predicted to sum faster: ``[W]`` boolean.

    Args:
        entries: ``[W]`` integer: entries of each window of 8 rows.
        blocks: ``[W]`` integer: blocks that they fill.
        row_bytes: bytes of one gathered feature row.
        rates: of the device and feature type; default: those of compute capability 9.0 for float32.

    Both paths together cost a launch more, and neither fills the GPU alone: unless they are predicted to be faster by
    5 % than one path for all, and at least 5 % of the windows prefer either, all windows are ``True``, or none.
    Synchronises with the device.

    Example:
        >>> entries, blocks = torch.tensor([256, 64]), torch.tensor([4, 8])  # full blocks; one entry a column
        >>> prefer_blocks_by_window(entries.repeat(9_000), blocks.repeat(9_000))[:4].tolist()
        [True, False, True, False]
        >>> prefer_blocks_by_window(entries, blocks).tolist()  # too small for two launches
        [False, False]
    """
    rates = SM90 if rates is None else rates
    a_window, a_row = rates.blocks.per_row, rates.rows.per_row
    a_block = rates.blocks.per_entry + rates.blocks.per_byte * row_bytes
    an_entry = rates.rows.per_entry + rates.rows.per_byte * row_bytes
    lost = (blocks * a_block).add_(entries, alpha=-an_entry).add_(a_window - 8 * a_row)
    sums = torch.stack([lost.clamp(max=0).sum(), (lost < 0).sum(), blocks.sum(), entries.sum()])
    gained, preferring, num_blocks, num_entries = sums.tolist()
    num_windows = max(entries.shape[0], 1)
    all_tc = rates.blocks.fixed + (a_window * num_windows + a_block * num_blocks) / 1e6
    all_cuda = rates.rows.fixed + (8 * a_row * num_windows + an_entry * num_entries) / 1e6
    both = rates.blocks.fixed + all_cuda + gained / 1e6
    if both < (1 - LEAST) * min(all_tc, all_cuda) and LEAST <= preferring / num_windows <= 1 - LEAST:
        return lost < 0
    return torch.full_like(lost, all_tc < all_cuda and num_entries > 0, dtype=torch.bool)
