"""``KernelOptions``: what a caller may say about the kernels of one call, under PyTorch's names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

from .errors import InputError, KindError

PRODUCTS = ("ieee", "tf32", "tf32x3")
AUTOTUNE = (False, True, "db")
SIZES = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
THEIRS = {
    "BACKEND": "backend= of flex_attention chooses the kernels",
    "BLOCK_M1": "the backward kernels have one tile: bwd_BLOCK_M and bwd_BLOCK_N",
    "BLOCK_N1": "the backward kernels have one tile: bwd_BLOCK_M and bwd_BLOCK_N",
    "BLOCK_M2": "the backward kernels have one tile: bwd_BLOCK_M and bwd_BLOCK_N",
    "BLOCK_N2": "the backward kernels have one tile: bwd_BLOCK_M and bwd_BLOCK_N",
    "BLOCKS_ARE_CONTIGUOUS": "runs of blocks are found when a mask is made",
    "FORCE_USE_FLEX_ATTENTION": "backend='triton' does what it asks for",
    "SPLIT_KV": "the decode kernels choose it by the multiprocessors of the GPU",
    "USE_TMA": "kernels that use it are taken where they can serve, or with backend='hopper'",
    "WRITE_DQ": "the gradient of queries is always written",
}
"""Names of PyTorch's that say nothing here, and what does."""


class Tile(NamedTuple):
    """The sizes that were asked for, of one pass; ``None``: not that one.

    Attributes:
        rows: queries of a tile.
        keys: keys of a tile.
        warps: of a program.
        stages: tiles in flight.
    """

    rows: int | None = None
    keys: int | None = None
    warps: int | None = None
    stages: int | None = None


@dataclass(frozen=True)
class KernelOptions:
    """Options of the kernels of one call; what is left out is chosen by the kernels. Kernels of a CPU look at none.

    Sizes belong to the portable kernels and those of decoding; Hopper's take them where they fit (see the guide). A
    size with ``fwd_`` or ``bwd_`` before it is of that pass alone and precedes the one without.

    Attributes:
        BLOCK_M: queries of a tile: a power of two of at least 16.
        BLOCK_N: keys of a tile, likewise.
        num_warps: of a program: a power of two up to 32.
        num_stages: tiles in flight: 1 to 8.
        fwd_BLOCK_M: of the forward pass.
        fwd_BLOCK_N: of the forward pass.
        fwd_num_warps: of the forward pass.
        fwd_num_stages: of the forward pass.
        bwd_BLOCK_M: of the backward pass.
        bwd_BLOCK_N: of the backward pass.
        bwd_num_warps: of the backward pass.
        bwd_num_stages: of the backward pass.
        PRESCALE_QK: accepted, without effect: the scale always goes into the exponential.
        ROWS_GUARANTEED_SAFE: accepted, without effect: rows that see nothing are right at no cost.
        precision: of float32 products: ``"ieee"``, ``"tf32"``, or ``"tf32x3"`` (three of the latter); default: what
            PyTorch's switch for matrix products says.
        autotune: ``True`` times configurations once and keeps the fastest on disk; ``"db"`` takes what is kept and
            times nothing.

    Raises:
        InputError: a value that no kernel takes; ``autotune`` beside a size.
        KindError: a value of another type.

    Example:
        >>> KernelOptions(BLOCK_N=32, bwd_num_warps=8).text
        'BLOCK_N=32 bwd_num_warps=8'
    """

    BLOCK_M: int | None = None
    BLOCK_N: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    fwd_BLOCK_M: int | None = None
    fwd_BLOCK_N: int | None = None
    fwd_num_warps: int | None = None
    fwd_num_stages: int | None = None
    bwd_BLOCK_M: int | None = None
    bwd_BLOCK_N: int | None = None
    bwd_num_warps: int | None = None
    bwd_num_stages: int | None = None
    PRESCALE_QK: bool = False
    ROWS_GUARANTEED_SAFE: bool = False
    precision: Literal["ieee", "tf32", "tf32x3"] | None = None
    autotune: bool | Literal["db"] = False

    def __post_init__(self) -> None:
        for name in SIZED:
            _check_size(name, getattr(self, name))
        for name in ("PRESCALE_QK", "ROWS_GUARANTEED_SAFE"):
            if not isinstance(getattr(self, name), bool):
                raise KindError(f"kernel option {name} must be True or False, got {getattr(self, name)!r}")
        if self.precision is not None and self.precision not in PRODUCTS:
            raise InputError(f"kernel option precision must be one of {', '.join(PRODUCTS)}; got {self.precision!r}")
        if not isinstance(self.autotune, bool | str) or self.autotune not in AUTOTUNE:
            raise InputError(f"kernel option autotune must be False, True or 'db', got {self.autotune!r}")
        given = [name for name in SIZED if getattr(self, name) is not None]
        if self.autotune and given:
            raise InputError(
                f"kernel option autotune={self.autotune!r} finds the sizes that {given[0]}="
                f"{getattr(self, given[0])} fixes: give one of the two"
            )

    @property
    def text(self) -> str:
        """The options that differ from the default, as :meth:`parse` reads them."""
        return " ".join(f"{name}={getattr(self, name)}" for name, default in DEFAULTS if getattr(self, name) != default)

    def tile(self, *, backward: bool) -> Tile:
        """The sizes of a pass."""
        prefix = "bwd_" if backward else "fwd_"
        own = (getattr(self, prefix + name) for name in SIZES)
        return Tile(*(getattr(self, name) if size is None else size for size, name in zip(own, SIZES)))

    @staticmethod
    def parse(text: str) -> KernelOptions:
        """The options that :attr:`text` wrote."""
        words = (word.split("=") for word in text.split())
        return KernelOptions(**{name: _value(value) for name, value in words})

    @staticmethod
    def of(given: KernelOptions | Mapping[str, Any] | None) -> KernelOptions | None:
        """Options as a caller gives them; ``None`` where all are the default.

        Raises:
            InputError: an unknown name, with the nearest that is known.
            KindError: no dict and no :class:`KernelOptions`.
        """
        if given is None:
            return None
        if isinstance(given, KernelOptions):
            return given if given.text else None
        if not isinstance(given, Mapping):
            raise KindError(f"kernel_options must be a dict or KernelOptions, got {type(given).__name__}")
        for name in given:
            if name not in NAMES:
                raise InputError(_unknown(name))
        options = KernelOptions(**given)
        return options if options.text else None


SIZED = tuple(prefix + name for prefix in ("", "fwd_", "bwd_") for name in SIZES)
DEFAULTS = tuple((field.name, field.default) for field in fields(KernelOptions))
NAMES = tuple(name for name, _ in DEFAULTS)


def _check_size(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise KindError(f"kernel option {name} must be an integer, got {value!r}")
    kind = name.removeprefix("fwd_").removeprefix("bwd_")
    least, most = {"num_stages": (1, 8), "num_warps": (1, 32)}.get(kind, (16, 512))
    if not least <= value <= most or (kind != "num_stages" and value & (value - 1)):
        power = "" if kind == "num_stages" else "a power of two "
        raise InputError(f"kernel option {name} must be {power}from {least} to {most}, got {value}")


def _unknown(name: Any) -> str:
    plain = str(name).removeprefix("fwd_").removeprefix("bwd_")
    if plain in THEIRS:
        return f"kernel option {name!r} is one of PyTorch's kernels: {THEIRS[plain]}"
    folded = {known.lower(): known for known in NAMES}
    near = difflib.get_close_matches(str(name).lower(), folded, 1)
    nearest = f"the nearest is {folded[near[0]]!r}, of" if near else "there are"
    return f"unknown kernel option {name!r}; {nearest} {', '.join(NAMES)}"


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    return int(text) if text.isdigit() else text
