"""torch-flexattn as the attention of torchtitan.

``--override.imports torch_flexattn_torchtitan.overrides.flex_attention`` replaces every ``FlexAttention`` of a model.
What is here needs no torchtitan; :mod:`torch_flexattn_torchtitan.overrides` imports it.
"""

from .attention import attention
from .block_masks import converted
from .documents import document_mask
from .inner_attention import InnerAttention

__version__ = "0.1.0"

__all__ = ["InnerAttention", "attention", "converted", "document_mask"]
