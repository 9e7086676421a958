"""How the sum kernels cut their work on this GPU: what ``tune`` measured, where it beats the rules of the launchers.

A tiling is looked up by what tensor shapes tell: bytes of an element and of a row of features, mean entries a row (or
blocks a window), and how many there are in all, each to the next power. So graphs alike share it, whichever tensors
hold them, and a later process finds it in a file. Where no measured bucket is near, the rule applies.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from .cache_dir import cache_dir
from .measured import read_measured, write_measured

FORMAT = 1
"""Version of the file."""
FARTHEST = 2
"""Powers, of mean and of size together, between a graph and the bucket whose tiling it takes."""
SHARED_BYTES = 48 << 10
"""Shared memory that a thread block has without asking for more."""
Kind = Literal["rows", "blocks"]


class RowTiling(NamedTuple):
    """Of ``csr_spmm.cu``.

    Attributes:
        tile_bytes: bytes of a row of features that one warp sums, at most.
        unroll: gathers that a lane has in flight.
        warps: warps of a thread block.
        load_bytes: bytes that a lane gathers at a time, at most.
        batched: whether lanes fetch column ids and weights for each other.
    """

    tile_bytes: int
    unroll: int
    warps: int
    load_bytes: int = 16
    batched: bool = False


class BlockTiling(NamedTuple):
    """Of ``bitblock_spmm.cu``.

    Attributes:
        units: pieces of 128 bytes of a row of features that one warp sums.
        stages: steps whose rows are held or on their way.
        warps: warps of a thread block.
    """

    units: int
    stages: int
    warps: int

    def shared_bytes(self, element_bytes: int) -> int:
        """Shared memory of a thread block: a ring for each warp, of 8 rows a stage, or 16 of 16-bit features."""
        return self.warps * self.stages * self.units * 128 * (32 // element_bytes)


Tiling = RowTiling | BlockTiling
KINDS: dict[Kind, type[RowTiling] | type[BlockTiling]] = {"rows": RowTiling, "blocks": BlockTiling}
CHOICES = {
    "tile_bytes": (128, 256, 512),
    "unroll": (1, 2, 4),
    "warps": (2, 4, 8),
    "load_bytes": (4, 8, 16),
    "batched": (False, True),
    "units": (1, 2, 4),
    "stages": (2, 3, 4),
}
"""Values that a field of a tiling may take."""


class Bucket(NamedTuple):
    """What a tiling is looked up by; see :func:`bucket_of`."""

    element_bytes: int
    row_bits: int
    mean_bits: int
    size_bits: int


Table = Mapping[Kind, Mapping[Bucket, Tiling | None]]
"""Measured buckets; ``None`` where the rule was best."""


def bucket_of(element_bytes: int, width: int, rows: int, entries: int) -> Bucket:
    """Bytes of an element; then powers of two: bytes of a row, mean ``entries / rows``; power of four: ``entries``.

    Args:
        element_bytes: of the features.
        width: features.
        rows: rows, or work items of tensor cores.
        entries: entries, or blocks.

    Example:
        >>> bucket_of(4, 128, 1_000, 9_000) == bucket_of(4, 100, 1_100, 10_000)
        True
        >>> bucket_of(4, 128, 1_000, 9_000) == bucket_of(4, 128, 1_000, 90_000)
        False
    """
    mean = entries // (rows or 1)
    return Bucket(element_bytes, _bits(width * element_bytes), mean.bit_length(), entries.bit_length() // 2)


def _bits(row_bytes: int) -> int:
    return (row_bytes - 1).bit_length()


def tiling_on(device: int, kind: Kind, element_bytes: int, width: int, rows: int, entries: int) -> Tiling | None:
    """The tiling for a call on GPU number ``device``, or ``None``: the launcher's rule; other arguments as above."""
    mean = entries // (rows or 1)
    return _nearest(device, kind, element_bytes, width, mean.bit_length(), entries.bit_length() // 2)


@functools.cache  # of integers that repeat from graph to graph: the arguments of a bucket, not the bucket, to save time
def _nearest(device: int, kind: Kind, element_bytes: int, width: int, mean_bits: int, size_bits: int) -> Tiling | None:
    """Of the measured bucket that differs least, at most :data:`FARTHEST`; of equally near ones, the smallest."""
    bucket = Bucket(element_bytes, _bits(width * element_bytes), mean_bits, size_bits)
    measured = stored_tilings().get(torch.cuda.get_device_name(device), {}).get(kind, {})
    near = [
        (abs(b.mean_bits - bucket.mean_bits) + abs(b.size_bits - bucket.size_bits), b)
        for b in measured
        if b[:2] == bucket[:2]
    ]
    distance, nearest = min(near, default=(FARTHEST + 1, bucket))
    return measured[nearest] if distance <= FARTHEST else None


def tilings_file() -> Path:
    """Where ``tune`` stores what it found."""
    return cache_dir() / "tilings.json"


@functools.cache
def stored_tilings() -> dict[str, Table]:
    """Tables by device name, of :func:`tilings_file`, read once; empty where there is none.

    A file that cannot be understood costs one warning, and the rules apply.
    """
    return read_measured(tilings_file(), _parse, "the launchers' rules apply")


def forget_tilings() -> None:
    """Read :func:`tilings_file` again at the next call."""
    stored_tilings.cache_clear()
    _nearest.cache_clear()


def store_tilings(device_name: str, table: Table) -> Path:
    """Add measured buckets to :func:`tilings_file`, beside those of other devices, and use them from now on.

    Raises:
        OSError: the file cannot be written.
    """
    path, known = tilings_file(), dict(stored_tilings())
    mine = known.get(device_name, {})
    known[device_name] = {kind: {**mine.get(kind, {}), **table.get(kind, {})} for kind in KINDS}
    devices = {
        name: {kind: [_entry(*item) for item in sorted(measured.items())] for kind, measured in tables.items()}
        for name, tables in sorted(known.items())
    }
    write_measured(path, {"format": FORMAT, "devices": devices})
    forget_tilings()
    return path


def _entry(bucket: Bucket, tiling: Tiling | None) -> dict[str, Any]:
    return bucket._asdict() | {"tiling": None if tiling is None else tiling._asdict()}


def _parse(content: Any) -> dict[str, Table]:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"not a file of tilings in format {FORMAT}")
    try:
        return {
            device: {kind: dict(_measured(kind, entry) for entry in entries) for kind, entries in tables.items()}
            for device, tables in content["devices"].items()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it is not what tune writes: {type(error).__name__} {error}") from error


def _measured(kind: Kind, entry: dict[str, Any]) -> tuple[Bucket, Tiling | None]:
    bucket = Bucket(*(entry[field] for field in Bucket._fields))
    if any(type(value) is not int for value in bucket) or bucket.element_bytes not in (2, 4, 8):
        raise ValueError(f"no bucket of a graph: {bucket}")
    if entry["tiling"] is None:
        return bucket, None
    tiling = KINDS[kind](**entry["tiling"])
    wrong = [f"{name}={value!r}" for name, value in tiling._asdict().items() if value not in CHOICES[name]]
    if wrong:
        raise ValueError(f"tilings have no {', '.join(wrong)}")
    if isinstance(tiling, BlockTiling) and tiling.shared_bytes(bucket.element_bytes) > SHARED_BYTES:
        raise ValueError(f"more than {SHARED_BYTES} bytes of shared memory: {tiling}")
    return bucket, tiling
