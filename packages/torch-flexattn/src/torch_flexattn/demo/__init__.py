"""The package's section of the project's demo; `examples/demo.py` says what a section is."""

from .walkthrough import section

__all__ = ["section"]
