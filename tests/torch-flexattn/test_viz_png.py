"""PNG files, read again by a reader of our own and by Pillow where it is installed."""

from __future__ import annotations

import io
import struct
import zlib

import pytest
import torch
from torch import Tensor
from torch_flexattn import InputError, create_block_mask, masks, scores, viz
from torch_flexattn.viz.heatmap import MASKED
from torch_flexattn.viz.mask import FULL, HIDDEN, HIDDEN_IN_PARTIAL, PARTIAL
from torch_flexattn.viz.png import encoded


def read(data: bytes) -> tuple[Tensor, dict[str, str]]:
    """Image ``[height, width, 3]`` and texts; checks every checksum and the order of the chunks."""
    assert data[:8] == bytes([137, 80, 78, 71, 13, 10, 26, 10])
    place, kinds, texts, stream, size = 8, [], {}, b"", (0, 0)
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        assert struct.unpack(">I", data[place + 8 + length : place + 12 + length])[0] == zlib.crc32(kind + body)
        kinds.append(kind)
        if kind == b"IHDR":
            *size, depth, colour, compression, filtering, interlace = struct.unpack(">IIBBBBB", body)
            assert (depth, colour, compression, filtering, interlace) == (8, 2, 0, 0, 0)
        elif kind == b"iTXt":
            keyword, _, rest = body.partition(b"\0")
            assert rest[:4] == b"\0\0\0\0"  # not compressed; no language, no translated keyword
            texts[keyword.decode()] = rest[4:].decode()
        elif kind == b"IDAT":
            stream += body
        place += 12 + length
    assert (kinds[0], kinds[-1]) == (b"IHDR", b"IEND")
    width, height = size
    lines = torch.frombuffer(bytearray(zlib.decompress(stream)), dtype=torch.uint8).view(height, 1 + 3 * width)
    assert not lines[:, 0].any()  # filter: none
    return lines[:, 1:].reshape(height, width, 3), texts


def colours_at(image: Tensor, scale: int) -> list[list[tuple[int, ...]]]:
    """The colour at the upper left of each cell."""
    return [[tuple(pixel) for pixel in row] for row in image[::scale, ::scale].tolist()]


def test_any_image_comes_back():
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (5, 3, 3), generator=generator, dtype=torch.uint8)
    back, texts = read(encoded(image, {"Title": "a × b"}))
    assert torch.equal(back, image)
    assert texts == {"Title": "a × b"}


def test_blocks_have_the_colours_of_their_kinds():
    image, texts = read(viz.png(masks.causal() & masks.sliding_window(256), 1024, pixels=80))
    kinds = create_block_mask(masks.causal() & masks.sliding_window(256), None, None, 1024, 1024).kinds()[0, 0]
    assert image.shape == (80, 80, 3)
    assert colours_at(image, 10) == [[(HIDDEN, PARTIAL, FULL)[k] for k in row] for row in kinds.tolist()]
    assert torch.equal(image[:10, :10], image[:1, :1].expand(10, 10, 3))
    assert texts["Title"] == "mask of 1024 queries × 1024 keys"
    assert "14 partial, 7 full, 43 hidden of 64 blocks" in texts["Description"]


def test_large_cells_are_set_apart_by_lines():
    image, _ = read(viz.png(masks.always(), 256, level="block", pixels=64))
    assert image.shape == (64, 64, 3)
    assert image[31].eq(255).all()
    assert image[:, 63].eq(255).all()
    assert image[:31, :31].eq(torch.tensor(FULL)).all()


def test_positions_tell_full_and_partial_blocks_apart():
    image, _ = read(viz.png(masks.causal(), 64, block=32, pixels=64))
    expected = torch.empty(64, 64, 3, dtype=torch.uint8)
    for i in range(64):
        for j in range(64):
            same = i // 32 == j // 32
            colour = (PARTIAL if i >= j else HIDDEN_IN_PARTIAL) if same else (FULL if i > j else HIDDEN)
            expected[i, j] = torch.tensor(colour, dtype=torch.uint8)
    assert torch.equal(image, expected)


def test_cells_of_several_blocks_mix_colours():
    image, _ = read(viz.png(masks.causal(), 1024, level="block", pixels=2))
    mixed = tuple(round((4 * p + 6 * f + 6 * h) / 16) for p, f, h in zip(PARTIAL, FULL, HIDDEN))
    assert colours_at(image, 1) == [[mixed, HIDDEN], [FULL, mixed]]


@pytest.mark.parametrize("sizes", [(1, 3000), (3000, 1), (700, 900)])
def test_never_larger_than_asked(sizes):
    image, _ = read(viz.png(masks.always(), *sizes, block=16, pixels=100))
    assert max(image.shape[:2]) <= 100
    assert min(image.shape[:2]) >= 1


@pytest.mark.parametrize("length", [131_072, 1 << 20])
def test_long_masks(length):
    image, _ = read(viz.png(masks.causal() & masks.sliding_window(4096), length))
    assert image.shape == (512, 512, 3)
    diagonal = image.diagonal().T
    assert not diagonal.eq(torch.tensor(HIDDEN)).all(1).any()
    assert image[0, 1:].eq(torch.tensor(HIDDEN)).all(1)[20:].all()


def test_scores_from_red_to_blue_around_zero():
    table = torch.tensor([[-1.0, -0.5, 0.0, 1.0, 2.0]])
    image, _ = read(viz.png(scores.relative_bias(table), 3, pixels=3))
    cells = colours_at(image, 1)
    assert cells[0][0] == (247, 247, 247)  # 0
    assert cells[2][0] == (33, 102, 172)  # 2
    assert cells[1][0] == (146, 197, 222)  # 1
    assert cells[0][2] == (244, 165, 130)  # -1: as far from white as 1


def test_masked_scores_are_grey():
    image, _ = read(viz.png(scores.alibi(8), 4, mask=masks.causal(), pixels=4))
    cells = colours_at(image, 1)
    grey = [[cell == MASKED for cell in row] for row in cells]
    assert grey == [[j > i for j in range(4)] for i in range(4)]


def test_pillow_reads_the_same():
    image_module = pytest.importorskip("PIL.Image")
    data = viz.png(masks.causal(), 2048)
    opened = image_module.open(io.BytesIO(data))
    opened.load()
    pixels = torch.frombuffer(bytearray(opened.tobytes()), dtype=torch.uint8).view(*reversed(opened.size), 3)
    assert torch.equal(pixels, read(data)[0])
    assert opened.text["Title"] == "mask of 2048 queries × 2048 keys"


def test_an_empty_picture_is_refused():
    with pytest.raises(InputError, match="0 queries and 5 keys"):
        viz.png(masks.causal(), 0, 5)


def test_saved_by_suffix(tmp_path):
    mask = masks.causal()
    for name, content in (
        ("a.png", viz.png(mask, 300, pixels=9)),
        ("a.svg", viz.svg(mask, 300).encode()),
        ("a.txt", (viz.text(mask, 300) + "\n").encode()),
    ):
        options = {"pixels": 9} if name.endswith("png") else {}
        viz.save(tmp_path / name, mask, 300, **options)
        assert (tmp_path / name).read_bytes() == content
    with pytest.raises(InputError, match=r"\.png, \.svg, \.txt, got .*a\.jpg"):
        viz.save(tmp_path / "a.jpg", mask, 300)
    with pytest.raises(OSError, match="missing"):
        viz.save(tmp_path / "missing" / "a.png", mask, 300)
