"""torch-flexattn as an attention implementation of Hugging Face transformers.

Importing this package registers it: ``AutoModel.from_pretrained(path, attn_implementation="torch_flexattn")``.
"""

from .layer_attention import attention
from .model_mask import ModelMask, mask
from .register import NAME, register

__version__ = "0.1.0"

__all__ = ["NAME", "ModelMask", "attention", "mask", "register"]

register()
