"""The store of ranks whose connections lead through a proxy: the addresses that gloo publishes become the proxy's."""

from __future__ import annotations

import datetime
import re
import socket
from typing import Any

import torch.distributed as dist

from sparsewire.errors import SparsewireError

from .proxy import HOME

# A socket address as the kernel has it: the family, the port and 127.0.0.1.
ADDRESS = re.compile(rb"(\x02\x00?)(..)" + re.escape(socket.inet_aton(HOME)), re.DOTALL)


class ProxyStore(dist.Store):  # type: ignore[misc]
    """What is set is searched for this rank's own address; all else is the inner store's."""

    def __init__(self, inner: Any, rank: int, proxy: str) -> None:
        super().__init__()
        self._inner, self._rank, self._proxy = inner, rank, proxy
        self.addresses = 0

    def set(self, key: str, value: Any) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._inner.set(key, ADDRESS.sub(self._changed, data))

    def _changed(self, found: re.Match[bytes]) -> bytes:
        host, _, port = self._proxy.partition(":")
        with socket.create_connection((host, int(port))) as connection, connection.makefile("rw") as file:
            file.write(f"{self._rank} {int.from_bytes(found[2], 'big')}\n")
            file.flush()
            answer = file.readline().strip()
        if not answer.isdecimal():
            raise SparsewireError(answer or "the proxy does not answer")
        self.addresses += 1
        return found[1] + int(answer).to_bytes(2, "big") + socket.inet_aton(HOME)

    def get(self, key: str) -> bytes:
        return bytes(self._inner.get(key))

    def add(self, key: str, amount: int) -> int:
        return int(self._inner.add(key, amount))

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        self._inner.wait(keys, *([] if timeout is None else [timeout]))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return bytes(self._inner.compare_set(key, expected, desired))

    def delete_key(self, key: str) -> bool:
        return bool(self._inner.delete_key(key))

    def num_keys(self) -> int:
        return int(self._inner.num_keys())


def meet(store: str, rank: int, size: int, limit: datetime.timedelta, proxy: str) -> ProxyStore:
    """Makes the process group over a proxy; refuses to go on where the ranks would not meet through it."""
    inner = dist.FileStore(store, size)
    inner.set_timeout(limit)
    ours = ProxyStore(inner, rank, proxy)
    dist.init_process_group("gloo", store=ours, rank=rank, world_size=size, timeout=limit)
    dist.barrier()
    if not ours.addresses:
        raise SparsewireError("gloo did not publish an address on 127.0.0.1, so that nothing would be limited")
    return ours
