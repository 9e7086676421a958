"""What ranks send each other: collectives of flat tensors, and a ring.

Keys and values travel in one flat tensor, so each exchange is one message.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

KEYS, SUMS = 0, 1
"""Tags of messages: keys and values, their gradients."""

# PyTorch 2.13 has new names for them, and warns of the old ones.
_all_gather = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor", None)
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or getattr(dist, "reduce_scatter_tensor", None)


def together(*tensors: Tensor) -> Tensor:
    """Tensors of one type in one flat tensor."""
    return torch.cat([t.reshape(-1) for t in tensors])


def apart(flat: Tensor, *like: Tensor) -> list[Tensor]:
    """The tensors of :func:`together`, of the shapes of ``like``; views."""
    return [part.view(t.shape) for part, t in zip(flat.split([t.numel() for t in like]), like, strict=True)]


def gather(x: Tensor, world: int, group: dist.ProcessGroup | None) -> Tensor:
    """What every rank has: ``[world, n]`` from ``[n]``."""
    if world == 1:
        return x.unsqueeze(0)
    found = x.new_empty(world, *x.shape)
    _all_gather(found.view(-1), x.contiguous(), group=group)  # type: ignore[misc]
    return found


def sum_and_scatter(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """This rank's row of the sum over ranks: ``[n]`` from ``[world, n]``."""
    if x.shape[0] == 1:
        return x[0]
    found = x.new_empty(x.shape[1:])
    _reduce_scatter(found, x.reshape(-1), group=group)  # type: ignore[misc]
    return found


def sum_over_ranks(tensors: list[Tensor], world: int, group: dist.ProcessGroup | None) -> list[Tensor]:
    """Sums over all ranks of tensors of any types; added in float32, or float64 where one is."""
    if world == 1 or not tensors:
        return tensors
    exact = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    flat = together(*(t.to(exact) for t in tensors))
    dist.all_reduce(flat, group=group)
    return [part.to(t.dtype) for part, t in zip(apart(flat, *tensors), tensors)]


class Transfer:
    """A message to the next rank and one from the rank before, under way."""

    def __init__(self, sent: Tensor, received: Tensor, works: list[dist.Work]) -> None:
        self.sent, self.received, self.works = sent, received, works

    def wait(self) -> Tensor:
        """What came; ``sent`` may be written to again."""
        for work in self.works:
            work.wait()
        return self.received


class Ring:
    """Each rank sends to the next, and the last to the first.

    Args:
        rank: of this process in the group.
        world: ranks, at least two.
        group: of the ranks.
    """

    def __init__(self, rank: int, world: int, group: dist.ProcessGroup | None) -> None:
        self.group = group
        whole = dist.group.WORLD if group is None else group
        assert whole is not None
        self.next, self.before = (dist.get_global_rank(whole, (rank + by) % world) for by in (1, -1))

    def pass_on(self, x: Tensor, tag: int) -> Transfer:
        """Start to send ``x`` to the next rank, and to receive what the rank before sends, of the same shape."""
        received = torch.empty_like(x)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, x, self.next, self.group, tag),
                dist.P2POp(dist.irecv, received, self.before, self.group, tag),
            ]
        )
        return Transfer(x, received, works)
