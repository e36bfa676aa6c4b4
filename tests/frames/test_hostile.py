"""No bytes, however wrong, do more than raise a `FrameError`. What memory they may take: test_hostile_memory.py."""

from __future__ import annotations

import itertools
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from corpus import Golden, claims, flip, golden, mutants, repair, survive, survive_inspection
from hypothesis import given
from hypothesis import strategies as st
from strategies import BACKENDS, using

import sparsewire as sw
from sparsewire import errors
from sparsewire.codecs.values import RawValues
from sparsewire.frames import wire
from sparsewire.frames.codec import decode_bundle

FRAMES = golden()
every_frame = pytest.mark.parametrize("row", FRAMES, ids=lambda row: row.name)

HEADER = 8 * 48  # bits that hold a header, and more


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
    """Every bit of the header, and of the sections every third: each bit of a byte in its turn."""
    bits = 8 * (len(row.frame) - 4)
    for bit in [*range(min(HEADER, bits)), *range(HEADER, bits, 3)]:
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


@pytest.mark.parametrize("shape", [(0, 2**62), (2**40, 0, 2**40), (0, 2**60), (0, *[2**10] * 6)])
def test_an_empty_tensor_with_sides_that_no_array_has_is_refused(shape: tuple[int, ...]) -> None:
    frame = wire.unpack(sw.encode(np.zeros((0, 3), np.float32), "topk"))
    for data in (wire.pack(replace(frame, shape=shape)), wire.pack_bundle([replace(frame, shape=shape)])):
        with pytest.raises(errors.HeaderError, match="no tensor has the shape"):
            decode_bundle(data) if wire.is_bundle(data) else sw.decode(data)
    with pytest.raises(sw.InputError, match="2\\*\\*60"):
        sw.Sparse(np.zeros(0, int), np.zeros(0, np.float32), shape)


@pytest.mark.parametrize("shape", [(0, 2**59), (0,), (3, 0, 2**30), ()])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_decodes_to_an_empty_tensor_can_be_made_dense(shape: tuple[int, ...], dtype: str) -> None:
    frame = wire.unpack(sw.encode(np.zeros((0, 3), dtype), "topk"))
    assert sw.decode(wire.pack(replace(frame, shape=shape))).to_dense().shape == shape


def test_caps_are_the_callers() -> None:
    assert sw.decode(PLAIN, max_numel=9, max_entries=4).count == 4
    for caps in ({"max_numel": 8}, {"max_entries": 3}):
        with pytest.raises(errors.LimitExceeded):
            sw.decode(PLAIN, **caps)
        with pytest.raises(errors.LimitExceeded):
            sw.inspect(PLAIN, **caps)


# --- codecs that fail --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [MemoryError(), ZeroDivisionError("by zero"), zlib.error("bad"), struct.error("short")]
)
def test_whatever_a_decoder_dies_of_is_a_frame_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(*_: object) -> None:
        raise error

    monkeypatch.setattr(RawValues, "decode", decode)
    frame = sw.encode(np.ones(3, np.float32), "topk | values=raw")
    with pytest.raises(errors.SectionError, match=str(error) or type(error).__name__) as caught:
        sw.decode(frame)
    assert caught.value.__cause__ is error


def test_an_interrupt_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RawValues, "decode", decode)
    with pytest.raises(KeyboardInterrupt):
        sw.decode(sw.encode(np.ones(3, np.float32), "topk | values=raw"))


# --- whose memory ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("values", ["raw", "entropy(0.001)", "half", "fit_poly"])
@pytest.mark.parametrize("offset", range(9))
def test_what_was_decoded_does_not_change_with_the_buffer(values: str, dtype: str, offset: int) -> None:
    x = np.array([3, 0, -1e-3, 7, 0, 50], dtype)
    frame = sw.encode(x, f"topk(k=4) | indices=raw | values={values}")
    buffer = bytearray(offset) + bytearray(frame)
    decoded = sw.decode(memoryview(buffer)[offset:])
    before = decoded.to_dense()
    buffer[:] = b"\xff" * len(buffer)
    assert decoded.to_dense().tobytes() == before.tobytes()
