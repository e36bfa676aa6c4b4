"""One replica of the torchft trials: trains a small model until the goal, and writes down every step that counted.

    python benchmarks/torchft_replica.py FOLDER NAME LIGHTHOUSE METHOD SCHEME [--async-quorum] [--most STEPS]

METHOD is ddp, local or diloco. FOLDER/goal has the step to stop at; NAME.jsonl gets a line for each step that counted.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.local_sgd import DiLoCo, LocalSGD

from sparsewire.torch.torchft import CompressedManager

WAIT = timedelta(seconds=20)
LOCAL_STEPS = 2


def make_manager(
    lighthouse: str,
    name: str,
    scheme: str,
    async_quorum: bool,
    save: Callable[[], Any],
    load: Callable[[Any], None],
    init_sync: bool = True,
) -> tuple[Any, TCPStore]:
    """The replica's manager, torchft's own for the scheme "dense", and its store, which must live as long."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    kind = Manager if scheme == "dense" else CompressedManager
    more: dict[str, Any] = {} if scheme == "dense" else {"scheme": scheme}
    manager = kind(
        **more, pg=ProcessGroupGloo(timeout=WAIT), load_state_dict=load, state_dict=save, min_replica_size=2,
        use_async_quorum=async_quorum, timeout=WAIT, quorum_timeout=WAIT, connect_timeout=WAIT, rank=0, world_size=1,
        store_addr="127.0.0.1", store_port=store.port, lighthouse_addr=lighthouse, replica_id=name,
        hostname="127.0.0.1", init_sync=init_sync,
    )  # fmt: skip
    return manager, store


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """A fingerprint of weights."""
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().numpy().tobytes())
    return whole.hexdigest()[:16]


class Replica:
    """Model, optimizers and manager of one replica."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(sum(map(ord, options.name)))  # replicas begin differently: torchft makes them equal
        self.model = torch.nn.Sequential(torch.nn.Linear(32, 96), torch.nn.ReLU(), torch.nn.Linear(96, 10))
        self.inner = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9 * (options.method == "ddp"))
        self.manager, self._store = make_manager(
            options.lighthouse, options.name, options.scheme, options.async_quorum, self.save, self.load
        )
        self.method, self.folder, self.most = options.method, Path(options.folder), options.most
        self.log = (self.folder / f"{options.name}.jsonl").open("a")
        self.shared: Callable[[], Iterable[torch.Tensor]] = self.model.parameters  # what all replicas have in common
        self.counted = False
        self.decide, self.manager.should_commit = self.manager.should_commit, self.should_commit
        self.batches = torch.Generator().manual_seed(sum(map(ord, options.name)))

    def save(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.inner.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.inner.load_state_dict(state["optimizer"])

    def loss(self, model: torch.nn.Module) -> torch.Tensor:
        x = torch.randn(16, 32, generator=self.batches)
        return torch.nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))

    def should_commit(self, timeout: timedelta | None = None) -> bool:
        self.counted = self.decide(timeout)
        return self.counted

    def goal(self) -> int:
        path = self.folder / "goal"
        return int(path.read_text()) if path.exists() else self.most

    def note(self) -> None:
        """Writes down a step that counted."""
        line = {"step": self.manager.current_step(), "weights": digest(self.shared()), "at": time.time(),
                "of": self.manager.num_participants()}  # fmt: skip
        self.log.write(json.dumps(line) + "\n")
        self.log.flush()

    def train(self) -> None:
        with self._synchronised() as (model, optimizer):
            while self.manager.current_step() < self.goal():
                self.counted = False
                optimizer.zero_grad()
                self.loss(model).backward()
                optimizer.step()
                if self.counted:
                    self.note()

    def _synchronised(self) -> Any:
        if self.method == "ddp":
            wrapped = DistributedDataParallel(self.manager, self.model, bucket_cap_mb=0.01)
            return contextlib.nullcontext((wrapped, Optimizer(self.manager, self.inner)))
        if self.method == "local":
            context: Any = LocalSGD(self.manager, self.model, self.inner, LOCAL_STEPS)
        else:
            parts = [self.model[0], self.model[2]]
            outer = [torch.optim.SGD(part.parameters(), lr=0.7, momentum=0.9, nesterov=True) for part in parts]
            context = DiLoCo(self.manager, parts, self.inner, outer, LOCAL_STEPS * len(parts))
            backups = [fragment.original_parameters for fragment in context._fragments]
            self.shared = lambda: [tensor for backup in backups for tensor in backup.values()]
        stack = contextlib.ExitStack()
        stack.enter_context(context)
        return _Entered(stack, (self.model, self.inner))


class _Entered:
    """A context whose value is given."""

    def __init__(self, stack: contextlib.ExitStack, value: Any) -> None:
        self._stack, self._value = stack, value

    def __enter__(self) -> Any:
        return self._value

    def __exit__(self, *error: Any) -> None:
        self._stack.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("folder", "name", "lighthouse", "method", "scheme"):
        parser.add_argument(name)
    parser.add_argument("--async-quorum", action="store_true")
    parser.add_argument("--most", type=int, default=100_000)
    replica = Replica(parser.parse_args())
    replica.train()
    if isinstance(replica.manager, CompressedManager):
        replica.log.write(json.dumps({"stats": replica.manager.stats()}) + "\n")
        replica.log.flush()
    replica.manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
