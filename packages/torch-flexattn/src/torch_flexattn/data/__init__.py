"""Real data to try things on, read from files that are there; and documents packed into rows."""

from .llm_trace import LLMTrace, load_llm_trace
from .packed_rows import PackedRow, PackedRows
from .packing import Piece, pack_documents
from .prefix_trace import PrefixTrace, load_prefix_trace
from .wikitext import load_wikitext_documents

__all__ = [
    "LLMTrace",
    "PackedRow",
    "PackedRows",
    "Piece",
    "PrefixTrace",
    "load_llm_trace",
    "load_prefix_trace",
    "load_wikitext_documents",
    "pack_documents",
]
