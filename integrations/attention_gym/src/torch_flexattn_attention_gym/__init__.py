"""Masks and score modifications of attention-gym, as those of torch-flexattn.

``flex_attention`` takes attention-gym's functions as they are; :func:`convert` makes known formulas native.
"""

from .convert import FORMULAS_OF, convert, native
from .features import rope_as_features

__version__ = "0.1.0"

__all__ = ["FORMULAS_OF", "convert", "native", "rope_as_features"]
