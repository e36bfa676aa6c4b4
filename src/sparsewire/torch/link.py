"""`Link`: a model's connection to the other ranks. Holds the residuals, the courier, the counts.

A step, bucket by bucket, on the courier's thread:
1. DDP hands over a bucket; its segments are selected from gradient + residual and encoded.
2. One all_gather per bucket moves the frames; every rank decodes all of them.
3. After the last bucket, one all_reduce moves everything that travels dense.
4. Now all ranks know whether anything was not finite. If not, residuals take up what was not sent; if so, they stay as
   they were, for the step will be skipped.
5. The mean is written into the buckets, and DDP goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from .. import kernels
from ..comm import Communicator
from ..errors import InputError, add_note
from ..exchange import Clock, Outcome, Piece
from ..host import to_host
from ..kernels import Array
from ..schedule import SchemeSchedule
from ..scheme import Scheme, scheme
from ..sparse import Sparse, work_dtype
from .bucket import Bucket, Hosts, to_coo
from .courier import Courier, Parcel
from .group import CourierGroup
from .hook import HookState
from .layout import Layout, Segment, Slice, lay_out
from .residuals import Residuals, sparse_from, sparse_state

STATE_VERSION = 1
GRACE = 2.0  # seconds: a collective that has begun cannot be ended; after these the courier is left to itself
LOSSLESS = scheme("nonzero | indices=best | values=raw | memory=none")


@dataclass
class Opened:
    """A bucket whose exchange is done, but whose mean is not yet written."""

    parcel: Parcel[Bucket]
    flat: Array
    layout: Layout
    outcomes: list[Outcome]
    dense: list[tuple[Slice, Array]] = field(default_factory=list)
    finite: bool = True


@dataclass(frozen=True)
class Settings:
    """What `attach` was told."""

    schedule: SchemeSchedule
    dense_names: frozenset[str] = frozenset()
    dense_below: int = 1024
    by_bucket: bool = False
    seed: int = 0
    on_step: Callable[[dict[str, Any]], None] | None = None
    scaler: torch.amp.GradScaler | None = None


class Link:
    """Made by `attach`; `stats()`, `state_dict()`, `detach()`; as a context manager it detaches at the end."""

    def __init__(
        self, names: dict[torch.Tensor, str], group: CourierGroup, settings: Settings, hook: HookState
    ) -> None:
        self.step = 0
        self.comm: Communicator = group.comm
        self.settings = settings
        self._names, self._group, self._hook = names, group, hook
        self._residuals, self._hosts, self._clock = Residuals(), Hosts(), Clock()
        self._layouts: dict[tuple[Slice, ...], Layout] = {}
        self._opened: list[Opened] = []
        self._aside: list[tuple[Array, Array]] = []
        self._bytes_dense = 0
        self._scale = settings.scaler.get_scale() if settings.scaler is not None else 1.0
        self._courier: Courier[Bucket] = Courier(self._work, self._fail, "sparsewire-courier")
        hook.link = self

    # --- what users call ---

    def stats(self) -> dict[str, Any]:
        """Totals since `attach`: steps, bytes handed to and got from the engine, what dense steps would have sent,
        and seconds by stage on the courier's thread."""
        return {
            "steps": self.step,
            "bytes_sent": self.comm.bytes_sent,
            "bytes_received": self.comm.bytes_received,
            "bytes_dense": self._bytes_dense,
            "seconds": dict(self._clock.seconds),
        }

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: tensors and plain types only. Every rank saves its own."""
        return {
            "version": STATE_VERSION,
            "scheme": str(self.settings.schedule.scheme),
            "step": self.step,
            "scale": self._scale,
            "rank": self.comm.rank,
            "world_size": self.comm.size,
            "residuals": {name: torch.tensor(kept) for name, kept in self._residuals.dense.items()},
            "sparse_residuals": {name: sparse_state(kept) for name, kept in self._residuals.sparse.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from this rank's saved state. For another number of ranks, `sparsewire.torch.load` deals it out."""
        self._check_state(state)
        sparse = {name: sparse_from(kept) for name, kept in state["sparse_residuals"].items()}
        self._residuals.replace({name: kept.cpu().numpy() for name, kept in state["residuals"].items()}, sparse)
        self.step, self._scale = int(state["step"]), float(state["scale"])

    def detach(self) -> None:
        """Ends the courier; from now on the model's gradients are averaged dense, as without a link.

        Every rank calls it, and waits for the others; but while an exception is handled, as in `finally`, a rank
        leaves at once, and the others hear of that exception. Called in `on_step` it ends after this step.
        """
        self._end(sys.exc_info()[1])

    def _end(self, error: BaseException | None) -> None:
        if self._hook.link is not self:
            return
        self._hook.link = None
        error = error or self._courier.error
        if error is None:
            self._courier.stop(self._group.close)
        else:
            self._group.tell(error)
            self._courier.stop(self._group.leave, error, GRACE)

    def _fail(self, error: BaseException) -> BaseException:
        """What the courier calls when its work fails."""
        failed = self._group.fail(error)
        add_note(failed, f"sparsewire: on rank {self.comm.rank}, at step {self.step}")
        return failed

    def __enter__(self) -> Link:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)

    def handle(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """What the hook calls, on autograd's thread."""
        task = Bucket.of(bucket, self._names)
        return self._courier.send(task, task.buffer, task.is_last)

    def _check_state(self, state: dict[str, Any]) -> None:
        if state.get("version") != STATE_VERSION:
            raise InputError(f"a sparsewire state of version {STATE_VERSION} is needed, not {state.get('version')!r}")
        mine = self.comm.rank, self.comm.size
        if (state["rank"], state["world_size"]) != mine:
            raise InputError(
                f"this is the state of rank {state['rank']} of {state['world_size']}, here is rank {mine[0]} of "
                f"{mine[1]}: residuals are per rank; sparsewire.torch.load(link, folder) picks or deals them out"
            )
        sizes = {name: parameter.numel() for parameter, name in self._names.items()}
        for name, kept in state["residuals"].items():
            if sizes.get(name) != kept.numel():
                raise InputError(f"the state has {kept.numel()} residuals for {name!r}, the model {sizes.get(name)}")

    # --- what the courier does ---

    def _work(self, parcel: Parcel[Bucket]) -> None:
        try:
            self._handle(parcel)
        except BaseException:
            self._put_back()
            raise

    def _handle(self, parcel: Parcel[Bucket]) -> None:
        bucket = parcel.task
        plan = self.settings.schedule.at(self.step)
        if self.settings.scaler is not None and not self._opened:
            self._follow(self.settings.scaler.get_scale())
        self._bytes_dense += bucket.dense_bytes
        if bucket.is_sparse:
            self._opened.append(self._exchange_sparse(parcel, plan or LOSSLESS))
        elif plan is None:
            self._opened.append(self._average_dense(parcel))
        else:
            self._opened.append(self._exchange(parcel, plan))
        if bucket.is_last:
            self._finish(plan)

    def _follow(self, scale: float) -> None:
        """Residuals are in the loss's scale, so they change with it (by powers of two: exactly)."""
        if scale != self._scale:
            self._residuals.multiply(scale / self._scale)
            self._scale = scale

    def _average_dense(self, parcel: Parcel[Bucket]) -> Opened:
        flat = self._hosts.take(parcel.task)
        with self._clock("dense"):
            flat[:] = self.comm.all_reduce(flat)
            flat /= flat.dtype.type(self.comm.size)
        return Opened(parcel, flat, Layout((), ()), [], finite=kernels.all_finite(flat, threads=kernels.threads))

    def _exchange(self, parcel: Parcel[Bucket], plan: Scheme) -> Opened:
        bucket = parcel.task
        flat, layout = self._hosts.take(bucket), self._layout(bucket)
        dense = [(item, flat[item.start : item.stop].copy()) for item in layout.dense]
        for item in layout.dense:
            flat[item.start : item.stop] = 0
        pieces = [
            Piece(segment.name, flat[segment.start : segment.stop], (segment.stop - segment.start,), bucket.dtype,
                  self._residual(segment, flat, work_dtype(bucket.dtype)) if plan.memory.keeps else None)
            for segment in layout.segments
        ]  # fmt: skip
        return Opened(parcel, flat, layout, self._run(pieces, plan), dense)

    def _residual(self, segment: Segment, flat: Array, dtype: np.dtype[np.floating]) -> Array:
        """What the segment did not send before, but for parameters without a gradient here.

        Perhaps no rank used such a parameter: DDP then drops the mean, and what was sent of the residual were lost.
        """
        residual = self._residuals.of(segment, dtype)
        for item in segment.members:
            x = flat[item.start : item.stop]
            if not (x[:64].any() or x.any()):
                kept = residual[item.start - segment.start : item.stop - segment.start]
                self._aside.append((kept, kept.copy()))
                kept[:] = 0
        return residual

    def _put_back(self) -> None:
        for kept, aside in self._aside:
            kept += aside
        self._aside = []

    def _exchange_sparse(self, parcel: Parcel[Bucket], plan: Scheme) -> Opened:
        name = parcel.task.slices[0].name
        x = to_host(parcel.task.buffer)
        assert isinstance(x, Sparse)
        residual = self._residuals.sparse.get(name) if plan.memory.keeps else None
        piece = Piece(name, x, x.shape, x.dtype, residual)
        return Opened(parcel, np.empty(0), Layout((), ()), self._run([piece], plan))

    def _run(self, pieces: list[Piece], plan: Scheme) -> list[Outcome]:
        if not pieces:
            return []
        return list(plan.exchange.exchange(pieces, plan, self.comm, self.step, self.settings.seed, self._clock))

    def _layout(self, bucket: Bucket) -> Layout:
        if bucket.slices not in self._layouts:
            settings = self.settings
            self._layouts[bucket.slices] = lay_out(
                bucket.slices, settings.dense_names, settings.dense_below, settings.by_bucket
            )
        return self._layouts[bucket.slices]

    def _finish(self, plan: Scheme | None) -> None:
        opened, self._opened = self._opened, []
        finite = self._reduce_dense(opened)
        with self._clock("decode"):
            finite = finite and all(one.finite for one in opened)
            finite = finite and all(outcome.finite for one in opened for outcome in one.outcomes)
        keep = finite and plan is not None and plan.memory.keeps
        results = [self._write(one, keep) for one in opened]
        self._put_back()
        self.step += 1
        if self.settings.on_step is not None:
            self.settings.on_step({**self.stats(), "scheme": "dense" if plan is None else str(plan), "finite": finite})
        # Last of all: once DDP has its futures, the user may save or read what this step has left behind.
        for one, result in zip(opened, results, strict=True):
            one.parcel.promise.set_result(result)

    def _reduce_dense(self, opened: list[Opened]) -> bool:
        """One all_reduce per number type, for all that travels dense; whether it is finite on all ranks.

        In the order of names: engines add up in an order that depends on the place, and buckets change.
        """
        finite = True
        named = sorted((pair for one in opened for pair in one.dense), key=lambda pair: pair[0].name)
        for kind in sorted({values.dtype.str for _, values in named}):
            parts = [values for _, values in named if values.dtype.str == kind]
            with self._clock("dense"):
                total = self.comm.all_reduce(np.concatenate(parts)) / np.dtype(kind).type(self.comm.size)
            start = 0
            for values in parts:
                values[:] = total[start : start + values.size]
                start += values.size
            finite = finite and bool(np.isfinite(total).all())
        return finite

    def _write(self, one: Opened, keep: bool) -> torch.Tensor:
        bucket = one.parcel.task
        if bucket.is_sparse:
            return self._write_sparse(one, keep)
        for segment, outcome in zip(one.layout.segments, one.outcomes, strict=True):
            if keep:
                with self._clock("select"):
                    outcome.keep()
            with self._clock("accumulate"):
                outcome.mean_into(one.flat[segment.start : segment.stop])
        for item, values in one.dense:
            one.flat[item.start : item.stop] = values
        self._hosts.put(bucket, one.flat)
        return bucket.buffer

    def _write_sparse(self, one: Opened, keep: bool) -> torch.Tensor:
        (outcome,) = one.outcomes
        if keep:
            kept = outcome.keep()
            assert kept is not None
            self._residuals.sparse[outcome.piece.name] = kept
        return to_coo(outcome.mean_sparse(), one.parcel.task.buffer)
