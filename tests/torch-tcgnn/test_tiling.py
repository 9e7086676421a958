"""Tilings are looked up by what shapes tell, in a file that survives the process, and never stop a call."""

import json
import warnings

import pytest
import torch
from torch_tcgnn import tiling
from torch_tcgnn.tiling import (
    FARTHEST,
    BlockTiling,
    Bucket,
    RowTiling,
    bucket_of,
    forget_tilings,
    store_tilings,
    stored_tilings,
    tiling_on,
    tilings_file,
)

SMALL_TILES, LARGE_TILES = RowTiling(128, 4, 8), RowTiling(512, 1, 4)
SIZES = 4, 128, 10_000, 90_000  # bytes of an element, width, rows, entries
BUCKET = bucket_of(*SIZES)
DEVICE = "Imaginary 9000"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_TCGNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: DEVICE if device == 0 else "Another 1")
    forget_tilings()
    yield tmp_path / "cache"
    forget_tilings()


def shifted(mean=0, size=0):
    return BUCKET._replace(mean_bits=BUCKET.mean_bits + mean, size_bits=BUCKET.size_bits + size)


# --- buckets ---


@pytest.mark.parametrize("width, row_bits", [(1, 2), (16, 6), (17, 7), (32, 7), (33, 8), (128, 9), (129, 10)])
def test_rows_of_features_share_a_bucket_up_to_the_next_power_of_two(width, row_bits):
    assert bucket_of(4, width, 1, 1).row_bits == row_bits


def test_a_bucket_doubles_the_mean_and_quadruples_the_size():
    assert [bucket_of(4, 8, 100, 100 * mean).mean_bits for mean in (0, 1, 2, 3, 4, 7, 8)] == [0, 1, 2, 2, 3, 3, 4]
    assert [bucket_of(4, 8, 1, entries).size_bits for entries in (0, 1, 2, 7, 8, 31, 32)] == [0, 0, 1, 1, 2, 2, 3]


def test_graphs_without_rows_or_entries_have_a_bucket():
    assert bucket_of(2, 16, 0, 0) == Bucket(2, 5, 0, 0)


# --- look-up ---


def test_without_a_file_the_rule_applies():
    assert tiling_on(0, "rows", *SIZES) is None
    assert not tilings_file().exists()


def test_a_stored_tiling_serves_graphs_like_the_measured_one():
    store_tilings(DEVICE, {"rows": {BUCKET: SMALL_TILES}, "blocks": {BUCKET: BlockTiling(1, 3, 4)}})
    assert tiling_on(0, "rows", *SIZES) == SMALL_TILES
    assert tiling_on(0, "rows", 4, 100, 11_000, 95_000) == SMALL_TILES
    assert tiling_on(0, "blocks", *SIZES) == BlockTiling(1, 3, 4)


@pytest.mark.parametrize(
    "sizes", [(2, 128, *SIZES[2:]), (2, 256, *SIZES[2:]), (4, 32, *SIZES[2:]), (4, 129, *SIZES[2:])]
)
def test_other_types_and_widths_keep_their_rule(sizes):
    store_tilings(DEVICE, {"rows": {BUCKET: SMALL_TILES}})
    assert tiling_on(0, "rows", *sizes) is None


def test_another_device_keeps_its_rule():
    store_tilings(DEVICE, {"rows": {BUCKET: SMALL_TILES}})
    assert tiling_on(1, "rows", *SIZES) is None


@pytest.mark.parametrize("mean, size, near", [(1, 0, True), (0, -2, True), (1, 1, True), (3, 0, False), (2, -1, False)])
def test_a_near_bucket_lends_its_tiling_a_far_one_does_not(mean, size, near):
    assert (abs(mean) + abs(size) <= FARTHEST) is near
    store_tilings(DEVICE, {"rows": {shifted(mean, size): SMALL_TILES}})
    assert tiling_on(0, "rows", *SIZES) == (SMALL_TILES if near else None)


def test_the_nearest_bucket_decides_even_for_the_rule():
    store_tilings(DEVICE, {"rows": {shifted(mean=2): SMALL_TILES, shifted(size=1): None}})
    assert tiling_on(0, "rows", *SIZES) is None
    store_tilings(DEVICE, {"rows": {BUCKET: LARGE_TILES}})
    assert tiling_on(0, "rows", *SIZES) == LARGE_TILES


def test_of_equally_near_buckets_the_smallest_decides():
    store_tilings(DEVICE, {"rows": {shifted(1): LARGE_TILES, shifted(-1): SMALL_TILES}})
    assert tiling_on(0, "rows", *SIZES) == SMALL_TILES


# --- the file ---


def test_a_later_process_reads_what_was_stored():
    table = {"rows": {BUCKET: SMALL_TILES, shifted(1): None}, "blocks": {BUCKET: BlockTiling(2, 2, 4)}}
    store_tilings(DEVICE, table)
    forget_tilings()
    assert stored_tilings() == {DEVICE: table}
    assert isinstance(tiling_on(0, "rows", *SIZES), RowTiling)


def test_storing_keeps_other_devices_and_other_buckets():
    store_tilings("Another 1", {"rows": {BUCKET: LARGE_TILES}})
    store_tilings(DEVICE, {"rows": {BUCKET: LARGE_TILES, shifted(4): LARGE_TILES}})
    store_tilings(DEVICE, {"rows": {BUCKET: SMALL_TILES}})
    assert tiling_on(1, "rows", *SIZES) == LARGE_TILES
    assert tiling_on(0, "rows", *SIZES) == SMALL_TILES
    assert stored_tilings()[DEVICE]["rows"][shifted(4)] == LARGE_TILES


def test_a_failed_write_leaves_no_half_file(cache):
    cache.parent.joinpath("cache").write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="cannot be used"), pytest.raises(OSError, match="cache"):
        store_tilings(DEVICE, {"rows": {BUCKET: SMALL_TILES}})


def entry(kind="rows", **changes):
    fields = {"rows": SMALL_TILES, "blocks": BlockTiling(2, 3, 4)}[kind]._asdict()
    own = {name: changes.pop(name) for name in list(changes) if name in fields or name == "extra"}
    content = BUCKET._asdict() | {"tiling": fields | own} | changes
    return json.dumps({"format": tiling.FORMAT, "devices": {DEVICE: {kind: [content]}}})


BROKEN = {
    "half a file": '{"format": 1, "dev',
    "another format": json.dumps({"format": 0, "devices": {}}),
    "a list": "[]",
    "no devices": json.dumps({"format": tiling.FORMAT}),
    "an unknown kernel": json.dumps({"format": tiling.FORMAT, "devices": {DEVICE: {"columns": [{}]}}}),
    "an unknown field": entry(extra=1),
    "a field of the wrong type": entry(warps="4"),
    "warps that no kernel has": entry(warps=3),
    "a tile that no kernel has": entry(tile_bytes=-128),
    "a bucket that is no number": entry(size_bits=1.5),
    "an element of no type": entry(element_bytes=3),
    "more shared memory than there is": entry("blocks", warps=8, stages=4, units=2),
    "no tiling": json.dumps({"format": tiling.FORMAT, "devices": {DEVICE: {"rows": [BUCKET._asdict()]}}}),
}  # fmt: skip


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_file_that_cannot_be_used_warns_once_and_the_rules_apply(cache, content):
    cache.mkdir()
    tilings_file().write_text(content)
    with pytest.warns(UserWarning, match=r"tilings\.json cannot be used .*the launchers' rules apply"):
        assert tiling_on(0, "rows", *SIZES) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tiling_on(0, "blocks", *SIZES) is None
        assert tiling_on(1, "rows", 2, 64, 10, 10) is None


@pytest.mark.parametrize("kind", ["rows", "blocks"])
def test_the_sound_entry_that_the_broken_ones_are_made_of_is_read(cache, kind):
    cache.mkdir()
    tilings_file().write_text(entry(kind))
    assert tiling_on(0, kind, *SIZES) is not None


def test_storing_over_a_broken_file_repairs_it(cache):
    cache.mkdir()
    tilings_file().write_text("{")
    with pytest.warns(UserWarning, match="cannot be used"):
        store_tilings(DEVICE, {"rows": {BUCKET: SMALL_TILES}})
    assert tiling_on(0, "rows", *SIZES) == SMALL_TILES
