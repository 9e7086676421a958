"""In which order the programs of a grid take their blocks: longest rows first, of as many heads as a cache can hold.

Programs start in the order of their numbers. Those of one head read the same keys and values, and should run at the
same time; but where heads come one after another, the longest rows of the last head start late, and in the end most
multiprocessors wait for them. Heads of a section start their longest rows together, and what they read together fits
into the second-level cache.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def placed(blocks: gl.tensor, section: gl.tensor) -> Any:
    """Block and head of this program, where each head has ``blocks`` and ``section`` heads are taken together."""
    at = gl.program_id(0)
    first = at // (blocks * section) * section
    together = gl.minimum(section, gl.num_programs(0) // blocks - first)
    rest = at - first * blocks
    return rest // together, first + rest % together
