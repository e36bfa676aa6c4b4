"""What a rank of tests/support/torch_pool.py runs, and helpers for its scenes.

A scene is a function of a `Stage` in one of the modules `scenes_*`; it raises, or returns something for JSON.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import logging
import math
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import sparsewire.torch.ddp.bundle

LIMIT = timedelta(seconds=20)
EXACT = "topk(1.0) | indices=raw | values=raw | memory=none"


@dataclass
class Stage:
    """Where a scene plays: some of the ranks."""

    group: dist.ProcessGroup
    rank: int
    size: int

    def ddp(self, module: nn.Module, **settings: Any) -> DDP:
        return DDP(module, process_group=self.group, **settings)

    def seed(self, *numbers: int) -> None:
        """The same draws in every run, different ones on every rank."""
        torch.manual_seed(hash((self.rank, *numbers)))  # of integers only: the same everywhere

    def everyones(self, value: torch.Tensor) -> list[torch.Tensor]:
        """The value on each rank."""
        bits = value.detach().contiguous().view(-1).view(torch.uint8)
        parts = [torch.empty_like(bits) for _ in range(self.size)]
        dist.all_gather(parts, bits, group=self.group)
        return [part.view(value.dtype).view(value.shape) for part in parts]

    def assert_same(self, module: nn.Module) -> None:
        """Every rank holds the same bits."""
        for name, parameter in module.named_parameters():
            for part in self.everyones(parameter):
                assert same_bits(part, parameter.detach()), name


def told(error: BaseException) -> str:
    """An error as its traceback ends: its kind, its text, its notes."""
    return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])


def raises(kind: type[BaseException] | tuple[type[BaseException], ...], call: Callable[[], Any]) -> str:
    try:
        call()
    except kind as error:
        return told(error)
    raise AssertionError(f"no {kind}")


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """The lines that sparsewire logs meanwhile."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("sparsewire")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or not a.numel():
        return a.shape == b.shape and a.dtype == b.dtype
    bits = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in (a, b)]
    return torch.equal(*bits)


def assert_same_state(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Two states of a link are the same, bit for bit."""
    assert one.keys() == other.keys()
    for key, value in one.items():
        if isinstance(value, dict):
            assert_same_state(value, other[key])
        elif isinstance(value, torch.Tensor):
            assert same_bits(value, other[key]), key
        else:
            assert value == other[key], key


def dense_kept(state: dict[str, Any], buffer: str = "residual") -> dict[str, torch.Tensor]:
    """What a state holds for parameters with dense gradients."""
    found = {name: buffers[buffer] for name, buffers in state["buffers"].items() if buffer in buffers}
    return {name: kept for name, kept in found.items() if isinstance(kept, torch.Tensor)}


def sparse_kept(state: dict[str, Any], buffer: str = "residual") -> dict[str, dict[str, Any]]:
    """The same for parameters with sparse gradients."""
    found = {name: buffers[buffer] for name, buffers in state["buffers"].items() if buffer in buffers}
    return {name: kept for name, kept in found.items() if isinstance(kept, dict)}


def spread(kept: dict[str, Any]) -> torch.Tensor:
    """Saved rows as the flat table."""
    dense = torch.zeros(math.prod(kept["shape"]))
    dense.view(-1, kept["width"])[kept["indices"]] = kept["values"].view(-1, kept["width"])
    return dense


def play(
    groups: dict[int, dist.ProcessGroup], scene: str, ranks: int | None = None, bundle: int = 0, **settings: Any
) -> Any:
    """`bundle`: the entries from which a message is sent; models of tests are small, so each bucket has its own."""
    size, sparsewire.torch.ddp.bundle.MOST = ranks or max(groups), bundle
    if dist.get_rank() >= size:
        return None
    module, name = scene.split(".")
    function = getattr(importlib.import_module(f"scenes_{module}"), name)
    return function(Stage(groups[size], dist.get_rank(), size), **settings)


def answer(groups: dict[int, dist.ProcessGroup], order: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"result": play(groups, order["scene"], **order["settings"])}
    except Exception:
        return {"error": traceback.format_exc()}


def main(rank: int, size: int, store: str, orders: Connection) -> None:
    """Plays what it is ordered to until the connection closes."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # where it hangs: kill -USR1
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=LIMIT)
    groups = {n: dist.new_group(list(range(n))) for n in range(1, size)} | {size: dist.group.WORLD}
    warnings.simplefilter("error")
    for said in ("TypedStorage is deprecated", "Detected mismatched keys", "You are using `torch.load`"):
        # torch 2.4's own, in its checkpoints
        warnings.filterwarnings("ignore", said)
    with contextlib.suppress(EOFError):
        while True:
            orders.send(json.dumps(answer(groups, json.loads(orders.recv()))))
