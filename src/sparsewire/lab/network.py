"""Ranks behind links of a given rate: a network namespace for each, a bridge between them, a token bucket at every end.

Needs root; nothing outside the namespaces is changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import SparsewireError
from .arguments import UNITS, UNLIMITED
from .launch import Place

SUBNET = "10.231.0"


def bits_per_second(rate: str) -> float:
    return float("inf") if rate == UNLIMITED else int(rate[:-4]) * UNITS[rate[-4:]]


def obstacle() -> str | None:
    """The reason why this cannot run here, if there is one."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"{' and '.join(missing)} not found: install iproute2" if missing else None


@contextmanager
def network(ranks: int, rate: str) -> Iterator[list[Place]]:
    """A namespace with an `eth0` for each rank, connected by a bridge in a namespace of its own.

    Deleting a namespace deletes everything in it, so no other clean-up is needed.
    """
    hub = f"sparsewire-{os.getpid()}-hub"
    names = [f"sparsewire-{os.getpid()}-{rank}" for rank in range(ranks)]
    try:
        _command("ip", "netns", "add", hub)
        _in(hub, "ip", "link", "add", "bridge", "type", "bridge")
        _in(hub, "ip", "link", "set", "bridge", "up")
        for rank, name in enumerate(names):
            _connect(hub, name, rank, rate)
        yield [Place(("ip", "netns", "exec", name), "eth0") for name in names]
    finally:
        for name in (hub, *names):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def _connect(hub: str, name: str, rank: int, rate: str) -> None:
    port = f"port{rank}"
    _command("ip", "netns", "add", name)
    _in(hub, "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
    _in(hub, "ip", "link", "set", port, "master", "bridge", "up")
    _in(name, "ip", "address", "add", f"{SUBNET}.{rank + 1}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        _in(name, "ip", "link", "set", device, "up")
    if rate != UNLIMITED:
        _limit(hub, port, rate)
        _limit(name, "eth0", rate)


def burst(rate: str) -> int:
    """Bytes that a link passes at once: 2 ms at its rate, and no less than one offloaded packet."""
    return 0 if rate == UNLIMITED else max(65_536, int(bits_per_second(rate) / 8 * 0.002))


def _limit(name: str, device: str, rate: str) -> None:
    """A token bucket; bursts are not delayed."""
    limit = ["rate", rate, "burst", f"{burst(rate)}b", "latency", "50ms"]
    _in(name, "tc", "qdisc", "add", "dev", device, "root", "tbf", *limit)


def _in(name: str, *words: str) -> None:
    _command("ip", "netns", "exec", name, *words)


def _command(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SparsewireError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
