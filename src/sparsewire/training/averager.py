"""`Averager`: all that a training keeps from step to step, for any framework: buffers, schedule, step number, counts.

A step has two phases:
1. `put` hands over gradients, a bucket at a time: they are selected, encoded and exchanged; dense steps add them up
   where they are. No memory's buffer is written.
2. `finish`, after the last of them. `prepare`: one all_reduce moves everything that travels dense, unless it is so
   little that it went behind the messages of an exchange (`Rider`). Now all ranks know
   whether the step is finite. `commit`, without any collective: if it is, the memories keep what was not sent; if not,
   all buffers stay as they were, for the step will be skipped. The means take the gradients' places.
`abandon` ends a step that failed, with everything as it was before.

An engine that decides after a step whether it counted calls `write_means` and `settle` in the place of `commit`.
With `nodes` all of this is about a rank's part of every parameter, and the means of the parts are shared as they are
written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sparsewire.codecs.scheme import Scheme
from sparsewire.comm import Communicator
from sparsewire.core.sparse import Sparse
from sparsewire.errors import InputError
from sparsewire.exchange import Exchange, ExchangeContext, Outcome, Piece, Rider, Selected, average_dense
from sparsewire.exchange.rider import fits, gather_means
from sparsewire.kernels import Array

from .buffer_pieces import BufferPieces
from .guard import norms_of
from .layout import Buffer, Gradients, PendingBuffer, PendingSparse, clipped
from .nodes.nodes import LOSSLESS
from .residuals.momentum import apply_rate_change, rescale_residual
from .schedule import Settings
from .step_end import StepEnd, for_sparse
from .training_state import TrainingState

ITEM_SIZE = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


class Averager(TrainingState):
    """One rank's part in a training. Every rank puts the same tensors in the same order."""

    def __init__(self, comm: Communicator, settings: Settings, sizes: Mapping[str, int] | None = None) -> None:
        super().__init__(comm, settings, sizes)
        self.sparse_means: dict[str, Sparse] = {}
        dense = [size for name, size in (sizes or {}).items() if not settings.is_sparse(name, size)]
        self._small = math.inf if sizes is None else sum(dense)  # numbers that travel dense in sparse steps
        self._pieces = BufferPieces(self.settings, self.states, self.clock)
        self._pending: list[PendingBuffer] = []
        self._sparse: list[PendingSparse] = []
        self._unclipped: list[Gradients] = []  # until the norm of all of them is known

    # --- phase 1: no memory's buffer is written ---

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
        self._put(buffers)

    def put_sparse(self, name: str, x: Sparse) -> None:
        """A sparse gradient: all its entries are sent, in dense steps without loss; its momentum is the optimizer's."""
        self._put((name, x))

    def _put(self, part: Gradients) -> None:
        self._check_settled()
        if self.settings.clip_norm is not None:
            self._unclipped.append(part)
        else:
            self._exchange_part(part)

    def _exchange_part(self, part: Gradients) -> None:
        self._put_sparse(*part) if isinstance(part, tuple) else self._put_buffers(part)

    def _put_buffers(self, buffers: Sequence[Buffer]) -> None:
        self._follow()
        self._bytes_dense += sum(buffer.size * ITEM_SIZE[buffer.dtype] for buffer in buffers)
        plan, memory = self.scheme, self.settings.schedule.scheme.memory
        parts = self.nodes.take(buffers, self.clock)
        buffers = [apply_rate_change(buffer, self.states.means, self.settings, memory) for buffer in parts]
        self._pending += (
            [self._pieces.average(buffer, self.nodes.across) for buffer in buffers]
            if plan is None
            else self._exchange(buffers, plan)
        )

    def _put_sparse(self, name: str, x: Sparse) -> None:
        self._follow()
        self._bytes_dense += x.numel * ITEM_SIZE[x.dtype]
        plan = LOSSLESS if self.scheme is None else for_sparse(self.scheme)
        part = self.nodes.take_sparse(name, x, self.clock)
        piece = Piece(name, part, part.shape, part.dtype, self.states.of_sparse(name, part, plan.memory.buffers))
        context = self._context(plan)
        (outcome,) = self._run(context.select([piece]), context)
        self._sparse.append(PendingSparse(piece, outcome, x))

    def _exchange(self, buffers: Sequence[Buffer], plan: Scheme) -> list[PendingBuffer]:
        """Selects and sends; with one threshold for the model nothing is sent before the last buffer has come."""
        lands, context = self.nodes.across.engine is None or self._rides(plan), self._context(plan)
        pending = [self._pieces.cut(buffer, plan, lands) for buffer in buffers]
        if self.settings.select_per == "model":
            self._model.scan(pending, plan, self.clock, lambda buffer: self._pieces.hold_back(buffer, plan))
        else:
            pieces = [piece for buffer in pending for piece in buffer.pieces]
            offers = context.select(pieces)
            held = [self._pieces.hold_back(buffer, plan) for buffer in pending]
            if any(held):
                offers = context.select(pieces)
            self._send(pending, offers, context)
        for buffer in pending:
            buffer.release()
        return pending

    def _send(self, pending: Sequence[PendingBuffer], offers: list[Selected], context: ExchangeContext) -> None:
        if offers and self._rides(context.scheme):
            context = self._with_rider(pending, context)
        outcomes = iter(self._run(offers, context))
        for buffer in pending:
            buffer.outcomes = [next(outcomes) for _ in buffer.layout.segments]

    def _rides(self, plan: Scheme) -> bool:
        """Whether what travels dense goes by all_gathers: the same in every step, however parameters are bundled, as
        the sums then go in another order."""
        method = plan.exchange
        return isinstance(method, Exchange) and method.carries and fits(self._small, self.nodes.across.size)

    def _with_rider(self, pending: Sequence[PendingBuffer], context: ExchangeContext) -> ExchangeContext:
        """What travels dense goes with these buffers' messages where that is cheap: all of theirs, and the gain."""
        for buffer in pending:
            buffer.land()
        arrays = [values for buffer in pending for _, values in buffer.dense]
        message = [] if self._gain.agreed_on else self._gain.message((), sparse=True)

        def arrived(finite: bool) -> None:
            for buffer in pending:
                buffer.reduced, buffer.finite = True, finite
            if message:
                self._gain.now, self._gain.agreed_on = self._gain.agreed(message), True

        return replace(context, rider=Rider([*arrays, *message], arrived))

    def _run(self, offers: list[Selected], context: ExchangeContext) -> list[Outcome]:
        return context.method.exchange(offers, context) if offers else []

    def _context(self, plan: Scheme) -> ExchangeContext:
        label = f" {plan.indices} {plan.values}"
        return ExchangeContext(plan, self.nodes.across, self.step, self.settings.seed, self.clock, label)

    # --- phase 2 ---

    def finish(self) -> bool:
        """Ends the step: buffers are updated if it is finite on all ranks, which is returned, and means written."""
        return self.commit(self.prepare())

    def prepare(self) -> bool:
        """The step's last collectives; whether it is finite on all ranks. Nothing is written yet."""
        self._put_clipped()
        self._send_selected()
        outcomes = [outcome for pending in self._pending for outcome in pending.outcomes]
        outcomes += [pending.outcome for pending in self._sparse]
        finite = self._reduce_dense() and all(pending.finite for pending in self._pending)
        finite = finite and all(outcome.finite for outcome in outcomes)
        finite, (self._gain.now, *measures) = self.nodes.agree(finite, [self._gain.now, *self._guard.measures])
        self._guard.note(measures)
        return finite if self.settings.agree is None else self.settings.agree(finite)

    def commit(self, finite: bool) -> bool:
        """The rest of `finish`: what the ranks know already is written, and shared where machines have several."""
        end = self._begin_end(finite)
        for pending in self._pending:
            end.commit(pending)
        self.sparse_means = {pending.piece.name: end.commit_sparse(pending) for pending in self._sparse}
        self._count(end)
        return finite

    def write_means(self, finite: bool) -> bool:
        """The first half of `commit`: the means take the gradients' places. `settle` says later if the step counted."""
        if not self.settings.decides_late:
            raise InputError("write_means needs Settings(decides_late=True), so that gradients are held until settle")
        end = self._begin_end(finite)
        for pending in self._pending:
            end.write(pending)
        self.sparse_means = {pending.piece.name: end.write_sparse(pending) for pending in self._sparse}
        self._end = end
        return finite

    def settle(self, counted: bool) -> None:
        """The second half: the memories keep what a step that counted has not sent. After any other step, buffers,
        means, gain and step number are as they were before it."""
        if self._end is None:
            raise InputError("settle follows write_means, once in each step")
        if counted:
            end, self._end = self._end, None
            self._count(end)
        else:
            self.abandon()

    def _begin_end(self, finite: bool) -> StepEnd:
        plan, before = self.scheme, self.was_sparse
        self.was_sparse = plan is not None
        return StepEnd(plan, finite, self.settings, self.states, self._gain, self.nodes, self.clock, before)

    def _count(self, end: StepEnd) -> None:
        end.keep()
        self._model.keep(end.finite)
        self._guard.follow(self.step, end.finite)
        self.abandon()
        self.step += 1
        if self.settings.on_step is not None:
            self.settings.on_step({**self.stats(), "scheme": str(end.plan or "dense"), "finite": end.finite})

    def _put_clipped(self) -> None:
        """Clips this rank's gradient to clip_norm/√ranks, as DGC does; only the last bucket tells its norm."""
        waiting, self._unclipped = self._unclipped, []
        if not waiting or self.settings.clip_norm is None:
            return
        self._follow()
        most = self.settings.clip_norm * self.scale / math.sqrt(self.comm.size)
        for part in clipped(waiting, most, self.settings.norm):
            self._exchange_part(part)

    def _send_selected(self) -> None:
        """With one threshold for the model, which only the last bucket tells, everything is sent now."""
        plan = self.scheme
        if plan is not None:
            context = self._context(plan)
            for pending, offers in self._model.selected(context):
                self._send(pending, offers, context)

    def abandon(self) -> None:
        """Ends a step: what was held back returns. Of a step that failed, all buffers are as they were before it."""
        if self._end is not None:
            self.was_sparse = self._end.was_sparse
        self.states.put_back()
        self._model.clear()
        self._gain.clear()
        self._guard.clear()
        self._pending, self._sparse, self._unclipped, self._end = [], [], [], None

    def _reduce_dense(self) -> bool:
        """In the order of names: engines add up in an order that depends on the place, and buckets change."""
        waiting = [buffer for buffer in self._pending if not buffer.reduced]
        for buffer in waiting:
            buffer.land()
        pairs = [pair for buffer in waiting for pair in buffer.dense]
        arrays = [values for _, values in sorted(pairs, key=lambda pair: pair[0].name)]
        sparse = self.scheme is not None and not self._gain.agreed_on
        message, norms = self._gain.message(arrays, sparse), self._norms(arrays)
        with self.clock("dense"):
            if self.scheme is not None and self._rides(self.scheme):
                finite = gather_means([*arrays, *message, *norms], self.nodes.across)
            else:
                finite = average_dense([*arrays, *message, *norms], self.nodes.across)
        if not self._gain.agreed_on:
            self._gain.now = self._gain.agreed(message)
        self._guard.note(*norms)
        return finite

    def _norms(self, others: Sequence[Array]) -> list[Array]:
        """This rank's message to the guard, where one is due."""
        if not self._guard.due(self.step, sparse=self.scheme is not None):
            return []
        with self.clock("guard"):
            norms = norms_of((part for pending in self._pending for part in pending.residuals()), others)
            if self.settings.norm is not None:  # of all shards, so that their ranks decide alike
                norms = tuple(map(self.settings.norm, norms))
            return self._guard.message(norms, self.scale, others)

    def _follow(self) -> None:
        """At the start of a step, the buffers change with the loss's scale and the learning rate."""
        if self._pending or self._sparse:
            return
        if self.settings.scale is not None:
            self.rescale(self.settings.scale())
        rescale_residual(self.states, self.settings)
