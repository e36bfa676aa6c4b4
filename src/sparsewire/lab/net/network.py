"""Ranks behind links of a given rate: a network namespace for each node, a bridge between them, a token bucket at every
end.

Needs root; nothing outside the namespaces is changed. Names carry the process that made them. A guard, which is a
process of its own, removes the namespaces and all that runs in them as soon as that process is gone, however it ended.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsewire.errors import InputError, SparsewireError

from ..arguments import UNITS, UNLIMITED, read_rate
from .ranks import Endpoint
from .stopping import Guard, new_mark, started

SUBNET, MOST = "10.231", 250 * 250
NAME = re.compile(r"sparsewire-(\d+)-(\d+)-\d+-\w+")
CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_NET_ADMIN": 12}
# Ends what runs in the namespaces, and removes them.
REMOVE = """
for name; do
  for _ in 1 2 3 4 5 6 7 8 9; do
    pids=$(ip netns pids "$name") && test -n "$pids" || break
    kill -9 $pids
    sleep 0.05
  done
  ip netns delete "$name"
done
"""


def bits_per_second(rate: str) -> float:
    return float("inf") if rate == UNLIMITED else int(rate[:-4]) * UNITS[rate[-4:]]


def burst(rate: str) -> int:
    """Bytes that a link passes at once: 2 ms at its rate, and no less than one offloaded packet."""
    return 0 if rate == UNLIMITED else max(65_536, int(bits_per_second(rate) / 8 * 0.002))


def obstacle() -> str | None:
    """The reason why this cannot run here, if there is one."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if lacking := _lacking():
        return f"network namespaces need {' and '.join(lacking)}, which root does not have here"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"{' and '.join(missing)} not found: install iproute2" if missing else None


def _lacking() -> list[str]:
    """The capabilities that are needed and that this process does not have, as root of a container; none if unknown."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return []
    effective = re.search(r"^CapEff:\s*(\w+)$", status, re.MULTILINE)
    return [name for name, bit in CAPABILITIES.items() if effective and not int(effective[1], 16) >> bit & 1]


def rates_of(nodes: int, rate: str | Sequence[str]) -> list[str]:
    """One for each node, all known."""
    rates = [rate] * nodes if isinstance(rate, str) else list(rate)
    if len(rates) != nodes or not 0 < nodes <= MOST:
        raise InputError(f"{len(rates)} rates for {nodes} nodes: give one for each, of 1 to {MOST} nodes")
    return [checked_rate(word) for word in rates]


def checked_rate(rate: str) -> str:
    """A rate as `lab train` and `Network` are given it."""
    try:
        return read_rate(rate)
    except argparse.ArgumentTypeError as error:
        raise InputError(str(error)) from None


class Network(Sequence[Endpoint]):
    """The endpoints of the ranks, `per_node` of them in each namespace; all rates alike, or one for each node.

    Networks have namespaces of their own, bridge included, so several can be there at the same time.

    >>> with Network(4, "100mbit") as endpoints:   # doctest: +SKIP
    ...     launch_ranks(job, settings, endpoints)
    ...     endpoints.set_rate("1gbit")            # at any time, while ranks use it
    """

    def __init__(self, nodes: int, rate: str | Sequence[str], per_node: int = 1, inside: tuple[str, ...] = ()) -> None:
        """`inside` is the prefix of commands in a user namespace; what is made there ends with it."""
        rates, prefix = rates_of(nodes, rate), f"sparsewire-{new_mark()}"
        if not inside:
            remove_leftovers()
        self._inside = inside
        self._hub, self._nodes = f"{prefix}-hub", [f"{prefix}-{node}" for node in range(nodes)]
        self._rates = [UNLIMITED] * nodes
        self._endpoints = [self._endpoint(node) for node in range(nodes) for _ in range(per_node)]
        self._guard = Guard("" if inside else REMOVE, self._hub, *self._nodes)
        try:
            self._build(rates)
        except BaseException:
            self.close()
            raise

    def __getitem__(self, rank: Any) -> Any:
        return self._endpoints[rank]

    def __len__(self) -> int:
        return len(self._endpoints)

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set_rate(self, rate: str, node: int | None = None) -> None:
        """Limits the links of all nodes, or of one, anew, both ways."""
        rate = checked_rate(rate)
        if self._guard.held is None:
            raise InputError("the network is closed: set rates before that")
        for one in range(len(self._nodes)) if node is None else [node]:
            for name, device in ((self._hub, f"port{one}"), (self._nodes[one], "eth0")):
                self._limit(name, device, self._rates[one], rate)
            self._rates[one] = rate

    def close(self) -> None:
        """Lets the guard remove everything, and waits for it."""
        self._guard.close()

    # --- setting up ---

    def _endpoint(self, node: int) -> Endpoint:
        return Endpoint((*self._inside, "ip", "netns", "exec", self._nodes[node]), "eth0", _address(node))

    def _build(self, rates: Sequence[str]) -> None:
        self._command("ip", "netns", "add", self._hub)
        self._in(self._hub, "ip", "link", "add", "bridge", "type", "bridge")
        self._in(self._hub, "ip", "link", "set", "bridge", "up")
        for node, rate in enumerate(rates):
            self._connect(node)
            self.set_rate(rate, node)

    def _connect(self, node: int) -> None:
        port, name = f"port{node}", self._nodes[node]
        self._command("ip", "netns", "add", name)
        self._in(self._hub, "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        self._in(self._hub, "ip", "link", "set", port, "master", "bridge", "up")
        self._in(name, "ip", "address", "add", f"{_address(node)}/16", "dev", "eth0")
        for device in ("lo", "eth0"):
            self._in(name, "ip", "link", "set", device, "up")

    def _limit(self, name: str, device: str, before: str, rate: str) -> None:
        """A token bucket; bursts are not delayed."""
        if rate != UNLIMITED:
            limit = ["rate", rate, "burst", f"{burst(rate)}b", "latency", "50ms"]
            self._in(name, "tc", "qdisc", "replace", "dev", device, "root", "tbf", *limit)
        elif before != UNLIMITED:
            self._in(name, "tc", "qdisc", "delete", "dev", device, "root")

    def _in(self, name: str, *words: str) -> None:
        self._command("ip", "netns", "exec", name, *words)

    def _command(self, *words: str) -> None:
        """The guard waits for a command that is under way when we are killed, as it holds the same end of the pipe."""
        assert self._guard.held is not None
        command = [*self._inside, *words]
        done = subprocess.run(command, capture_output=True, text=True, pass_fds=(self._guard.held,))
        if done.returncode:
            raise SparsewireError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")


def remove_leftovers() -> None:
    """Removes what processes have left that were killed together with their guards."""
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.split()
    ours = [match for match in map(NAME.fullmatch, names) if match]
    dead = [match.group() for match in ours if started(int(match[1])) != int(match[2])]
    if dead:
        Guard(REMOVE, *dead).close()


def _address(node: int) -> str:
    return f"{SUBNET}.{node // 250}.{node % 250 + 1}"
