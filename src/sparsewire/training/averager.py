"""`Averager`: all that a training keeps from step to step, for any framework: buffers, schedule, step number, counts.

A step has two phases:
1. `put` hands over gradients, a bucket at a time: they are selected, encoded and exchanged. Nothing is written.
2. `finish`, after the last of them. `prepare`: one all_reduce moves everything that travels dense. Now all ranks know
   whether the step is finite. `commit`, without any collective: if it is, the memories keep what was not sent; if not,
   all buffers stay as they were, for the step will be skipped. The means take the gradients' places.
`abandon` ends a step that failed, with everything as it was before.
With `nodes` all of this is about a rank's part of every parameter, and `commit` shares the means of the parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sparsewire import kernels
from sparsewire.codecs.memory import Residual
from sparsewire.codecs.scheme import Scheme
from sparsewire.comm import Communicator
from sparsewire.core.sparse import Sparse
from sparsewire.core.statefile import reading
from sparsewire.exchange import Clock, ExchangeContext, Outcome, Piece, Selected, average_dense
from sparsewire.kernels import Array

from .layout import Buffer, Layout, PendingBuffer, Segment, Slice, clipped, lay_out, without_gradient
from .model_select import ModelSelect
from .nodes.nodes import LOSSLESS, nodes
from .residuals.debts import owed, set_aside, settle
from .residuals.gain import StepGain
from .residuals.momentum import Left, hand_out, left_behind, move_on, reweigh
from .residuals.saved import STATE_VERSION, Saved, check_state
from .residuals.states import States
from .schedule import Settings

ITEM_SIZE = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


class Averager:
    """One rank's part in a training. Every rank puts the same tensors in the same order."""

    def __init__(self, comm: Communicator, settings: Settings) -> None:
        self.settings = settings
        self.connect(comm)
        self.settings = settings.of_part(self.nodes.grid.parts)
        self.step, self.scale = 0, settings.scale() if settings.scale is not None else 1.0
        self.states, self.clock = States(), Clock()
        self.sparse_means: dict[str, Sparse] = {}
        self.was_sparse = False  # the last step
        self._bytes_dense = 0
        self._layouts: dict[tuple[Slice, ...], Layout] = {}
        self._model, self._gain = ModelSelect(), StepGain(settings.schedule.scheme.memory)
        self._pending: list[PendingBuffer] = []
        self._sparse: list[tuple[Piece, tuple[Outcome, Sparse]]] = []
        self._unclipped: list[Sequence[Buffer] | tuple[str, Sparse]] = []  # until the norm of all of them is known

    def connect(self, comm: Communicator) -> None:
        """These are the ranks from now on. Every one of them calls it."""
        self.comm, self.nodes = comm, nodes(comm, self.settings)

    @property
    def scheme(self) -> Scheme | None:
        """This step's; None if it is dense."""
        return self.settings.schedule.at(self.step)

    @property
    def _sparse_plan(self) -> Scheme | None:
        """The same for sparse gradients."""
        plan = self.scheme
        return plan if plan is None or plan.memory.held_momentum is None else replace(plan, memory=Residual())

    # --- phase 1: nothing is written ---

    def put(self, tensors: Mapping[str, Array | Sparse], dtypes: Mapping[str, str] | None = None) -> None:
        """Gradients by name. Means come in their places; those of a `Sparse` are in `sparse_means` after `finish`.

        Arrays are flat and in the work dtype: float64 for float64, otherwise float32.
        """
        sparse = {name: x for name, x in tensors.items() if isinstance(x, Sparse)}
        dense = [Buffer.of(name, x, (dtypes or {}).get(name, x.dtype.name))
                 for name, x in tensors.items() if not isinstance(x, Sparse)]  # fmt: skip
        self.put_buffers(dense)
        for name, x in sparse.items():
            self.put_sparse(name, x)

    def put_buffers(self, buffers: Sequence[Buffer]) -> None:
        """Gradients side by side, as engines bundle them; those of one call travel as one message."""
        if self.settings.clip_norm is not None:
            self._unclipped.append(buffers)
        else:
            self._put_buffers(buffers)

    def _put_buffers(self, buffers: Sequence[Buffer]) -> None:
        self._follow()
        self._bytes_dense += sum(buffer.size * ITEM_SIZE[buffer.dtype] for buffer in buffers)
        plan, memory = self.scheme, self.settings.schedule.scheme.memory
        parts = self.nodes.take(buffers, self.clock)
        buffers = [move_on(buffer, self.states.means, self.settings, memory) for buffer in parts]
        self._pending += (
            [self._average(buffer) for buffer in buffers] if plan is None else self._exchange(buffers, plan)
        )

    def put_sparse(self, name: str, x: Sparse) -> None:
        """A sparse gradient: all its entries are sent, in dense steps without loss; its momentum is the optimizer's."""
        if self.settings.clip_norm is not None:
            self._unclipped.append((name, x))
        else:
            self._put_sparse(name, x)

    def _put_sparse(self, name: str, x: Sparse) -> None:
        self._follow()
        self._bytes_dense += x.numel * ITEM_SIZE[x.dtype]
        plan = self._sparse_plan or LOSSLESS
        part = self.nodes.take_sparse(name, x, self.clock)
        piece = Piece(name, part, part.shape, part.dtype, self.states.of_sparse(name, part, plan.memory.buffers))
        context = self._context(plan)
        (outcome,) = self._run(context.select([piece]), context)
        self._sparse.append((piece, (outcome, x)))

    def _exchange(self, buffers: Sequence[Buffer], plan: Scheme) -> list[PendingBuffer]:
        """Selects and sends; with one threshold for the model nothing is sent before the last buffer has come."""
        pending, context = [self._open(buffer, plan) for buffer in buffers], self._context(plan)
        if self.settings.select_per == "model":
            self._model.scan(pending, plan, self.clock)
        else:
            self._send(pending, context.select([piece for one in pending for piece in one.pieces]), context)
        for one in pending:
            one.release()
        return pending

    def _open(self, buffer: Buffer, plan: Scheme) -> PendingBuffer:
        numbers, layout = buffer.read(), self._layout(buffer.slices)
        dense = self._owed(layout.dense, numbers, plan)
        layout.clear(numbers)
        for segment in layout.segments:
            set_aside(segment, numbers, plan, self.states)
        pieces = [self._piece(segment, numbers, buffer.dtype, plan) for segment in layout.segments]
        return PendingBuffer(buffer, layout, pieces, *dense)

    def _send(self, pending: Sequence[PendingBuffer], offers: list[Selected], context: ExchangeContext) -> None:
        outcomes = iter(self._run(offers, context))
        for one in pending:
            one.outcomes = [next(outcomes) for _ in one.layout.segments]

    def _run(self, offers: list[Selected], context: ExchangeContext) -> list[Outcome]:
        return context.method.exchange(offers, context) if offers else []

    def _context(self, plan: Scheme) -> ExchangeContext:
        label = f" {plan.indices} {plan.values}"
        return ExchangeContext(plan, self.nodes.across, self.step, self.settings.seed, self.clock, label)

    def _average(self, buffer: Buffer) -> PendingBuffer:
        """In a dense step each buffer is moved at once, while the next is made."""
        plan, numbers = self.settings.schedule.scheme, buffer.read()
        parts, unused = self._owed(buffer.slices, numbers, plan, left_behind(self.settings, plan.memory))
        total = np.concatenate([values for _, values in parts])
        with self.clock("dense"):
            mean = self.nodes.across.all_reduce(total) / total.dtype.type(self.nodes.across.size)
        finite = kernels.all_finite(mean, threads=kernels.threads)
        dense = [(item, mean[item.start : item.stop]) for item in buffer.slices]
        return PendingBuffer(buffer, Layout((), buffer.slices), [], dense, unused, True, finite)

    def _piece(self, segment: Segment, numbers: Array, dtype: str, plan: Scheme) -> Piece:
        x, masks = numbers[segment.start : segment.stop], self.settings.masks if plan.exchange.uses_masks else None
        state = self.states.of(segment, plan.memory.buffers, x.dtype)
        shape = self.settings.shape(segment.name, x.size, plan)
        if dtype == "float16" and plan.transform.uses_fourier:
            dtype = "float32"  # coefficients may be larger than any float16
        return Piece(segment.name, x, shape, dtype, state, mask=None if masks is None else masks.of(segment.spans))

    def _owed(
        self, items: Sequence[Slice], numbers: Array, plan: Scheme, left: Left = lambda name: False
    ) -> tuple[list[tuple[Slice, Array]], frozenset[str]]:  # fmt: skip
        """What parameters have to send in full, and the names of those that are not used here."""
        unused = without_gradient(items, numbers)
        told = plan, self.settings, self.states
        return [(item, owed(item, numbers, *told, item.name not in unused, left(item.name))) for item in items], unused

    def _layout(self, slices: tuple[Slice, ...]) -> Layout:
        if slices not in self._layouts:
            settings, by_bucket = self.settings, self.settings.select_per == "bucket"
            self._layouts[slices] = lay_out(slices, settings.dense_names, settings.dense_below, by_bucket)
        return self._layouts[slices]

    # --- phase 2 ---

    def finish(self) -> bool:
        """Ends the step: buffers are updated if it is finite on all ranks, which is returned, and means written."""
        return self.commit(self.prepare())

    def prepare(self) -> bool:
        """The step's last collectives; whether it is finite on all ranks. Nothing is written yet."""
        self._put_clipped()
        self._send_selected()
        finite = self._reduce_dense() and all(one.finite for one in self._pending)
        dense = (outcome for one in self._pending for outcome in one.outcomes)
        finite = finite and all(outcome.finite for outcome in (*dense, *(found for _, (found, _) in self._sparse)))
        finite, self._gain.now = self.nodes.agree(finite, self._gain.now)
        return finite

    def commit(self, finite: bool) -> bool:
        """The rest of `finish`: what the ranks know already is written, and shared where machines have several."""
        plan = self.scheme
        self._model.keep(finite)
        for one in self._pending:
            self._write(one, plan or self.settings.schedule.scheme, finite)
        self.sparse_means = {one.name: self._finish_sparse(one, *last, finite) for one, last in self._sparse}
        if finite:
            self._gain.follow(dense=plan is None)
        self.abandon()
        self.step, self.was_sparse = self.step + 1, plan is not None
        if self.settings.on_step is not None:
            self.settings.on_step({**self.stats(), "scheme": str(plan or "dense"), "finite": finite})
        return finite

    def _put_clipped(self) -> None:
        """Clips this rank's gradient to clip_norm/√ranks, as DGC does; only the last bucket tells its norm."""
        waiting, self._unclipped = self._unclipped, []
        if not waiting or self.settings.clip_norm is None:
            return
        self._follow()
        for part in clipped(waiting, self.settings.clip_norm * self.scale / math.sqrt(self.comm.size)):
            self._put_sparse(*part) if isinstance(part, tuple) else self._put_buffers(part)

    def _send_selected(self) -> None:
        """With one threshold for the model, which only the last bucket tells, everything is sent now."""
        plan = self.scheme
        if plan is not None:
            context = self._context(plan)
            for pending, offers in self._model.selected(context):
                self._send(pending, offers, context)

    def pass_by(self, nbytes: int) -> None:
        """Counts a dense step that was made elsewhere: nothing was owed, so a plain mean of its bytes was enough."""
        self._bytes_dense += nbytes
        self._gain.follow(dense=True)
        self.step, self.was_sparse = self.step + 1, False

    def abandon(self) -> None:
        """Ends a step: what was set aside comes back. Of a step that failed, all buffers are as they were before it."""
        self.states.put_back()
        self._model.clear()
        self._gain.clear()
        self._pending, self._sparse, self._unclipped = [], [], []

    def _reduce_dense(self) -> bool:
        """In the order of names: engines add up in an order that depends on the place, and buckets change."""
        pairs = [pair for one in self._pending if not one.reduced for pair in one.dense]
        arrays = [values for _, values in sorted(pairs, key=lambda pair: pair[0].name)]
        message = self._gain.message(arrays, sparse=self.scheme is not None)
        with self.clock("dense"):
            finite = average_dense([*arrays, *message], self.nodes.across)
        self._gain.now = self._gain.agreed(message)
        return finite

    def _write(self, one: PendingBuffer, plan: Scheme, finite: bool) -> None:
        numbers, left = one.buffer.read(), left_behind(self.settings, plan.memory, dense=self.scheme is None)
        if finite:
            for item, mean in one.dense:
                used = item.name not in one.unused
                settle(item, numbers, mean, plan, self.settings, self.states, used, left(item.name))
        one.layout.clear(numbers)
        for piece, outcome in zip(one.pieces_over(numbers), one.outcomes, strict=True):
            if finite:
                with self.clock("keep"):
                    self._gain.note(piece.keep(plan, outcome, self._gain.now))
                if self.settings.on_sent is not None:
                    self.settings.on_sent(piece.name, outcome.delivered())
            assert not isinstance(piece.x, Sparse)
            with self.clock("accumulate"):
                outcome.mean_into(piece.x)
        for item, mean in one.dense:
            numbers[item.start : item.stop] = mean
        if finite and plan.memory.held_momentum:
            with self.clock("hand out"):
                hand_out(one.buffer, numbers, self.states.means, self.settings, plan.memory, self._gain.now, left)
        one.buffer.write(numbers)

    def _finish_sparse(self, piece: Piece, outcome: Outcome, x: Sparse, finite: bool) -> Sparse:
        plan = self._sparse_plan
        if finite and plan is not None:
            with self.clock("keep"):
                piece.keep(plan, outcome)
        return self.nodes.give_sparse(piece.name, outcome.mean_sparse(), x, self.clock)

    # --- state ---

    def _follow(self) -> None:
        """At the start of a step, the buffers change with the loss's scale and the learning rate."""
        if self._pending or self._sparse:
            return
        if self.settings.scale is not None:
            self.rescale(self.settings.scale())
        reweigh(self.states, self.settings)

    def rescale(self, scale: float) -> None:
        """Buffers are in the loss's scale, so they change with it (by powers of two: exactly)."""
        if scale != self.scale:
            self.states.multiply(scale / self.scale)
            self._model.multiply(scale / self.scale)
            self.scale = scale

    def stats(self) -> dict[str, Any]:
        """Totals: steps, bytes to and from the engine, bytes of dense steps, seconds by stage, ways exchanges took."""
        traffic = self.comm.traffic()
        return {
            "steps": self.step,
            "select_per": self.settings.select_per,
            "bytes_sent": traffic.bytes_sent,
            "bytes_received": traffic.bytes_received,
            "bytes_dense": self._bytes_dense,
            "seconds": dict(self.clock.seconds),
            "counts": dict(self.clock.counts),
            **self._gain.stats(),
            **self.nodes.stats(),
        }

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: arrays and plain types only. Every rank saves its own."""
        return {
            "version": STATE_VERSION,
            "scheme": str(self.settings.schedule.scheme),
            "step": self.step,
            "scale": self.scale,
            "rank": self.comm.rank,
            "world_size": self.comm.size,
            "buffers": self.states.saved(),
            "means": self.states.saved_means(),
            "rates": dict(self.states.rates),
            "selection": self._model.saved(),
            "gain": self._gain.saved(),
            "nodes": self.nodes.grid.facts(self.comm.rank),
        }

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raises unless a saved state is this rank's."""
        check_state(state, self.comm.rank, self.nodes.grid, self.settings.schedule.scheme.memory)

    def read_state(self, state: Mapping[str, Any]) -> Saved:
        """This rank's saved state, checked, in the loss's present scale. Nothing changes before `take_over`."""
        with reading():
            self.check_state(state)
            return Saved.read(state, self.scale)

    def take_over(self, saved: Saved) -> None:
        """Goes on from what `read_state` gave."""
        self.states.take_over(saved.states)
        if not self.settings.follow_rate:
            self.states.rates = {}  # nobody would keep them up to date
        self.step, self.scale = saved.step, saved.scale
        self._model.load(saved.selection)
        self._gain.load(saved.gain)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from this rank's saved state, in the loss's present scale; other ranks are not asked."""
        self.take_over(self.read_state(state))
