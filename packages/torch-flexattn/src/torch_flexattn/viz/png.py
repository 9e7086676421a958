"""A mask or a score modification as a PNG file, written by hand: no imaging library is needed."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from ..errors import InputError
from ..mods import MaskLike
from .draw import Drawable, draw
from .mask import Level

SIGNATURE = b"\x89PNG\r\n\x1a\n"
SEPARATED = 12
"""Pixels of a cell from which on a line sets it apart from its neighbours."""
LINE = 255


def png(
    what: Drawable,
    q_len: int | None = None,
    kv_len: int | None = None,
    *,
    batch: int = 0,
    head: int = 0,
    block: int | tuple[int, int] = 128,
    level: Level = "auto",
    value: float = 0.0,
    mask: MaskLike | None = None,
    pixels: int = 512,
) -> bytes:
    """A mask or a score modification as a PNG image; title and statistics are in the file as text.

    Blue is full, orange partial, light grey hidden; a cell of several blocks has the mixture. Where cells are
    positions, hidden ones in partial blocks are light orange. Scores: blue is great, red negative, grey masked.

    Args:
        what: see :func:`torch_flexattn.viz.text`, as are the arguments that are not here.
        q_len: queries.
        kv_len: keys.
        batch: which batch entry is shown.
        head: which head.
        block: queries and keys of a block.
        level: positions or blocks; ``"auto"``: positions where there are at most ``pixels`` of them in each direction.
        value: the score that is modified.
        mask: what is hidden, of a score modification.
        pixels: width and height, at most; a cell gets as many as fit, one at least.

    Returns:
        The content of the file.

    Raises:
        InputError: lengths that are missing or do not fit, no such batch or head, too many positions, an empty picture.
        KindError: neither a mask nor a score modification.

    Example:
        >>> from torch_flexattn import masks
        >>> png(masks.causal(), 2048)[:8] == SIGNATURE
        True

    Reference:
        W3C PNG specification, third edition, sections 5 and 11.
    """
    cells = draw(
        what, q_len, kv_len, batch=batch, head=head, block=block, level=level, value=value, mask=mask, most=pixels
    )
    if not cells.rows or not cells.columns:
        raise InputError(f"an empty picture has no pixels: {cells.size[0]} queries and {cells.size[1]} keys")
    scale = max(1, pixels // max(cells.rows, cells.columns))
    image = cells.colours.repeat_interleave(scale, 0).repeat_interleave(scale, 1)
    if scale >= SEPARATED:
        image[scale - 1 :: scale] = LINE
        image[:, scale - 1 :: scale] = LINE
    return encoded(image, {"Title": cells.title, "Description": "\n".join(cells.notes)})


def encoded(image: Tensor, texts: Mapping[str, str]) -> bytes:
    """An image as a PNG file.

    Args:
        image: uint8 ``[height, width, 3]``: red, green, blue; neither height nor width may be 0.
        texts: kept in the file, by keyword.

    Example:
        >>> encoded(torch.zeros(1, 1, 3, dtype=torch.uint8), {})[:8] == SIGNATURE
        True
    """
    height, width, _ = image.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits each of red, green and blue; not interlaced
    filters = torch.zeros(height, 1, dtype=torch.uint8)  # a byte before each line: it is stored as it is
    lines = torch.cat([filters, image.reshape(height, 3 * width)], 1)
    chunks = [(b"IHDR", header)]
    chunks += [(b"iTXt", keyword.encode("latin-1") + bytes(5) + words.encode()) for keyword, words in texts.items()]
    chunks += [(b"IDAT", zlib.compress(bytes(lines.flatten().tolist()), 9)), (b"IEND", b"")]
    return SIGNATURE + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
