"""Pictures of masks and score modifications, as text, PNG and SVG; no plotting library is needed."""

from .file import save
from .png import png
from .svg import svg
from .text import text

__all__ = ["png", "save", "svg", "text"]
