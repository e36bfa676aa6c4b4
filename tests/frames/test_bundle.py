"""Bundles: many tensors that say once what they share, and messages of frames and bundles."""

from __future__ import annotations

import base64
from dataclasses import replace

import numpy as np
import pytest
from corpus import GOLDEN, GoldenBundle, flip, golden_bundles, mutants, repair, survive
from hypothesis import given
from hypothesis import strategies as st
from make_golden import as_sendable
from strategies import BACKENDS, make, selects, tensors, using

import sparsewire as sw
from sparsewire import errors
from sparsewire.comm import Communicator, run_ranks
from sparsewire.comm.threads import ThreadCommunicator
from sparsewire.core.sparse import store
from sparsewire.exchange import ExchangeContext, Piece
from sparsewire.frames import wire
from sparsewire.frames.codec import decode_bundle, decode_parsed

BUNDLES = golden_bundles()
every_bundle = pytest.mark.parametrize("row", BUNDLES, ids=lambda row: row.name)
every_backend = pytest.mark.parametrize("backend", BACKENDS)


def frames_of(xs: list[np.ndarray], scheme: str) -> list[wire.Frame]:
    return [wire.unpack(sw.encode(x, scheme, name=str(i))) for i, x in enumerate(xs)]


def plain(frames: list[wire.Frame]) -> list[object]:
    return [replace(frame, indices=bytes(frame.indices), values=bytes(frame.values)) for frame in frames]


# --- what comes out is what went in ------------------------------------------------------------------------------


@given(xs=st.lists(tensors(), max_size=6), select=selects())
def test_a_message_holds_its_tensors_whatever_they_are(xs: list[np.ndarray], select: str) -> None:
    frames = frames_of(xs, select)
    message = wire.pack_message(frames)
    assert plain(wire.unpack_message(message)) == plain(frames)
    assert len(message) <= sum(len(wire.pack(frame)) + 5 for frame in frames)


@given(xs=st.lists(tensors(("float32",)), min_size=1, max_size=6))
def test_a_bundle_decodes_to_what_its_frames_do(xs: list[np.ndarray]) -> None:
    frames = frames_of(xs, "sbc(level=2)")
    for found, frame in zip(decode_bundle(wire.pack_bundle(frames)), frames, strict=True):
        alone = sw.decode(wire.pack(frame))
        assert (found.indices.tobytes(), found.values.tobytes()) == (alone.indices.tobytes(), alone.values.tobytes())
        assert (found.shape, found.dtype) == (alone.shape, alone.dtype)


def test_two_tensors_are_smaller_together() -> None:
    for scheme in ("topk", "nonzero | values=raw", "sbc", "topk | transform=rows(width=4)"):
        frames = frames_of([np.ones(1, np.float32)] * 2, scheme)
        assert len(wire.pack_bundle(frames)) < sum(len(wire.pack(frame)) for frame in frames)


def test_only_neighbours_that_share_all_are_bundled() -> None:
    single, double = frames_of([np.ones(9, np.float32), np.ones(9)], "topk")
    other = frames_of([np.ones(9, np.float32)], "topk | values=raw")[0]
    message = wire.pack_message([single, single, double, other, single])
    assert message.count(wire.BUNDLE_MAGIC) == 1 and message.count(wire.MAGIC) == 3
    for frames in ([], [single, double], [single, other]):
        with pytest.raises(sw.InputError, match="share"):
            wire.pack_bundle(frames)


def transformer() -> list[np.ndarray]:
    """The tensors of a small transformer: 4 blocks of 13, and an embedding."""
    block = [(384, 128), (384,), (128, 128), (128,), (512, 128), (512,), (128, 512), (128,), *[(128,)] * 4, (16, 128)]
    shapes = [*block * 4, (64, 128)]
    return [make("normal", int(np.prod(shape)), "float32", i).reshape(shape) for i, shape in enumerate(shapes)]


def test_many_small_tensors_cost_a_tenth_less() -> None:
    frames = frames_of(transformer(), "sbc(level=2)")
    assert len(frames) == 53
    apart = sum(len(wire.pack(frame)) + len(wire.varint(len(wire.pack(frame)))) for frame in frames)
    assert len(wire.pack_message(frames)) < 0.9 * apart


def test_ranks_exchange_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, gather = [], ThreadCommunicator.all_gather

    def listened(comm: ThreadCommunicator, data: bytes, channel: str = "") -> list[memoryview]:
        sent.append(bytes(data))
        return gather(comm, data, channel)

    def step(comm: Communicator) -> list[list[float]]:
        plan, out = sw.scheme("topk(50%) | values=raw"), []
        arrays = [
            make("normal", 9, kind, i + 9 * comm.rank) for i, kind in enumerate(["float32", "float32", "float64"])
        ]
        pieces = [Piece(str(i), x, x.shape, x.dtype.name) for i, x in enumerate(arrays)]
        for piece, outcome in zip(pieces, ExchangeContext(plan, comm).average(pieces), strict=True):
            outcome.mean_into(piece.x)
            out.append(piece.x.tolist())
        return out

    monkeypatch.setattr(ThreadCommunicator, "all_gather", listened)
    first, second = run_ranks(2, step)
    assert first == second and len(sent) == 2
    for rank, message in enumerate(sent):
        assert [message.count(magic) for magic in (wire.BUNDLE_MAGIC, wire.MAGIC)] == [1, 1], rank


# --- golden ------------------------------------------------------------------------------------------------------


def test_golden_bundles_are_listed() -> None:
    assert {path.stem for path in GOLDEN.glob("*.swb")} == {row.name for row in BUNDLES}


@every_backend
@every_bundle
def test_it_reads_as_it_always_did_and_is_still_written(row: GoldenBundle, backend: str) -> None:
    frames = []
    with using(backend):
        found = decode_bundle(row.frame)
        for tensor, facts in zip(row.rows, row.facts, strict=True):
            x = as_sendable(np.asarray(tensor.input), facts["dtype"])
            frames.append(wire.unpack(sw.encode(x, facts["scheme"], **facts["options"])))
    for sparse, facts in zip(found, row.facts, strict=True):
        assert (sparse.indices.tolist(), list(sparse.shape)) == (facts["indices"], facts["shape"])
        assert store(sparse.values, sparse.dtype).tobytes() == base64.b64decode(facts["values"])
    assert plain(wire.unpack_bundle(row.frame)) == plain(frames)


# --- hostile bytes -----------------------------------------------------------------------------------------------


@every_bundle
def test_a_bundle_cut_or_flipped_anywhere_is_refused(row: GoldenBundle) -> None:
    for size in range(len(row.frame)):
        with pytest.raises(sw.FrameError):
            decode_bundle(row.frame[:size])
        assert size < 5 or survive(repair(row.frame[:size]), row.max_numel) != "decoded"
    for bit in range(8 * len(row.frame)):
        with pytest.raises(sw.FrameError):
            decode_bundle(flip(row.frame, bit))


@every_bundle
def test_a_flipped_bit_behind_a_right_checksum_does_no_harm(row: GoldenBundle) -> None:
    for bit in range(8 * (len(row.frame) - 4)):
        survive(repair(flip(row.frame, bit)), row.max_numel)


@every_backend
def test_mutants_of_bundles_are_refused_or_decode_within_the_caps(backend: str) -> None:
    seen = set()
    with using(backend):
        for data, source, repaired in mutants(1500, 3, BUNDLES):
            result = survive(data, source.max_numel)
            assert repaired or result != "decoded" or data == source.frame
            seen.add(result)
    assert seen >= {"decoded", "ChecksumError", "HeaderError", "SectionError", "TruncatedFrame"}


@pytest.mark.parametrize("size", [0, 2**40, 1000])
def test_a_bundle_of_no_or_too_many_tensors_is_refused(size: int) -> None:
    frame = frames_of([np.ones(9, np.float32)], "topk")[0]
    one = wire.pack_bundle([frame])
    start = len(wire.BUNDLE_MAGIC) + 3 + len(wire.varint(len(frame.record))) + len(frame.record)
    bad = repair(one[:start] + wire.varint(size) + one[start + 1 :])
    with pytest.raises(errors.HeaderError, match=f"{size} tensors"):
        wire.unpack_bundle(bad)


def test_caps_are_the_callers() -> None:
    bundle = wire.pack_bundle(frames_of([np.ones(9, np.float32)] * 3, "topk(k=4)"))
    assert len(decode_bundle(bundle, max_numel=9, max_entries=12)) == 3
    for caps in ({"max_numel": 8}, {"max_entries": 11}):
        with pytest.raises(errors.LimitExceeded):
            decode_bundle(bundle, **caps)


def test_frames_and_bundles_are_told_apart() -> None:
    frame = sw.encode(np.ones(9, np.float32), "topk")
    bundle = wire.pack_bundle([wire.unpack(frame)])
    assert not wire.is_bundle(frame) and wire.is_bundle(bundle)
    with pytest.raises(sw.FrameError, match="a bundle of frames"):
        sw.decode(bundle)
    with pytest.raises(sw.FrameError, match="a sparsewire frame"):
        decode_bundle(frame)
    assert decode_parsed(wire.unpack_bundle(bundle)[0]).count == sw.decode(frame).count
