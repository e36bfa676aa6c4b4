"""The parameters of a buffer as pieces that are compressed and as parts that travel dense; no memory is written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsewire import kernels
from sparsewire.codecs.scheme import Scheme
from sparsewire.comm import Communicator
from sparsewire.exchange import Clock, Piece
from sparsewire.kernels import Array

from .layout import Buffer, Layout, PendingBuffer, Segment, Slice, lay_out, without_gradient
from .residuals.debts import owed, set_aside
from .residuals.momentum import Left, left_behind
from .residuals.states import States
from .schedule import Settings


class BufferPieces:
    """Cuts the buffers of a training; layouts are kept from step to step."""

    def __init__(self, settings: Settings, states: States, clock: Clock) -> None:
        self._settings, self._states, self._clock = settings, states, clock
        self._layouts: dict[tuple[Slice, ...], Layout] = {}

    def cut(self, buffer: Buffer, plan: Scheme) -> PendingBuffer:
        """A buffer of a sparse step."""
        numbers, layout = buffer.read(), self._layout(buffer.slices)
        dense = self._owed(layout.dense, numbers, plan)
        layout.clear(numbers)
        for segment in layout.segments:
            set_aside(segment, numbers, plan, self._states)
        pieces = [self._piece(segment, numbers, buffer.dtype, plan) for segment in layout.segments]
        return PendingBuffer(buffer, layout, pieces, *dense)

    def average(self, buffer: Buffer, comm: Communicator) -> PendingBuffer:
        """A buffer of a dense step is moved at once, while the next is made."""
        plan, numbers = self._settings.schedule.scheme, buffer.read()
        parts, unused = self._owed(buffer.slices, numbers, plan, left_behind(self._settings, plan.memory))
        total = np.concatenate([values for _, values in parts])
        with self._clock("dense"):
            mean = comm.all_reduce(total) / total.dtype.type(comm.size)
        finite = kernels.all_finite(mean, threads=kernels.threads)
        dense = [(item, mean[item.start : item.stop]) for item in buffer.slices]
        return PendingBuffer(buffer, Layout((), buffer.slices), [], dense, unused, True, finite)

    def _piece(self, segment: Segment, numbers: Array, dtype: str, plan: Scheme) -> Piece:
        x, masks = numbers[segment.start : segment.stop], self._settings.masks if plan.exchange.uses_masks else None
        state = self._states.of(segment, plan.memory.buffers, x.dtype)
        shape = self._settings.shape(segment.name, x.size, plan)
        if dtype == "float16" and plan.transform.uses_fourier:
            dtype = "float32"  # coefficients may be larger than any float16
        return Piece(segment.name, x, shape, dtype, state, mask=None if masks is None else masks.of(segment.spans))

    def _owed(
        self, items: Sequence[Slice], numbers: Array, plan: Scheme, left: Left = lambda name: False
    ) -> tuple[list[tuple[Slice, Array]], frozenset[str]]:  # fmt: skip
        """What parameters have to send in full, and the names of those that are not used here."""
        unused = without_gradient(items, numbers)
        told = plan, self._settings, self._states
        return [(item, owed(item, numbers, *told, item.name not in unused, left(item.name))) for item in items], unused

    def _layout(self, slices: tuple[Slice, ...]) -> Layout:
        if slices not in self._layouts:
            settings, by_bucket = self._settings, self._settings.select_per == "bucket"
            self._layouts[slices] = lay_out(slices, settings.dense_names, settings.dense_below, by_bucket)
        return self._layouts[slices]
