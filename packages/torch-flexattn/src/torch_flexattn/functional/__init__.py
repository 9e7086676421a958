"""Functions without state: they look at the arguments, and call the op."""

from .attention import flex_attention
from .auxiliary import AuxOutput, AuxRequest
from .fp8 import quantize_fp8
from .merge import merge_attention
from .selected import selected_attention
from .varlen import flex_attention_varlen

__all__ = [
    "AuxOutput",
    "AuxRequest",
    "flex_attention",
    "flex_attention_varlen",
    "merge_attention",
    "quantize_fp8",
    "selected_attention",
]
