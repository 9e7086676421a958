"""What goes wrong, by kind. Each is also the built-in exception that fits, so callers may catch either."""

from __future__ import annotations


class FlexAttentionError(Exception):
    """Anything that this package refuses."""


class InputError(FlexAttentionError, ValueError):
    """Shapes, sizes or values that do not fit together."""


class KindError(FlexAttentionError, TypeError):
    """Something of the wrong type: a dtype, a number of arguments, no function."""


class UnsupportedModError(FlexAttentionError, NotImplementedError):
    """A mask or score modification that does what kernels cannot."""


class UnsupportedError(FlexAttentionError, NotImplementedError):
    """A combination of options that no kernel serves."""
