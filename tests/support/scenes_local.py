"""Scenes of local steps between real processes."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from local_runs import EXACT, MAKES, SPARSE, batch, build, descend, weights
from torch_ranks import Stage, raises, told

from sparsewire.errors import CommError, CommMismatch, CommTimeout, InputError
from sparsewire.torch import LocalLink, init_group, local_steps


class Run:
    """A model that is trained on its own, of a rank of the stage."""

    def __init__(self, stage: Stage, scheme: str = SPARSE, optimizer: str = "momentum", seed: int = 0, **settings: Any):
        self.rank, self.step, self.model = stage.rank, 0, build(seed)
        self.optimizer = MAKES[optimizer](self.model.parameters())
        self.link: LocalLink = local_steps(self.model, self.optimizer, scheme, group=stage.group, **settings)

    def train(self, until: int) -> None:
        while self.step < until:
            descend(self.model, self.optimizer, batch(self.rank, self.step))
            self.step += 1


def trains(stage: Stage, **settings: Any) -> dict[str, Any]:
    """Unequal starts, some rounds, and the same bits at the end, buffers included."""
    run = Run(stage, seed=stage.rank, **settings)
    run.train(17)
    run.link.detach()
    for name, tensor in run.model.state_dict().items():
        assert all(torch.equal(part, tensor) for part in stage.everyones(tensor)), name
    return run.link.stats()


def equals_ddp(stage: Stage) -> None:
    """With everything sent in every step: plain DDP's weights to rounding."""
    wrapped, alone = stage.ddp(build(norm=False)), build(norm=False)
    plain, own = MAKES["sgd"](wrapped.parameters()), MAKES["sgd"](alone.parameters())
    with local_steps(alone, own, EXACT, every=1, group=stage.group):
        for step in range(10):
            descend(wrapped, plain, batch(stage.rank, step))
            descend(alone, own, batch(stage.rank, step))
            torch.testing.assert_close(weights(alone), weights(wrapped.module), rtol=1e-5, atol=1e-6)


def refuses_ddp(stage: Stage) -> str:
    wrapped = stage.ddp(build())
    return raises(InputError, lambda: local_steps(wrapped, MAKES["sgd"](wrapped.parameters()), SPARSE, every=2))


def one_raises(stage: Stage, where: str, **settings: Any) -> dict[str, Any]:
    """Rank 1 raises between two meetings; the others are told at their next one, at once."""
    run, begin = Run(stage, every=4, **settings), time.monotonic()
    try:
        with run.link if where == "with" else _Detaching(run.link):
            run.train(6)
            if stage.rank == 1:
                raise ValueError("no such file")
            run.train(20)
    except Exception as error:
        return {"text": told(error), "seconds": time.monotonic() - begin}
    raise AssertionError("nothing was raised")


def one_has_short_rounds(stage: Stage) -> str:
    """Rank 1's second round is shorter than its exchange takes, which it refuses; the others hear why."""
    run = Run(stage, every=lambda round_: 2 if stage.rank == 1 and round_ else 4, overlap=2)
    try:
        run.train(20)
    except Exception as error:
        return told(error)
    finally:
        run.link.detach()
    raise AssertionError("nothing was raised")


class _Detaching:
    """`except … as error: link.detach(error)`."""

    def __init__(self, link: LocalLink) -> None:
        self._link = link

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._link.detach(error)


def ends_while_an_exception_is_handled(stage: Stage, steps: int) -> None:
    """The data are at an end, as an iterator tells it: all ranks come to the last meeting all the same."""
    run = Run(stage, every=4)
    data = iter(range(1, steps + 1))
    try:
        while True:
            run.train(next(data))
    except StopIteration:
        run.link.detach()
    stage.assert_same(run.model)
    assert run.link.stats()["meetings"] == steps // 4 + 1


def comes_late(stage: Stage, timeout: float) -> str:
    """Rank 1 does not come to a meeting in time."""
    run = Run(stage, every=4, timeout=timeout)
    run.train(4)
    if stage.rank == 1:
        time.sleep(2 * timeout)
    text = raises(CommError, lambda: run.train(8))
    run.link.detach()
    return text


def disagrees(stage: Stage) -> str:
    run = Run(stage, every=4)
    run.train(3)
    text = raises(CommMismatch, lambda: run.link.detach() if stage.rank == 0 else run.train(4))
    run.link.detach()
    return text


def starts_alone(stage: Stage) -> str:
    """Only rank 0 calls `local_steps`."""
    return raises(CommTimeout, lambda: Run(stage, every=4, timeout=2)) if stage.rank == 0 else ""


def resumes_smaller(stage: Stage) -> int:
    """Two of three ranks go on, without any failure; the third one is done."""
    run = Run(stage, every=4)
    run.train(5)
    pair = dist.new_group([0, 1])
    if stage.rank == 2:
        return 0
    run.link.resume(pair)
    run.train(16)
    run.link.detach()
    return run.link.comm.size


def leaves_nothing_behind(stage: Stage, rounds: int = 3, **settings: Any) -> None:
    """Without the garbage collector: no descriptors, no threads, no link."""
    gc.collect()
    gc.disable()
    try:
        kept = [_come_and_go(stage, settings) for _ in range(rounds)]
        assert len(set(kept)) == 1, kept
    finally:
        gc.enable()
    assert not [thread for thread in threading.enumerate() if "sparsewire" in thread.name]


def _come_and_go(stage: Stage, settings: dict[str, Any]) -> int:
    run = Run(stage, every=3, **settings)
    run.train(7)
    run.link.detach()
    gone = weakref.ref(run.link), weakref.ref(run.link.rounds)
    run.train(8)
    run.link = None
    assert [ref() for ref in gone] == [None, None]
    return len(os.listdir("/proc/self/fd"))


def goes_on_after_a_rank_dies_in_the_rejoin(stage: Stage, folder: str, timeout: float) -> dict[str, Any]:
    """Rank 1 dies while the ranks connect anew: it has told its address, and rank 0 has not come yet."""
    run = Run(stage, every=4, timeout=timeout)
    run.train(5)
    dist.destroy_process_group()
    store, others = Path(folder, "first"), {0: 0, 2: 1}
    if stage.rank == 1:
        threading.Thread(target=_die_once_told, args=(store,), daemon=True).start()
    while stage.rank == 0 and not Path(folder, "dead").exists():
        time.sleep(0.05)
    begin = time.monotonic()
    text = raises(
        CommTimeout, lambda: init_group(timeout, init_method=f"file://{store}", rank=stage.rank, world_size=3)
    )
    seconds = time.monotonic() - begin
    init_group(30, init_method=f"file://{folder}/second", rank=others[stage.rank], world_size=2)
    run.link.resume()
    run.train(12)
    run.link.detach()
    bits = weights(run.model)
    dist.destroy_process_group()
    return {"text": text, "seconds": seconds, "sum": float(sum(bits.double().abs()))}


def _die_once_told(store: Path) -> None:
    """Its address is the only key of this rank in the store."""
    while not (store.exists() and b"//cpu//0/1" in store.read_bytes()):
        time.sleep(0.01)
    store.with_name("dead").touch()
    os.kill(os.getpid(), signal.SIGKILL)
