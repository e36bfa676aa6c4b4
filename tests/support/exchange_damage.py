"""Messages that a peer may damage, and what the ranks gather."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import sparsewire as sw
from sparsewire.comm import Communicator

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda data: b"",
    "cut": lambda data: data[:-1],
    "cut to the length": lambda data: data[:1],
    "longer": lambda data: data + b"\0",
    "twice": lambda data: data * 2,
    "one bit": lambda data: data[:-9] + bytes([data[-9] ^ 4]) + data[-8:],
    "another tensor": lambda data: framed(sw.encode(np.ones(9, np.float32), "topk(k=1)")),
    "another dtype": lambda data: framed(sw.encode(np.ones(257, np.float64), "topk(k=1)")),
    "too large": lambda data: framed(sw.encode(np.ones(10_000, np.float32), "topk(k=1)")),
    "a length beyond the end": lambda data: b"\xff" * 9 + data,
    "noise": lambda data: np.random.default_rng(0).bytes(len(data)),
}


def framed(frame: bytes) -> bytes:
    assert len(frame) < 128
    return bytes([len(frame)]) + frame


def gathered(comm: Communicator, array: np.ndarray) -> list[np.ndarray]:
    return [np.frombuffer(part, array.dtype).copy() for part in comm.all_gather(array, "told")]
