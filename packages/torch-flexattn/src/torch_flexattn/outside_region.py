"""Block masks are built and cut beside a compiled graph, not in it: how many runs they have depends on their data.

Each call is one break of the graph; ``fullgraph=True`` shows the remedy. Imported where Dynamo reads such a call, as
it imports the compiler.
"""

from __future__ import annotations

from typing import Any

import torch

from . import build, slicing

_REMEDY = (
    "how many runs a BlockMask has depends on its data: make or cut it outside of the compiled function and pass it "
    "in, or give flex_attention the mask itself as mask_mod, which needs no blocks"
)

create_block_mask: Any = torch.compiler.disable(build.create_block_mask, reason=_REMEDY)
taken: Any = torch.compiler.disable(slicing.taken, reason=_REMEDY)
queries: Any = torch.compiler.disable(slicing.queries, reason=_REMEDY)
cropped: Any = torch.compiler.disable(slicing.cropped, reason=_REMEDY)
