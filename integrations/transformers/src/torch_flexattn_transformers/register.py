"""The name under which transformers finds the attention and its masks."""

from transformers import AttentionInterface, AttentionMaskInterface

from .layer_attention import attention
from .model_mask import mask

NAME = "torch_flexattn"


def register() -> None:
    """Enter attention and masks in transformers' tables; importing the package does this.

    Example:
        >>> register()
        >>> NAME in AttentionInterface().valid_keys()
        True

    Reference:
        transformers, ``AttentionInterface`` and ``AttentionMaskInterface``.
    """
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)
