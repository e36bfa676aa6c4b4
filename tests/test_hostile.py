"""No bytes, however wrong, do more than raise a `FrameError`; none take more memory than the caller allowed."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from corpus import Golden, claims, flip, golden, mutants, repair, survive, survive_inspection
from hypothesis import given
from hypothesis import strategies as st
from strategies import BACKENDS, using

import sparsewire as sw
from sparsewire import errors, wire

FRAMES = golden()
every_frame = pytest.mark.parametrize("row", FRAMES, ids=lambda row: row.name)
MEGABYTE = 2**20


@every_frame
def test_a_frame_cut_anywhere_is_refused(row: Golden) -> None:
    for size in range(len(row.frame)):
        with pytest.raises(sw.FrameError):
            sw.decode(row.frame[:size])


@every_frame
def test_every_flipped_bit_is_noticed(row: Golden) -> None:
    for bit in range(8 * len(row.frame)):
        with pytest.raises(sw.FrameError):
            sw.decode(flip(row.frame, bit))


@every_frame
def test_a_flipped_bit_behind_a_right_checksum_does_no_harm(row: Golden) -> None:
    for bit in range(8 * (len(row.frame) - 4)):
        survive(repair(flip(row.frame, bit)), row.max_numel)


@every_frame
def test_a_frame_cut_before_a_right_checksum_is_refused(row: Golden) -> None:
    for size in range(5, len(row.frame)):
        assert survive(repair(row.frame[:size]), row.max_numel) != "decoded"


@pytest.mark.parametrize("backend", BACKENDS)
def test_mutants_are_refused_or_decode_within_the_caps(backend: str) -> None:
    seen = set()
    with using(backend):
        for data, source, repaired in mutants(4000, seed=BACKENDS.index(backend)):
            result = survive(data, source.max_numel)
            assert repaired or result != "decoded" or data == source.frame
            survive_inspection(data, source.max_numel)
            seen.add(result)
    assert seen >= {"decoded", "ChecksumError", "HeaderError", "SectionError", "UnknownCodec", "TruncatedFrame"}


def test_the_backends_agree_on_every_mutant() -> None:
    results = []
    for backend in BACKENDS:
        with using(backend):
            results.append([survive(data, source.max_numel) for data, source, _ in mutants(1500, seed=9)])
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sections_may_end_anywhere(backend: str) -> None:
    for source in golden():
        frame = wire.unpack(source.frame)
        for slot, size in itertools.product(("indices", "values"), range(12)):
            cut = wire.pack(replace(frame, **{slot: bytes(getattr(frame, slot))[:size]}))
            with using(backend):
                survive(cut, source.max_numel)
                survive_inspection(cut, source.max_numel)


@given(st.binary(max_size=200))
def test_noise_is_no_frame(data: bytes) -> None:
    for attempt in (data, wire.MAGIC + data, repair(wire.MAGIC + b"\x01\x00" + data + b"\0\0\0\0")):
        assert survive(attempt, 2**20) != "decoded"


def test_inspection_of_a_lie_reports_no_negative_sizes() -> None:
    for name, data in claims():
        try:
            parts = sw.inspect(data)["parts"]
        except sw.FrameError:
            continue
        assert min(parts.values(), default=0) >= 0, name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("values", "body"),
    [
        ("half", b"\x01\x7c"),  # a signalling NaN
        ("bfloat16", b"\x81\x7f"),
        ("raw", b"\x01\x00\x80\x7f"),
        ("qsgd(2)", b"\x03" + np.float32(3.4e38).tobytes()),  # the code for NaN beside the largest norm
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_odd_numbers_decode_without_a_warning(values: str, body: bytes, dtype: str, backend: str) -> None:
    if dtype == "float64" and values in ("raw", "qsgd(2)"):
        wide = np.uint64(0x7FF0000000000001).tobytes() if values == "raw" else np.float64(1.7e308).tobytes()
        body = body[: values == "qsgd(2)"] + wide
    frame = wire.unpack(sw.encode(np.ones(1, dtype), f"topk(k=1) | values={values}"))
    with using(backend):
        assert np.isnan(sw.decode(wire.pack(replace(frame, values=body))).values).all()


# --- each defect has its name ------------------------------------------------------------------------------------

PLAIN = sw.encode(np.arange(9, dtype=np.float32), "topk(k=4) | indices=raw")


def with_byte(place: int, value: int) -> bytes:
    return repair(PLAIN[:place] + bytes([value]) + PLAIN[place + 1 :])


DEFECTS = [
    (b"", errors.TruncatedFrame),
    (PLAIN[:6], errors.TruncatedFrame),
    (b"PK\x03\x04 is a zip", errors.FrameError),
    (PLAIN[:-1] + bytes([PLAIN[-1] ^ 1]), errors.ChecksumError),
    (with_byte(4, 2), errors.UnknownVersion),
    (with_byte(5, 2), errors.HeaderError),  # flags
    (with_byte(6, 9), errors.HeaderError),  # dtype
    (with_byte(7, 33), errors.HeaderError),  # rank
    (with_byte(9, 10), errors.HeaderError),  # more entries than elements
    (with_byte(5, 1), errors.HeaderError),  # entries of so many numbers that the tensor has no rows of them
    (with_byte(12, 99), errors.UnknownCodec),
    (repair(PLAIN[:-4] + b"more" + PLAIN[-4:]), errors.HeaderError),
    (repair(PLAIN[:-8] + PLAIN[-4:]), errors.TruncatedFrame),
]


@pytest.mark.parametrize(("data", "defect"), DEFECTS)
def test_a_defect_has_its_own_error(data: bytes, defect: type[sw.FrameError]) -> None:
    with pytest.raises(sw.FrameError) as caught:
        sw.decode(data)
    assert type(caught.value) is defect


@pytest.mark.parametrize("words", [[1, 1], [2, 1], [-1, 3], [3, 9], [2**31 - 1, 5]])
def test_indices_that_do_not_ascend_below_numel_are_refused(words: list[int]) -> None:
    frame = wire.unpack(sw.encode(sw.Sparse([1, 2], np.ones(2, np.float32), (9,)), "indices=raw"))
    bad = wire.pack(replace(frame, indices=np.array(words, "<i4").tobytes()))
    with pytest.raises(errors.SectionError):
        sw.decode(bad)


def test_an_integer_has_one_form_only() -> None:
    padded = repair(PLAIN[:8] + b"\x89\x00" + PLAIN[9:])  # the shape's 9 in two bytes
    with pytest.raises(errors.HeaderError, match="shortest"):
        sw.decode(padded)


# --- caps and memory ---------------------------------------------------------------------------------------------


def test_caps_are_the_callers() -> None:
    assert sw.decode(PLAIN, max_numel=9, max_entries=4).count == 4
    for caps in ({"max_numel": 8}, {"max_entries": 3}):
        with pytest.raises(errors.LimitExceeded):
            sw.decode(PLAIN, **caps)
        with pytest.raises(errors.LimitExceeded):
            sw.inspect(PLAIN, **caps)


def peak_of(data: bytes, max_entries: int) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(sw.FrameError):
            sw.decode(data, max_entries=max_entries)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_promise_of_many_entries_takes_no_memory(backend: str) -> None:
    with using(backend):
        peaks = {name: peak_of(data, 2**28) for name, data in claims()}
    assert max(peaks.values()) < 4 * MEGABYTE, max(peaks, key=lambda name: peaks[name])


def bomb(codec: str) -> bytes:
    """64 MB of zeros in a values section of a few KB, in a frame that says it has 1000 entries."""
    zeros = bytes(64 * MEGABYTE)
    if codec.endswith("zstd"):
        body = pytest.importorskip("zstandard").ZstdCompressor().compress(zeros)
    else:
        body = zlib.compress(zeros, 1)
    frame = wire.unpack(sw.encode(np.ones(1000, np.float32), f"topk(100%) | values={codec}"))
    return wire.pack(replace(frame, values=body))


@pytest.mark.parametrize("codec", ["deflate", "zstd", "qsgd+deflate", "half+zstd", "deflate+deflate"])
def test_a_compressed_bomb_is_not_expanded(codec: str) -> None:
    assert peak_of(bomb(codec), 1000) < 4 * MEGABYTE


def test_no_claim_leaves_a_small_address_space() -> None:
    script = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"
    command = [sys.executable, script, "--count", "500", "--claims", "--memory", "256"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
