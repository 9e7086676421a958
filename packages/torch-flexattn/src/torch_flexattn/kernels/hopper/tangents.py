"""How kernels of Hopper write hyperbolic tangents of scores: see ``arithmetic``."""

from __future__ import annotations

from ..triton.printer import Word

QUICK = Word("quick_tanh({0})", 1.0)
FORWARD = {"tanh": Word("tanh_of_pairs({0})", 2.8853900817779268), "tanh_approx": QUICK}
BACKWARD = {"tanh_approx": QUICK}
"""Neighbours in a tile are two queries there, of which one must not notice that the other is no number."""
