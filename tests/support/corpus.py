"""Golden frames and what becomes of them on a bad wire: for the tests, benchmarks/fuzz.py and the sanitizer build.

Needs sparsewire and NumPy only, neither pytest nor hypothesis.
"""

from __future__ import annotations

import base64
import itertools
import json
import random
import resource
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from covering import pairwise

import sparsewire as sw
from sparsewire import kernels
from sparsewire.core.binary import varint
from sparsewire.frames import wire
from sparsewire.frames.codec import decode_bundle

GOLDEN = Path(__file__).parents[1] / "golden"
STORED = {"float32": "<f4", "float64": "<f8", "float16": "<f2", "bfloat16": "<u2"}
MAX_ENTRIES = 2**16
BOMBED = ["raw", "half", "qsgd", "quantile", "entropy", "fit_poly", "fit_poly(rank_bits=1)", "fit_dexp", "mean",
          "sign_mean", "centroid", "range_float", "range_float(bits=auto)", "ternary"]  # fmt: skip


@dataclass(frozen=True)
class Golden:
    """A frame that every version decodes, what it was made from, and what it decodes to."""

    name: str
    frame: bytes
    facts: dict[str, Any]

    @property
    def max_numel(self) -> int | None:
        """A cap that this frame keeps and its mutants may not; none for tensors beyond all caps."""
        numel = int(np.prod(self.facts["shape"], dtype=object))
        return 2**20 if numel <= 2**20 else None

    @property
    def input(self) -> Any:
        """What was encoded: a `Sparse` where the facts have indices, else an array (float32 for bfloat16)."""
        given, dtype, shape = self.facts["input"], self.facts["dtype"], tuple(self.facts["shape"])
        values = numbers(given["values"], dtype)
        if "indices" in given:
            return sw.Sparse(given["indices"], values, shape, dtype, given.get("width", 1))
        return values.reshape(shape)


def numbers(text: str, dtype: str) -> np.ndarray:
    """Base64 of little-endian numbers as an array; bfloat16 in float32."""
    stored = np.frombuffer(base64.b64decode(text), STORED[dtype])
    return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32) if dtype == "bfloat16" else stored


def golden() -> list[Golden]:
    index = json.loads((GOLDEN / "index.json").read_text())
    return [Golden(name, (GOLDEN / f"{name}.swf").read_bytes(), facts) for name, facts in index.items()]


@dataclass(frozen=True)
class GoldenBundle:
    """A bundle that every version reads, and the facts of its tensors as those of frames."""

    name: str
    frame: bytes
    facts: list[dict[str, Any]]
    max_numel: int = 2**20

    @property
    def rows(self) -> list[Golden]:
        return [Golden(self.name, b"", facts) for facts in self.facts]


def golden_bundles() -> list[GoldenBundle]:
    index = json.loads((GOLDEN / "bundles.json").read_text())
    return [GoldenBundle(name, (GOLDEN / f"{name}.swb").read_bytes(), facts) for name, facts in index.items()]


# --- damage ------------------------------------------------------------------------------------------------------


def repair(data: bytes) -> bytes:
    """The same bytes with the checksum that goes with them: what an attacker sends."""
    return data[:-4] + struct.pack("<I", zlib.crc32(data[:-4]))


def flip(data: bytes, bit: int) -> bytes:
    out = bytearray(data)
    out[bit // 8] ^= 1 << bit % 8
    return bytes(out)


def mutate(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """One to four changes: flip a bit, overwrite, insert, delete, or splice in a piece of another frame."""
    for _ in range(rng.randint(1, 4)):
        at, size = rng.randrange(len(data) + 1), rng.randint(1, 8)
        match rng.randrange(6):
            case 0 | 1:
                data = flip(data, rng.randrange(8 * len(data))) if data else data
            case 2:
                data = data[:at] + rng.choice([b"\xff", b"\x00", b"\x80", b"\x7f"]) * size + data[at + size :]
            case 3:
                data = data[:at] + rng.randbytes(size) + data[at:]
            case 4:
                data = data[:at] + data[at + size :]
            case 5:
                start = rng.randrange(len(other))
                data = data[:at] + other[start : start + 4 * size] + data[at + 4 * size :]
    return data


def mutants(
    count: int, seed: int = 0, sources: Sequence[Golden | GoldenBundle] = ()
) -> Iterator[tuple[bytes, Golden | GoldenBundle, bool]]:
    """(bytes, the frame or bundle they come from, whether their checksum is right), `count` of them."""
    rng, frames = random.Random(seed), sources or [*golden(), *golden_bundles()]
    for i in range(count):
        source, other = frames[i % len(frames)], rng.choice(frames).frame
        if rng.random() < 0.4:
            yield mutate_section(source.frame, other, rng), source, True
            continue
        data = mutate(source.frame, other, rng)
        whole = len(data) > 4 and rng.random() < 0.8
        yield (repair(data) if whole else data), source, whole


def mutate_section(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """A frame, or bundle, that is well formed around indices or values which are not; often cut short."""
    frames = wire.unpack_bundle(data) if wire.is_bundle(data) else [wire.unpack(data)]
    place, slot = rng.randrange(len(frames)), rng.choice(["indices", "values"])
    body = bytes(getattr(frames[place], slot))
    body = body[: rng.randrange(len(body) + 1)] if rng.random() < 0.3 else mutate(body, other, rng)
    frames[place] = replace(frames[place], **{slot: body})
    return wire.pack_bundle(frames) if wire.is_bundle(data) else wire.pack(frames[0])


def claims() -> Iterator[tuple[str, bytes]]:
    """Small frames with a right checksum that ask for far more memory or work than they are worth."""
    for source in golden():
        frame = wire.unpack(source.frame)
        if frame.count:
            for count, numel in ((2**28, 2**28), (2**28, 2**45), (frame.count + 1, 2**62)):
                yield f"{source.name}-{count}-{numel}", wire.pack(replace(frame, shape=(numel,), count=count))
    for bundle in golden_bundles():
        frames = wire.unpack_bundle(bundle.frame)
        for count, numel in ((2**26, 2**28), (2**24, 2**45)):
            yield (
                f"{bundle.name}-{count}-{numel}",
                wire.pack_bundle([replace(frames[0], shape=(numel,), count=count)] * 4),
            )
    yield from spectra()
    yield from full_filters()
    yield from bombs()


def spectra() -> Iterator[tuple[str, bytes]]:
    """Tensors of many elements, with the longest chunks that there are, in a few bytes."""
    head = wire.unpack(sw.encode(np.ones(4, np.float32), "topk(k=1) | transform=fft | indices=raw | values=raw"))
    tiles = "dct(block=1024, two_dimensional=true)"
    for transform, shape in itertools.product(("fft(chunk=65536)", tiles), ((2**45,), (2**30, 2**30), (1024, 2**50))):
        record = sw.scheme(f"topk | transform={transform} | indices=raw | values=raw").record
        width = 2 if transform.startswith("fft") else 1
        indices, values = np.array([7], "<i8").tobytes(), np.ones(width, "<f4").tobytes()
        frame = replace(head, record=record, shape=shape, width=width, indices=indices, values=values)
        yield f"{transform}-{shape}".replace(" ", ""), wire.pack(frame)


def full_filters(count: int = 10_000) -> Iterator[tuple[str, bytes]]:
    """Bloom filters with many positives to choose from, or many elements to ask for."""
    policies, layouts = ("naive", "p0", "p1", "p2"), ("classic", "blocked")
    fills = [(b"\xff" * 64, 2**18), (b"\xff" * 64, 2_600_000), (b"\xfe" * 64, 2_600_000), (b"\x01" * 2**14, 2**33)]
    entries = sw.Sparse(np.arange(count), np.ones(count, np.float32), (2**33,))
    head = wire.unpack(sw.encode(entries, "indices=run_length"))  # the values are one number
    for policy, layout, hashes, (data, numel) in pairwise(policies, layouts, (1, 32), fills):
        record = sw.scheme(f"nonzero | indices=bloom(0.1, {policy}, {layout})").record
        size = varint(8 * len(data)) if layout == "classic" else b"\x08"
        body = bytes(8) + bytes([policies.index(policy), hashes]) + size + data
        frame = replace(head, record=record, indices=body, shape=(numel,))
        yield f"bloom-{policy}-{layout}-{hashes}-{data[:1].hex()}-{numel}", wire.pack(frame)


def bombs(count: int = 2**21) -> Iterator[tuple[str, bytes]]:
    """Values sections that a byte codec, or two, blow up to far more than `count` values take."""
    head = wire.unpack(sw.encode(np.ones(1, np.float32), "topk(100%)"))
    zeros = zlib.compress(bytes(48 * count), 1)
    for source, twice in itertools.product(BOMBED, (False, True)):
        record = sw.scheme(f"topk | indices=best | values={source}+deflate{twice * '+deflate'}").record
        body = zlib.compress(zeros, 1) if twice else zeros
        yield (
            f"bomb-{source}-{1 + twice}",
            wire.pack(replace(head, record=record, values=body, shape=(count,), count=count)),
        )


# --- what must hold ----------------------------------------------------------------------------------------------


def limit_memory(megabytes: int) -> None:
    """Whatever would take more than this from now on fails, native or not."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + megabytes * 2**20, resource.RLIM_INFINITY))


def defect(error: sw.SparsewireError) -> str:
    """Its name. What a codec died of is in the error that stands for it: only its own `ValueError` is no finding."""
    if error.__cause__ is not None and not isinstance(error.__cause__, ValueError):
        raise error.__cause__
    return type(error).__name__


def survive(data: bytes, max_numel: int | None, max_entries: int = MAX_ENTRIES) -> str:
    """The defect's name, or "decoded" for a tensor within the caps. Any other exception is a finding."""
    caps = {"max_numel": max_numel, "max_entries": max_entries}
    try:
        tensors = decode_bundle(data, **caps) if wire.is_bundle(data) else [sw.decode(data, **caps)]
    except sw.SparsewireError as error:
        return defect(error)
    assert sum(sparse.values.size for sparse in tensors) <= max_entries
    for sparse in tensors:
        check_decoded(sparse, max_numel, max_entries)
    return "decoded"


def check_decoded(sparse: sw.Sparse, max_numel: int | None, max_entries: int) -> None:
    assert sparse.count * sparse.width == sparse.values.size <= max_entries
    assert max_numel is None or sparse.numel <= max_numel
    assert sparse.indices.dtype == kernels.index_dtype(sparse.size)
    if sparse.count:
        assert 0 <= sparse.indices[0] <= sparse.indices[-1] < sparse.size
        assert (np.diff(sparse.indices) > 0).all()
    if sparse.transform is not None and max_numel is not None:
        assert sparse.to_dense().shape == sparse.shape


def survive_inspection(data: bytes, max_numel: int | None) -> None:
    try:
        sizes = sw.inspect(data, max_numel=max_numel, max_entries=MAX_ENTRIES)["sections"]
    except sw.SparsewireError as error:
        defect(error)
        return
    assert sum(sizes.values()) == len(data)
