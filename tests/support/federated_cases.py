"""Small models, trainings that are random steps, and schemes for the tests of federated rounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsewire.federated import Client, Server

STC = "topk(10%) | indices=golomb | values=sign_mean | memory=residual"
SCHEMES = [
    "fedavg",
    STC,
    "sbc(ratio=0.1)",
    "deepreduce_fl(fpr=0.05)",
    "deepreduce_fl(policy=p2)",
    "topk(20%) | values=entropy | memory=residual(decay=0.9)",
    "topk(20%) | transform=fft(chunk=32) | values=range_float | memory=residual",
    "topk(20%) | transform=dct(block=4, two_dimensional=true) | values=raw | memory=residual",
    "topk(30%) | transform=rows(width=4) | memory=residual",
    "randomk(20%) | values=qsgd(4) | memory=none",
]
DTYPES = ["float32", "float64", "float16"]


def weights(dtype: str = "float32", seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "layer.weight": rng.normal(size=(12, 20)).astype(dtype),
        "layer.bias": rng.normal(size=20).astype(dtype),
        "head.weight": rng.normal(size=(20, 7)).astype(dtype),
        "batches": np.array(seed, np.int64),
    }


def trained(given: dict[str, np.ndarray], rng: np.random.Generator, scale: float = 0.1) -> dict[str, np.ndarray]:
    """What a client's training might make of the weights."""
    moved = {}
    for name, array in given.items():
        step = rng.normal(size=array.shape) * scale
        moved[name] = array + (1 if array.dtype.kind == "i" else step.astype(array.dtype))
    return moved


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    """Bit for bit, and of the same types."""
    return set(a) == set(b) and all(
        a[name].dtype == b[name].dtype and a[name].shape == b[name].shape and a[name].tobytes() == b[name].tobytes()
        for name in a
    )


def alike(a: Any, b: Any) -> bool:
    """Whether two states hold the same bits."""
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(alike(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(alike, a, b))
    return same({"": a}, {"": b}) if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) else bool(a == b)


class Crowd:
    """A server and clients that take part by chance."""

    def __init__(self, up: str, down: str | None = None, clients: int = 5, dtype: str = "float32", **settings: Any):
        self.server = Server(weights(dtype), up, down, **settings)
        self.clients = {i: Client(up, name=i) for i in range(clients)}
        self.rng = np.random.default_rng(1)

    def answer(self, client: int, examples: int = 1) -> bytes:
        """Receive, train, and the message for the server."""
        given = self.clients[client].receive(self.server.broadcast(client))
        assert same(given, self.server.weights)
        return self.clients[client].update(trained(given, self.rng), examples=examples)

    def round(self, *clients: int) -> Any:
        for client in clients:
            self.server.add(client, self.answer(client, examples=10 + client))
        return self.server.finish_round()
