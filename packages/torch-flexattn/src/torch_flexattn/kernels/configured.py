"""Calls that say which kernels or tiles they want, or that these be found by timing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from ..errors import InputError, UnsupportedError
from ..mods import MaskMod
from ..options import KernelOptions, Tile
from ..tune.candidates import Candidate
from ..tune.winner import winner_of
from .asked import asked_tiles
from .fitting import described, run_own
from .launch.again import Again
from .launch.launch import DoesNotFit
from .passes import NAMES, Name, Pass, laid_out
from .triton import decode
from .triton.layout import last_together, without_gaps


@dataclass(frozen=True)
class Configured:
    """Kernels of a GPU as ``backend`` and ``kernel_options`` want them; methods as the functions of ``kernels.gpu``.

    Attributes:
        backend: ``"auto"``, or the name of kernels.
        options: what was asked for.
    """

    backend: Literal["auto"] | Name
    options: KernelOptions

    def takes_mods(self, q: Tensor, dropout_p: float) -> bool:
        """Whether the kernels for queries find the blocks of a mask themselves."""
        return self.backend in ("auto", "decode") and decode.serves(q, None, dropout_p)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        kv_lens: Tensor | None,
        dropout_p: float,
        seed: int | Tensor,
        check: bool,
        again: Again | None = None,
        **options: Any,
    ) -> Any:
        """See ``kernels.gpu.forward``."""
        q, k, v, kv_lens, again = laid_out(q, k, v, kv_lens, again, options)
        return self._run(Pass((q, k, v), options, kv_lens, dropout_p, seed, check, self.options.precision, again=again))

    def backward(
        self,
        grad_out: Tensor,
        grad_lse: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        *,
        kv_lens: Tensor | None,
        dropout_p: float,
        seed: int | Tensor,
        check: bool,
        deterministic: bool,
        **options: Any,
    ) -> Any:
        """See ``kernels.gpu.backward``."""
        grad_out, q, k, v = (last_together(t) for t in (grad_out, q, k, v))
        inputs = (grad_out, grad_lse, q, k, v, out, lse)
        kv_lens = without_gaps(kv_lens, options)
        call = Pass(
            inputs, options, kv_lens, dropout_p, seed, check, self.options.precision, backward=True,
            deterministic=deterministic,
        )  # fmt: skip
        return self._run(call)

    def _run(self, call: Pass) -> Any:
        names, tile = self._able(call), self.options.tile(backward=call.backward)
        if call.deterministic:
            return _run_own(call, names)  # whose bits no size and no timing changes
        if any(size is not None for size in tile):
            return _run_asked(call, names, tile)
        if not self.options.autotune:
            return _run_own(call, names)
        found = winner_of(call, names, time=self.options.autotune is True)
        if found is None:
            return _run_own(replace(call, again=None), names)  # the next call may find a winner
        return _run_found(call, found, names)

    def _able(self, call: Pass) -> tuple[Name, ...]:
        """Kernels that can serve.

        Raises:
            UnsupportedError: none can of those that were named.
        """
        if self.backend == "auto":
            if isinstance(call.options["mask"], MaskMod):
                return ("decode",)
            return tuple(name for name in NAMES if call.why_not(name) is None)
        name = self.backend
        reason = call.why_not(name)
        if reason is not None:
            raise UnsupportedError(f"backend={name!r}: {reason}")
        return (name,)


def _run_asked(call: Pass, names: tuple[Name, ...], tile: Tile) -> Any:
    """With the sizes asked for, by the first kernels that take them."""
    for name in names[:-1]:
        try:
            tiles = asked_tiles(call, name, tile)
        except InputError:
            continue
        try:
            return call.run(name, tiles)
        except DoesNotFit:
            continue
    tiles = asked_tiles(call, names[-1], tile)
    try:
        return call.run(names[-1], tiles)
    except DoesNotFit as error:
        raise UnsupportedError(f"kernel options do not fit ({error}): {tiles} for {described(call)}") from error


def _run_found(call: Pass, found: Candidate, names: tuple[Name, ...]) -> Any:
    """With the tiles that were found; those kept on disk may be of a call that needed less room."""
    try:
        return call.run(found.kernel, found.tiles)
    except DoesNotFit:
        return _run_own(call, names)


def _run_own(call: Pass, names: tuple[Name, ...]) -> Any:
    """With tiles of the kernels' own choice."""
    name = names[0]
    if name == "hopper":
        try:
            return call.run(name)
        except DoesNotFit as error:
            if len(names) == 1:
                raise UnsupportedError(f"backend='hopper' does not fit ({error}): {described(call)}") from error
            return _run_own(call, names[1:])
    return run_own(name, call)
