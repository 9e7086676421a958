"""The blocks of a mask: which are visible in full, which in part, as runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .analysis.exact_tiles import count
from .analysis.geometry import Blocks, Geometry
from .block_tree import register
from .errors import InputError
from .mods import MaskLike, MaskMod
from .program import parse
from .runs import columns_of, lengths_of, row_cost, rows_of, transpose, used
from .runs_in_room import transpose_within
from .shown import show

FORMAT = 1
"""Version of saved masks."""
Index = int | slice | Tensor | list[int]


@dataclass(frozen=True, eq=False)
class BlockMask:
    """A mask as runs of blocks, made by :func:`create_block_mask`.

    A block is *full* where all its positions inside the mask are visible, *partial* where some are. Rows of blocks are
    numbered ``(batch · heads + head) · rows + row``.

    Attributes:
        row_ptr: int32 ``[batches · heads · rows + 1]``: first run of each row.
        runs: int32 ``[n, 2]``: (first column, column after the last << 1 | is_full), ascending inside a row. A run is a
            maximal stretch of neighbouring columns of one kind.
        shape: batches, heads, queries, keys. Batches and heads are 1 unless the mask depends on them.
        block: queries and keys of a block, multiples of 16.
        mod: what is visible in partial blocks; ``None``: there are none.
        listed: whether blocks may be missing that ``mod`` alone would show (they came from a list).
        room: blocks that a list has room for; the device knows how many there are. ``None``: all ``runs`` are used.

    Example:
        >>> from torch_flexattn import create_block_mask
        >>> mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 1000, 1000)
        >>> mask.nnz_blocks(), round(mask.sparsity(), 2)
        ((8, 28), 43.75)

    Reference:
        FlexAttention (MLSys 2025), section 3.2; runs instead of lists of blocks are this package's.
    """

    row_ptr: Tensor
    runs: Tensor
    shape: tuple[int, int, int, int]
    block: tuple[int, int]
    mod: MaskMod | None = None
    listed: bool = False
    room: int | None = None
    _columns: list[tuple[Tensor, Tensor]] = field(init=False, default_factory=list, repr=False)

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.row_ptr.device

    @property
    def geometry(self) -> Geometry:
        """Numbers of blocks."""
        return Geometry(self.shape, self.block, self.device)

    @property
    def BLOCK_SIZE(self) -> tuple[int, int]:
        """Queries and keys of a block."""
        return self.block

    @property
    def density(self) -> float:
        """Share of blocks that are computed, from 0 to 1."""
        geometry = self.geometry
        blocks = geometry.planes * geometry.rows * geometry.columns
        return sum(self.nnz_blocks()) / blocks if blocks else 0.0

    def sparsity(self) -> float:
        """Percentage of blocks that are not computed, as PyTorch counts."""
        return 100 * (1 - self.density)

    def numel(self) -> int:
        """Positions of the mask, visible or not."""
        batches, heads, queries, keys = self.shape
        return batches * heads * queries * keys

    def nnz_blocks(self) -> tuple[int, int]:
        """Partial and full blocks."""
        runs = used(self.row_ptr, self.runs)
        lengths = lengths_of(runs)
        full = int((lengths * (runs[:, 1] & 1)).sum())
        return int(lengths.sum()) - full, full

    def visible_pairs(self) -> int:
        """Visible positions; those of partial blocks are counted one by one."""
        geometry = self.geometry
        runs = used(self.row_ptr, self.runs)
        row, is_full = rows_of(self.row_ptr, runs.shape[0]) % max(geometry.rows, 1), (runs[:, 1] & 1).bool()
        height = (self.shape[2] - row * self.block[0]).clamp(max=self.block[0])
        stop = ((runs[:, 1] >> 1).long() * self.block[1]).clamp(max=self.shape[3])
        pairs = int((height * (stop - runs[:, 0].long() * self.block[1]) * is_full).sum())
        return pairs if self.mod is None else pairs + count(self.mod, geometry, self.blocks(full=False))

    def blocks(self, *, full: bool) -> Blocks:
        """The full or the partial blocks, row by row."""
        row, column, is_full = columns_of(self.row_ptr, self.runs)
        row, column = row[is_full == full], column[is_full == full]
        rows = max(self.geometry.rows, 1)
        return Blocks.at(row // rows, row % rows, column)

    def row_cost(self) -> Tensor:
        """Work of each row of blocks, float32 ``[batches · heads · rows]``: a full block is 1, a partial one 1.15."""
        return row_cost(self.row_ptr, self.runs)

    def transpose_runs(self) -> tuple[Tensor, Tensor]:
        """The same blocks by columns, for the backward pass; made at the first call and kept.

        Of a mask from a list of blocks, made without waiting for the device: there are as many runs as ``room``, and
        ``col_ptr`` says which are used.

        Returns:
            ``col_ptr`` int32 ``[batches · heads · columns + 1]`` and runs int32 ``[m, 2]``, of rows.
        """
        if not self._columns:
            geometry = self.geometry
            sizes = geometry.planes, geometry.rows, geometry.columns
            with torch.inference_mode(False):
                if self.room is None:
                    self._columns.append(transpose(self.row_ptr, self.runs, *sizes))
                else:
                    self._columns.append(transpose_within(self.room, self.row_ptr, self.runs, *sizes))
        return self._columns[0]

    def memory_bytes(self) -> int:
        """Of its own tensors, without what the mask captures."""
        tensors = (self.row_ptr, self.runs, *(t for pair in self._columns for t in pair))
        return sum(t.numel() * t.element_size() for t in tensors)

    def kinds(self) -> Tensor:
        """Every block: 0 hidden, 1 partial, 2 full; int8 ``[batches, heads, rows, columns]``."""
        geometry = self.geometry
        kinds = torch.zeros(geometry.planes * geometry.rows, geometry.columns, dtype=torch.int8, device=self.device)
        row, column, is_full = columns_of(self.row_ptr, self.runs)
        kinds[row, column] = is_full.to(torch.int8) + 1
        return kinds.view(*self.shape[:2], geometry.rows, geometry.columns)

    def to_dense(self) -> Tensor:
        """1 where a block is computed, else 0; int32 ``[batches, heads, rows, columns]``, as PyTorch's."""
        return self.kinds().ne(0).to(torch.int32)

    def to_element_mask(self) -> Tensor:
        """The whole mask, bool ``[batches, heads, queries, keys]``: for small ones."""
        queries, keys = self.shape[2:]
        kinds = self.kinds().repeat_interleave(self.block[0], 2)[:, :, :queries]
        kinds = kinds.repeat_interleave(self.block[1], 3)[..., :keys]
        if self.mod is None:
            return kinds == 2
        sizes = [torch.arange(n, dtype=torch.int32, device=self.device) for n in self.shape]
        b, h, q, kv = (s.view([-1 if k == place else 1 for k in range(4)]) for place, s in enumerate(sizes))
        return (kinds == 2) | ((kinds == 1) & self.mod(b, h, q, kv))

    def __getitem__(self, index: Index | tuple[Index, ...]) -> BlockMask:
        """The mask of some batches, heads and rows of blocks: ``mask[b, h, rows]``, each an integer, slice or indices.

        All dimensions stay, an integer leaves 1. Indices of the new mask count from 0, and its ``mod`` knows that.

        Raises:
            OutOfRangeError: outside the mask, or more than three indices.
        """
        return _cutting().taken(self, index if isinstance(index, tuple) else (index,))

    def slice_q(self, start: int, stop: int) -> BlockMask:
        """The mask of queries ``start`` to before ``stop``, which count from 0 then.

        Raises:
            InputError: outside the mask; ``start`` inside a block of a mask that came from a list of blocks.
        """
        return _cutting().queries(self, start, stop)

    def crop(self, q_len: int, kv_len: int) -> BlockMask:
        """The mask of the first queries and keys.

        Raises:
            InputError: longer than the mask.
        """
        return _cutting().cropped(self, q_len, kv_len)

    def to(self, device: torch.device | str) -> BlockMask:
        """On another device, with what it captures."""
        mod = None if self.mod is None else self.mod.to(device)
        moved = self.row_ptr.to(device), self.runs.to(device)
        return BlockMask(*moved, self.shape, self.block, mod, self.listed, self.room)

    @classmethod
    def from_block_indices(
        cls,
        kv_indices: Tensor,
        kv_num: Tensor | None = None,
        *,
        q_len: int,
        kv_len: int,
        block: tuple[int, int] = (128, 128),
        group: int = 1,
        mod: MaskLike | None = None,
        check: bool | None = None,
    ) -> BlockMask:
        """From lists of blocks; see :func:`torch_flexattn.from_block_indices`."""
        from .block_lists import from_block_indices

        return from_block_indices(
            kv_indices, kv_num, q_len=q_len, kv_len=kv_len, block=block, group=group, mod=mod, check=check
        )

    @classmethod
    def from_torch(cls, mask: Any) -> BlockMask:
        """From PyTorch's ``BlockMask``; see :func:`torch_flexattn.torch_masks.from_torch`."""
        from .torch_masks import from_torch

        return from_torch(mask)

    def to_torch(self) -> Any:
        """As PyTorch's ``BlockMask``; see :func:`torch_flexattn.torch_masks.to_torch`."""
        from .torch_masks import to_torch

        return to_torch(self)

    def viz(self, **options: Any) -> str:
        """A picture of characters; see :func:`torch_flexattn.viz.text`, which has the options."""
        return show("picture", self, **options)

    def state(self) -> dict[str, Any]:
        """All of it as tensors, numbers and text: what is saved and pickled."""
        mod = self.mod
        return {
            "format": FORMAT,
            "row_ptr": self.row_ptr,
            "runs": self.runs,
            "shape": list(self.shape),
            "block": list(self.block),
            "listed": self.listed,
            "program": None if mod is None else mod.program.text,
            "captures": [] if mod is None else [c.detach() for c in mod.captures],
            "scalars": [] if mod is None else list(mod.scalars),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> BlockMask:
        """From what :meth:`state` gave.

        Raises:
            InputError: made by another version.
        """
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            got = state.get("format") if isinstance(state, dict) else type(state).__name__
            raise InputError(f"not a saved BlockMask of format {FORMAT}, got {got!r}")
        text = state["program"]
        mod = None if text is None else MaskMod(parse(text), tuple(state["captures"]), tuple(state["scalars"]))
        shape, block = tuple(state["shape"]), tuple(state["block"])
        return cls(state["row_ptr"], state["runs"], shape, block, mod, state["listed"])

    def save(self, path: str | Path) -> None:
        """Write it to a file that :meth:`load` reads."""
        torch.save(self.state(), path)

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str | None = None) -> BlockMask:
        """Read a file that :meth:`save` wrote, and nothing but tensors, numbers and text.

        Args:
            path: the file.
            device: where the tensors go; by default where they were.

        Raises:
            InputError: no file of a block mask, or one made by another version.
            OSError: no file that can be read.
        """
        try:
            state = torch.load(path, map_location=device, weights_only=True)
        except OSError:
            raise
        except Exception as error:  # of other files, the unpickler's may be any
            # What PyTorch says of such files advises to run what is in them.
            raise InputError(f"path {str(path)!r} holds no block mask: {type(error).__name__}") from None
        return cls.from_state(state)

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_state, (self.state(),)

    def __repr__(self) -> str:
        batches, heads, queries, keys = self.shape
        size = f"{batches}×{heads}×{queries}×{keys}"
        return (
            f"BlockMask({size}, block={self.block[0]}×{self.block[1]}, runs={self.runs.shape[0]}, device={self.device})"
        )

    def __str__(self) -> str:
        from .block_text import picture

        return picture(self)


def _cutting() -> Any:
    if torch.compiler.is_dynamo_compiling():
        from . import outside_region

        return outside_region
    from . import slicing

    return slicing


def _from_state(state: dict[str, Any]) -> BlockMask:
    return BlockMask.from_state(state)


register(BlockMask)
torch.serialization.add_safe_globals([_from_state])  # tensors, numbers and text: ``weights_only`` may load it
