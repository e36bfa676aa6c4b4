"""Replicas of torchft that are threads of this process, with a lighthouse beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer

from sparsewire.torch.torchft import CompressedManager

WAIT = timedelta(seconds=20)


def make(kind: type[Manager], lighthouse: str, name: str, **settings: Any) -> tuple[Manager, TCPStore]:
    """A manager, and the store that must live as long."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    usual: dict[str, Any] = {
        "pg": ProcessGroupGloo(timeout=WAIT), "state_dict": dict, "load_state_dict": lambda state: None,
        "use_async_quorum": False, "timeout": WAIT, "quorum_timeout": WAIT, "connect_timeout": WAIT, "rank": 0,
        "world_size": 1, "store_addr": "127.0.0.1", "store_port": store.port, "lighthouse_addr": lighthouse,
        "replica_id": name, "hostname": "127.0.0.1", "init_sync": False, "min_replica_size": 2,
    }  # fmt: skip
    return kind(**{**usual, **settings}), store


def run_replicas(
    count: int, work: Callable[[Manager, int], Any], each: Sequence[dict[str, Any]] = (), **settings: Any
) -> list[Any]:
    """What `work(manager, place)` returns on each of the replicas; `scheme=None` is torchft's own manager."""
    house = LighthouseServer(bind="127.0.0.1:0", min_replicas=count, join_timeout_ms=100, quorum_tick_ms=10)
    address = f"http://127.0.0.1:{house.address().rpartition(':')[2]}"

    def replica(place: int) -> Any:
        own = {**settings, **(each[place] if each else {})}
        kind = Manager if own.get("scheme", "") is None else CompressedManager
        if kind is Manager:
            del own["scheme"]
        manager, store = make(kind, address, f"replica{place}", **own)
        try:
            return work(manager, place)
        finally:
            manager.shutdown(wait=False)
            del store

    try:
        with ThreadPoolExecutor(count) as pool:
            futures = [pool.submit(replica, place) for place in range(count)]
            return [future.result(60) for future in futures]
    finally:
        house.shutdown()


def step(manager: Manager, *tensors: Any, fails: bool = False) -> bool:
    """One step: these tensors become their means."""
    manager.start_quorum()
    for tensor in tensors:
        manager.allreduce(tensor).wait()
    if fails:
        manager.report_error(RuntimeError("this step is spoiled"))
    return manager.should_commit()
