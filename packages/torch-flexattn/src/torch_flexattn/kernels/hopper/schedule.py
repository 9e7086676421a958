"""In which order programs take their blocks: longest rows first, of as many heads as a cache can hold.

Programs start in the order of their numbers. Those of one head read the same keys and values, and should run at the
same time; but where heads come one after another, the longest rows of the last head start late, and in the end most
multiprocessors wait for them. Heads of a section start their longest rows together, and what they read together fits
into the second-level cache.

Where there are more blocks than multiprocessors, programs stay and draw the next block from a counter: the warp that
fetches draws, one block ahead, and tells the groups that multiply, so that queries, keys and values of the next block
come while results of the last one are stored.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@gluon.jit
def placed(at: gl.tensor, blocks: gl.tensor, planes: gl.tensor, section: gl.tensor) -> Any:
    """Block and head of number ``at``, where each head has ``blocks`` and ``section`` heads are taken together."""
    first = at // (blocks * section) * section
    together = gl.minimum(section, planes - first)
    rest = at - first * blocks
    return rest // together, first + rest % together


@gluon.jit
def drawn(counter: gl.tensor) -> Any:
    """The next number that no program has had, beyond those that programs begin with; for a single warp."""
    LANES: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])  # type: ignore[assignment]
    lane = gl.arange(0, 32, LANES)
    before = gl.atomic_add(counter + lane, gl.full([32], 1, gl.int32, LANES), mask=lane == 0)
    return gl.sum(gl.where(lane == 0, before, 0), 0) + gl.num_programs(0)


@gluon.jit
def tell(
    numbers: gl.shared_memory_descriptor,
    ready: gl.shared_memory_descriptor,
    free: gl.shared_memory_descriptor,
    step: gl.tensor,
    number: gl.tensor,
) -> None:
    """Hand a number to the groups that multiply; for the same warp."""
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])  # type: ignore[assignment]
    mbarrier.wait(free.index(step & 1), (step >> 1 & 1) ^ 1)
    numbers.index(step & 1).store(gl.full([1], number, gl.int32, ONE))
    mbarrier.arrive(ready.index(step & 1))


@gluon.jit
def told(
    numbers: gl.shared_memory_descriptor,
    ready: gl.shared_memory_descriptor,
    free: gl.shared_memory_descriptor,
    step: gl.tensor,
) -> Any:
    """The number that was told in this step; for a group of four warps."""
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])  # type: ignore[assignment]
    mbarrier.wait(ready.index(step & 1), step >> 1 & 1)
    number = gl.max(numbers.index(step & 1).load(ONE), 0)
    mbarrier.arrive(free.index(step & 1))
    return number
