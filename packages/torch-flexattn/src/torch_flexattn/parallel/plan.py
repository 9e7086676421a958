"""Which rank holds which rows of blocks of a sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from ..block_mask import BlockMask
from ..errors import InputError, KindError
from ..factory_arguments import check_choice, check_count
from .balance import longest_first

Kind = Literal["contiguous", "zigzag", "balanced"]
KINDS = ("contiguous", "zigzag", "balanced")


@dataclass(frozen=True, eq=False)
class ShardPlan:
    """A sequence over ranks, made by :func:`shard_plan`: each holds equally many rows of blocks, of queries as of keys.

    Attributes:
        kind: how rows of blocks were assigned.
        length: tokens of the whole sequence.
        block: tokens of a row of blocks.
        world: ranks.
        permutation: int64 ``[blocks]`` on the CPU: the row of blocks at each place. Rank ``r`` holds the ``r``-th of
            ``world`` equal parts of it.
        costs: float64 ``[world]`` on the CPU: what each rank has to do, in full blocks of all batches and heads of the
            mask.

    Example:
        >>> from torch_flexattn import create_block_mask, masks, parallel
        >>> mask = create_block_mask(masks.causal(), None, None, 128, 128, BLOCK_SIZE=16)
        >>> plan = parallel.shard_plan(mask, 2, "zigzag")
        >>> plan.permutation.tolist(), plan.inverse.tolist()
        ([0, 1, 6, 7, 2, 3, 4, 5], [0, 1, 4, 5, 6, 7, 2, 3])

    Reference:
        Zig-zag: Llama 3 (Grattafiori et al., 2024), section 3.3.2.
    """

    kind: Kind
    length: int
    block: int
    world: int
    permutation: Tensor
    costs: Tensor
    _tables: dict[Any, Any] = field(init=False, default_factory=dict, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardPlan, (self.kind, self.length, self.block, self.world, self.permutation, self.costs)

    @property
    def local_length(self) -> int:
        """Tokens of one rank."""
        return self.length // self.world

    @property
    def inverse(self) -> Tensor:
        """The place of each row of blocks; int64 ``[blocks]``, on the CPU."""
        return self.permutation.argsort()

    @property
    def imbalance(self) -> float:
        """What the busiest rank has to do, next to the mean of all; 1 is perfect."""
        mean = float(self.costs.mean())
        return float(self.costs.max()) / mean if mean else 1.0

    def positions(self, rank: int, device: torch.device | str = "cpu") -> Tensor:
        """Where the tokens of a rank are in the whole sequence.

        Args:
            rank: whose.
            device: of the result, which is made once and kept.

        Returns:
            int32 ``[local_length]``.

        Raises:
            InputError: no such rank.
        """
        self.check_rank(rank)
        device = torch.device(device)
        key = "positions", rank, device
        if key not in self._tables:
            with torch.inference_mode(False):
                rows = self.permutation.view(self.world, -1)[rank]
                tokens = rows[:, None] * self.block + torch.arange(self.block)
                self._tables[key] = tokens.flatten().to(torch.int32).to(device)
        return self._tables[key]

    def orders(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """``permutation`` and ``inverse`` on a device, made once and kept."""
        key = "orders", device
        if key not in self._tables:
            with torch.inference_mode(False):
                self._tables[key] = self.permutation.to(device), self.inverse.to(device)
        return self._tables[key]

    def first_of_stretch(self, rank: int) -> int | None:
        """The first position of a rank whose tokens are neighbours; ``None`` where they are not."""
        key = "first", rank
        if key not in self._tables:
            rows = self.permutation.view(self.world, -1)[rank]
            self._tables[key] = int(rows[0]) * self.block if bool((rows.diff() == 1).all()) else None
        return self._tables[key]

    def check_rank(self, rank: int) -> None:
        """Raise where there is no such rank.

        Raises:
            KindError: no integer.
            InputError: negative, or not below ``world``.
        """
        if isinstance(rank, bool) or not isinstance(rank, int):
            raise KindError(f"rank must be an integer, got {rank!r}")
        if not 0 <= rank < self.world:
            raise InputError(f"rank must be from 0 to {self.world - 1}, got {rank}")

    def __repr__(self) -> str:
        return (
            f"ShardPlan({self.kind}, {self.length} tokens in blocks of {self.block} over {self.world} ranks, "
            f"imbalance={self.imbalance:.3f})"
        )


def shard_plan(block_mask: BlockMask, world: int, kind: Kind = "balanced") -> ShardPlan:
    """Cut a sequence over ranks: queries, keys and values by the same plan.

    Args:
        block_mask: of the whole sequence, as many queries as keys; its rows of blocks are what is assigned. What a row
            costs is the number of its blocks, a partial one a little more.
        world: ranks.
        kind: ``"contiguous"``: neighbouring tokens. ``"zigzag"``: of ``2 · world`` chunks, rank ``r`` holds chunks
            ``r`` and ``2 · world − 1 − r``, which is even for causal attention. ``"balanced"``: the costliest rows
            first, each to the rank with the least to do so far, until it holds its share of tokens.

    Raises:
        KindError: no block mask, or no integer.
        InputError: a length that ``world`` ranks cannot share in whole blocks; another kind.

    Example:
        >>> from torch_flexattn import create_block_mask, masks, parallel
        >>> mask = create_block_mask(masks.causal(), None, None, 1024, 1024, BLOCK_SIZE=64)
        >>> [round(parallel.shard_plan(mask, 4, kind).imbalance, 2) for kind in ("contiguous", "zigzag", "balanced")]
        [1.69, 1.0, 1.0]
    """
    if not isinstance(block_mask, BlockMask):
        raise KindError(f"block_mask must be a BlockMask, got {type(block_mask).__name__}: make one of a mask first")
    world = check_count("world", world, least=1)
    check_choice("kind", kind, KINDS)
    _, _, length, keys = block_mask.shape
    block = block_mask.block[0]
    if length != keys:
        raise InputError(f"block_mask must have as many queries as keys, got {length} and {keys}")
    parts = 2 * world if kind == "zigzag" else world
    if length == 0 or length % (parts * block):
        raise InputError(
            f"block_mask has {length} queries in blocks of {block}, which {kind} parts for world={world} ranks cannot "
            f"share: the length must be a multiple of {parts * block} (pad it, or take a smaller BLOCK_SIZE)"
        )
    count = length // block
    costs = block_mask.row_cost().view(-1, count).sum(0, dtype=torch.float64).cpu()
    rows = torch.arange(count)
    if kind == "zigzag":
        chunks = rows.view(2 * world, -1)
        rows = torch.cat([chunks[:world], chunks[world:].flip(0)], 1).flatten()
    elif kind == "balanced":
        rows = torch.tensor(longest_first(costs.tolist(), world)).flatten()
    return ShardPlan(kind, length, block, world, rows, costs[rows].view(world, -1).sum(1))
