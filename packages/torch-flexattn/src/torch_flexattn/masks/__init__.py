"""Masks: factories that return a :class:`~torch_flexattn.MaskMod`; combine them with ``&``, ``|`` and ``~``.

``i`` is the number of a query and ``j`` that of a key. Numbers are filled in at run time, so another length or window
is not another program. Tables lie where the tensors lie that they are made from; made from numbers or lists, on
PyTorch's default device, and ``mask.to(device)`` moves them.
"""

from .blocks import block_sparse, from_dense, topk_blocks
from .causal import causal, prefix_lm
from .constant import always, never
from .diffusion import block_diffusion
from .document import document, multi_turn_packed, padding, shared_prefix
from .global_tokens import bigbird, global_local, longformer
from .grid import axial, natten1d, natten2d, natten3d, sliding_tile, tile_order
from .lengths import with_lengths
from .multimodal import flamingo, image_text, transfusion
from .tree import tree
from .window import chunked, dilated, sliding_window, streaming

__all__ = [
    "always",
    "axial",
    "bigbird",
    "block_diffusion",
    "block_sparse",
    "causal",
    "chunked",
    "dilated",
    "document",
    "flamingo",
    "from_dense",
    "global_local",
    "image_text",
    "longformer",
    "multi_turn_packed",
    "natten1d",
    "natten2d",
    "natten3d",
    "never",
    "padding",
    "prefix_lm",
    "shared_prefix",
    "sliding_tile",
    "sliding_window",
    "streaming",
    "tile_order",
    "topk_blocks",
    "transfusion",
    "tree",
    "with_lengths",
]
