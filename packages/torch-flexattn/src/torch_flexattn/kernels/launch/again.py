"""Calls that differ from one before in nothing but addresses: its launches are made again with others filled in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from ...stats import COUNTS
from .prepared import Prepared
from .signature import MULTIPLE, Tile

Results = tuple[Tensor, Tensor, Tensor | None]


class Again:
    """How a forward pass is made again.

    Attributes:
        forward: ``(q, k, v, sinks) -> (out, lse, largest)`` for tensors of the same shapes, strides and types; it gives
            None where they are aligned otherwise. None as long as nothing was learned.
        kernel: which kernels these are (see ``stats``).
    """

    kernel: str = ""
    forward: Callable[..., Results | None] | None = None

    def learn(
        self,
        inputs: Sequence[Tensor | None],
        results: Results,
        launches: Sequence[tuple[Prepared | None, Sequence[Any]]],
        scratch: Sequence[Tensor] = (),
    ) -> None:
        """Remember the launches of a call.

        Args:
            inputs: queries, keys, values, sinks: objects of their own, of which the launches got these very ones.
            results: what the call gives.
            launches: in their order, each with its arguments.
            scratch: further tensors that the call made.
        """
        made = [t for t in (*results, *scratch) if t is not None]
        given = [t for t in inputs if t is not None]
        order, fixed = {id(t): n for n, t in enumerate((*given, *made))}, []
        picks = []
        for prepared, arguments in launches:
            tensors = [a.tensor if isinstance(a, Tile) else a for a in arguments if isinstance(a, Tensor | Tile)]
            for tensor in tensors:
                if id(tensor) not in order:
                    order[id(tensor)] = len(order)
                    fixed.append(tensor)
            if prepared is None or len(tensors) < 2:
                return
            picks.append((prepared, itemgetter(*(order[id(t)] for t in tensors))))
        used = {id(a.tensor if isinstance(a, Tile) else a) for _, arguments in launches for a in arguments}
        if all(id(t) in used for t in given):
            self.kernel = COUNTS.kernel
            self.forward = _repeated(picks, given, fixed, results, scratch)


def _repeated(
    launches: list[tuple[Prepared, Callable[[list[int]], tuple[int, ...]]]],
    given: list[Tensor],
    fixed: list[Tensor],
    results: Results,
    scratch: Sequence[Tensor],
) -> Callable[..., Results | None]:
    aligned = [t.data_ptr() % MULTIPLE == 0 for t in (*given, *fixed)]
    out, lse, largest = results
    shape, strides, dtype, device, rows = out.shape, out.stride(), out.dtype, out.device, lse.shape
    wants, room = largest is not None, [(t.shape, t.dtype) for t in scratch]

    def forward(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Results | None:
        places = [q.data_ptr(), k.data_ptr(), v.data_ptr()]
        if sinks is not None:
            places.append(sinks.data_ptr())
        found = [t.data_ptr() for t in fixed]
        if [place % MULTIPLE == 0 for place in (*places, *found)] != aligned:
            return None
        out = torch.empty_strided(shape, strides, dtype=dtype, device=device)
        lse = torch.empty(rows, dtype=torch.float32, device=device)
        largest = torch.empty(rows, dtype=torch.float32, device=device) if wants else None
        held = [torch.empty(size, dtype=kind, device=device) for size, kind in room]
        places += [out.data_ptr(), lse.data_ptr()]
        if largest is not None:
            places.append(largest.data_ptr())
        places += [t.data_ptr() for t in held]
        places += found
        for prepared, pick in launches:
            prepared.run(pick(places))
        return out, lse, largest

    return forward
