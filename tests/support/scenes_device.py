"""Scenes of the path of devices, forced on CPU tensors: the same bits as on the host, and what crosses."""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from scenes_attach import backward, build
from torch.utils._python_dispatch import TorchDispatchMode
from torch_ranks import Stage, assert_same_state, same_bits

from sparsewire.exchange import rider
from sparsewire.kernels.device import crossing
from sparsewire.torch import Link, attach
from sparsewire.torch.ddp.device_path import VARIABLE, DevicePath
from sparsewire.torch.ddp.fourier import TorchFourier
from sparsewire.torch.group import CommGroup
from sparsewire.training import buffer_pieces

WAITING = {"aten::nonzero", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::masked_select", "aten::equal"}


@contextlib.contextmanager
def device_path(setting: str) -> Iterator[None]:
    """Links that are made meanwhile have this setting."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = setting
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def forced(stage: Stage, played: str, **settings: Any) -> Any:
    """Another scene, whose links take the path of devices."""
    module, name = played.split(".")
    with device_path("force"):
        return getattr(importlib.import_module(f"scenes_{module}"), name)(stage, **settings)


@contextlib.contextmanager
def transforms_of_torch(opening: str, really: bool) -> Iterator[None]:
    """Links that a module opens meanwhile have their Fourier transforms from torch, on both paths."""

    def engine(comm: Any, plans: Any, parameters: Any) -> TorchFourier:
        device = torch.device("cpu")
        return TorchFourier(device, on_device=bool(DevicePath().kind([device])))

    with pytest.MonkeyPatch.context() as patch:
        if really:
            patch.setattr(importlib.import_module(opening), "fourier_for", engine)
        yield


class Training:
    """A model with SGD whose buckets stay on the device, or are worked on on the host."""

    def __init__(
        self, stage: Stage, path: str, kind: str, dtype: str, scheme: str, momentum: float, rates: list[float],
        one_bucket: bool, **settings: Any,
    ) -> None:  # fmt: skip
        self.stage, self.step, self.rates = stage, 0, rates
        unused = kind == "branches"
        cap = 25 if one_bucket else 0.005
        self.model = stage.ddp(build(kind, dtype), bucket_cap_mb=cap, find_unused_parameters=unused)
        words = {p for name, p in self.model.named_parameters() if "words" in name}
        rest = {"params": [p for p in self.model.parameters() if p not in words]}
        groups = [rest, {"params": list(words), "momentum": 0}] if words else [rest]
        self.optimizer = torch.optim.SGD(groups, lr=rates[0], momentum=momentum)
        with device_path(path):
            self.link: Link = attach(self.model, scheme, optimizer=self.optimizer, **settings)

    def train(self, until: int) -> None:
        while self.step < until:
            for group in self.optimizer.param_groups:
                group["lr"] = self.rates[self.step % len(self.rates)]
            self.optimizer.zero_grad()
            backward(self.stage, self.model, self.step)
            self.optimizer.step()
            self.step += 1

    def assert_same(self, other: Training) -> None:
        theirs = other.model.module.state_dict()
        for name, parameter in self.model.module.state_dict().items():
            assert same_bits(parameter, theirs[name]), name
        assert_same_state(self.link.state_dict(), other.link.state_dict())


def equals_host(stage: Stage, landed: int | None = None, **settings: Any) -> None:
    """Two trainings that differ in the path alone have the same bits throughout; a state of one goes on in the other.

    `landed`: how many dense numbers of a bucket go through the host, if they are too many to go behind messages.
    """
    with pytest.MonkeyPatch.context() as patch:
        if landed is not None:
            patch.setattr(buffer_pieces, "LANDED", landed)
            patch.setattr(rider, "MOST", -1)
        _equals_host(stage, **settings)


def _equals_host(
    stage: Stage, scheme: str = "topk(5%) | memory=residual", kind: str = "plain", dtype: str = "", steps: int = 5,
    mixed: bool = False, momentum: float = 0.0, rates: list[float] | None = None, one_bucket: bool = False,
    by_torch: bool = False, **settings: Any,
) -> None:  # fmt: skip
    """`mixed`: of the second training, only even ranks take the path of devices. `by_torch`: all Fourier transforms are
    torch's, as libraries round differently."""
    path = "off" if mixed and stage.rank % 2 else "force"
    with transforms_of_torch("sparsewire.torch.ddp.opening", by_torch):
        host, there, back = (
            Training(stage, one, kind, dtype, scheme, momentum, rates or [0.05], one_bucket, **settings)
            for one in ("off", path, "off")
        )
    host.train(steps)
    with crossing.watched() as seen:
        there.train(steps)
    assert bool(seen.waits) == (path == "force")
    there.assert_same(host)
    kept = host.link.state_dict()
    there.link.load_state_dict(kept)
    back.link.load_state_dict(there.link.state_dict())
    assert_same_state(back.link.state_dict(), kept)
    for training in (host, there):
        training.train(steps + 2)
    there.assert_same(host)
    for training in (host, there, back):
        training.link.detach()


def is_close_to_host(stage: Stage, scheme: str, momentum: float, steps: int = 3) -> None:
    """Transforms that a device computes round differently: weights are close, and a state goes on to the bit."""
    host, there, again = (
        Training(stage, path, "plain", "", scheme, momentum, [0.05], False) for path in ("off", "force", "force")
    )
    host.train(steps)
    with crossing.watched() as seen:
        there.train(steps)
    sizes = [parameter.numel() for parameter in there.model.parameters()]
    assert max(seen.down) < 4 * max(sizes), "no gradient crosses whole"
    theirs = host.model.module.state_dict()
    for name, parameter in there.model.module.state_dict().items():
        torch.testing.assert_close(parameter, theirs[name], rtol=1e-3, atol=1e-3, msg=name)
        assert all(same_bits(part, parameter) for part in stage.everyones(parameter)), name
    again.model.load_state_dict(there.model.state_dict())
    again.optimizer.load_state_dict(copy.deepcopy(there.optimizer.state_dict()))
    again.link.load_state_dict(there.link.state_dict())
    again.step = steps
    for training in (there, again):
        training.train(steps + 3)
    again.assert_same(there)
    for training in (host, there, again):
        training.link.detach()


class Hidden(TorchDispatchMode):  # type: ignore[misc]
    """Notes operations of a communication thread that wait for a device, and arrays that cross elsewhere than by
    `crossing`. Copies between devices are not seen on the CPU: `crossing` counts them."""

    def __init__(self, link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.found: list[str] = []
        thread: Any = link._comm_thread
        work, numpy = thread._work, torch.Tensor.numpy

        def watched(queued: Any) -> None:
            with self:
                work(queued)

        def as_array(tensor: torch.Tensor) -> Any:
            caller = sys._getframe(1).f_globals["__name__"]
            if caller != crossing.__name__:
                self.found.append(f"numpy() in {caller}")
            return numpy(tensor)

        monkeypatch.setattr(thread, "_work", watched)
        monkeypatch.setattr(torch.Tensor, "numpy", as_array)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name().split(".")[0] in WAITING:
            self.found.append(func.name())
        return func(*args, **(kwargs or {}))


def crosses_little(stage: Stage, scheme: str, waits: int, momentum: float = 0.0, **settings: Any) -> None:
    """In each step no array of more than a few times k numbers comes to the host, which waits so often for its one
    bucket; nothing else waits for a device."""
    training = Training(stage, "force", "plain", "", scheme, momentum, [0.05], True, **settings)
    training.train(3)
    with crossing.watched() as seen, pytest.MonkeyPatch.context() as patch:
        hidden = Hidden(training.link, patch)
        training.train(5)
    sizes, parts = [p.numel() for p in training.model.parameters()], training.link.grid.parts
    k, dense = 0.05 * sum(size for size in sizes if size >= 1024), sum(size for size in sizes if size < 1024)
    rounded = 4 * len(sizes) * (parts - 1)  # the parts of a parameter may differ by one number
    crossed = [nbytes for nbytes in seen.down if abs(nbytes - 4 * dense / parts) > rounded]  # the biases, dense
    assert max(crossed) <= 8 * 3 * k / parts < 4 * max(sizes) / parts, (k, seen.down)
    assert seen.waits == 2 * waits, seen.waits
    assert not hidden.found, hidden.found
    training.link.detach()


def takes_no_hidden_way(stage: Stage) -> None:
    """What `crosses_little` looks for is found: a flag that is read, and an array that is taken directly."""
    training = Training(stage, "force", "plain", "", "topk(5%) | memory=residual", 0.0, [0.05], True)
    with pytest.MonkeyPatch.context() as patch:
        hidden = Hidden(training.link, patch)
        with hidden:
            assert bool(torch.ones(2).any()) and torch.ones(2).numpy().all()
    assert any("_local_scalar_dense" in name or "is_nonzero" in name for name in hidden.found), hidden.found
    assert any("numpy()" in name for name in hidden.found), hidden.found
    training.link.detach()


def waits_for(stage: Stage, timeout: float | None) -> float:
    """Seconds that a link's group waits for a rank."""
    group = CommGroup(stage.group, timeout)
    group.close()
    return group.timeout
