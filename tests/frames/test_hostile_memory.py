"""Hostile bytes take no more memory than the caller's caps and the decoders' limits allow."""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from corpus import claims
from strategies import BACKENDS

import sparsewire as sw
from sparsewire import errors, kernels
from sparsewire.frames import wire
from sparsewire.frames.codec import decode_bundle

MEGABYTE = 2**20
MEGABYTES = {
    "native": 64,
    "reference": 128,
}  # that a decoder may take; NumPy writes down what the native kernels need not


def alike(count: int, width: int = 1) -> bytes:
    """Entries that are all equal take the same few bytes for any number of them."""
    ones = np.ones(count * width, np.float32)
    return sw.encode(ones, f"topk(100%) | transform=rows(width={width}) | indices=run_length | values=mean")


def test_by_default_few_bytes_decode_to_few_megabytes() -> None:
    """Few bytes may honestly say that everything is one level: the default cap holds without being asked for."""
    most = sw.decode(alike(2**22))
    assert most.indices.nbytes + most.values.nbytes == 32 * MEGABYTE
    for count, width in ((2**22 + 1, 1), (2**10 + 1, 2**12)):
        huge = alike(count, width)
        assert len(huge) < 100
        for read in (sw.decode, sw.inspect):
            with pytest.raises(errors.LimitExceeded, match=f"more than max_entries={2**22} allows"):
                read(huge)
        with pytest.raises(errors.LimitExceeded, match=f"max_entries={2**22}"):
            decode_bundle(wire.pack_bundle([wire.unpack(huge)]))


def test_a_cap_that_the_caller_raises_is_raised() -> None:
    assert sw.decode(alike(2**22 + 1), max_entries=2**22 + 1).count == 2**22 + 1


def test_large_frames_may_hold_sixteen_numbers_a_byte_without_a_word() -> None:
    """A sender of many entries is believed as far as it sent bytes for them."""
    signs = np.where(np.arange(2**23) % 3, 1, -1).astype(np.float32)
    frame = sw.encode(signs, "nonzero | values=sign_mean")
    assert len(frame) < 2**21 and sw.decode(frame).count == signs.size
    assert sw.decode(bytearray(frame)).count == sw.decode(memoryview(frame)).count == signs.size


def test_a_dense_model_of_25_million_parameters_decodes_by_default() -> None:
    x = np.ones(25_000_000, np.float32)
    assert sw.decode(sw.encode(x, "nonzero | values=raw")).count == x.size


def needing_more(frames: Iterable[tuple[str, bytes]], megabytes: int, backend: str = BACKENDS[-1]) -> list[str]:
    """The frames that cannot be decoded, or refused, within so many MB: of all memory, not of Python's alone."""
    command = [
        sys.executable,
        Path(__file__).parents[1] / "support" / "limited.py",
        str(megabytes),
        str(2**28),
        backend,
    ]
    lines = "".join(f"{name} {data.hex()}\n" for name, data in frames)
    run = subprocess.run(command, input=lines, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_promise_of_many_entries_takes_little_memory_and_time(backend: str) -> None:
    assert needing_more(claims(), MEGABYTES[backend], backend) == []


def test_a_limit_that_is_too_low_is_noticed() -> None:
    many = sw.encode(np.ones(2**20, np.float32), "topk(100%)")
    assert needing_more([("many", many)], 4) == ["many"]


CHEAP = ["entropy", "raw", "half", "qsgd", "range_float", "quantile", "fit_poly(rank_bits=1)", "fit_dexp(rank_bits=1)"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_entries_that_cost_almost_nothing_to_send_take_few_bytes_each(backend: str) -> None:
    ones, schemes = np.ones(2**20, np.float32), (f"topk(100%) | values={first}+deflate+deflate" for first in CHEAP)
    frames = {first: sw.encode(ones, s) for first, s in zip(CHEAP, schemes, strict=True)}
    assert max(map(len, frames.values())) < 2**14
    assert needing_more(frames.items(), MEGABYTES[backend], backend) == []


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
    assert needing_more([(codec, bomb(codec))], 32) == []


INSPECT_LIMITED = """
import sys, corpus, sparsewire as sw
sw.inspect(sw.encode([1.0] * 9, "topk(100%) | values=range_float+deflate"))  # what is imported when first needed
claim = sys.stdin.buffer.read()
corpus.limit_memory(16)
print(sw.inspect(claim, max_entries=2**63)["k"])
"""


def test_inspection_expands_little_whatever_a_frame_claims() -> None:
    frame = wire.unpack(sw.encode(np.ones(1000, np.float32), "topk(100%) | values=range_float+deflate"))
    body = zlib.compress(bytes(128 * MEGABYTE), 1)
    claim = wire.pack(replace(frame, shape=(2**40,), count=2**40, values=body))
    command = [sys.executable, "-W", "ignore", "-c", INSPECT_LIMITED]
    run = subprocess.run(command, input=claim, capture_output=True, cwd=Path(__file__).parents[1] / "support")
    assert run.stdout.decode().strip() == str(2**40), run.stderr.decode()


@pytest.mark.skipif("native" not in BACKENDS, reason="the extension is not built here")
def test_little_memory_is_kept_for_the_next_call() -> None:
    native = kernels.native()
    assert native
    for size in (2**22, 2**23, 2**24):
        arrays = [native.gaps(np.arange(size, dtype=np.int32)) for _ in range(8)]
        del arrays
        assert 0 < native.recycler_bytes() <= 64 * MEGABYTE


def test_no_claim_leaves_a_small_address_space() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"
    command = [sys.executable, script, "--count", "500", "--claims", "--memory", "256"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
