"""The parameters of a buffer as pieces that are compressed and as parts that travel dense; no memory is written."""

from __future__ import annotations

from collections.abc import Container

from sparsewire.codecs.scheme import Scheme
from sparsewire.comm import Communicator
from sparsewire.exchange import Clock, Piece, average_in_place
from sparsewire.kernels import Array, on_host

from .layout import Buffer, Layout, PendingBuffer, Segment, Slice, lay_out, names_of, without_gradient
from .places import is_narrow, own_copy, together, unfilled
from .residuals.momentum import left_behind
from .residuals.states import States
from .residuals.unsent import put_unsent, reads_gradient, with_unsent
from .schedule import Settings

LANDED = 2**16  # elements of a buffer that travel dense through the host, where they might stay on the device


class BufferPieces:
    """Cuts the buffers of a training; layouts are kept from step to step."""

    def __init__(self, settings: Settings, states: States, clock: Clock) -> None:
        self._settings, self._states, self._clock = settings, states, clock
        self._layouts: dict[tuple[Slice, ...], Layout] = {}
        self._idle: set[str] = set()  # parameters that came without a gradient once

    def cut(self, buffer: Buffer, plan: Scheme, lands: bool = True) -> PendingBuffer:
        """A buffer of a sparse step. What travels dense of a device's buffer `lands` on the host; if it need not, only
        a little of it does, with the selection, so that it is not waited for by itself."""
        numbers, layout = buffer.read(), self._layout(buffer.slices)
        unused = without_gradient(layout.dense, numbers)
        dense = [(item, self._unsent(item, numbers, plan, unused)) for item in layout.dense]
        lands = lands or sum(item.size for item in layout.dense) <= LANDED
        landing = together([values for _, values in dense]) if lands else None
        dense = [(item, values if landing else own_copy(values)) for item, values in dense]
        layout.clear(numbers)
        members = [item for segment in layout.segments for item in segment.members] if plan.memory.buffers else []
        idle = without_gradient(members, numbers, sampled=True)
        pieces = [self._piece(segment, numbers, buffer.dtype, plan) for segment in layout.segments]
        pending = PendingBuffer(buffer, layout, pieces, dense, unused, landing=landing, idle=idle)
        if on_host(numbers) or not self._idle.isdisjoint(names_of(members)):
            self.hold_back(pending, plan)
        return pending

    def hold_back(self, pending: PendingBuffer, plan: Scheme) -> bool:
        """Takes the buffers of parameters without a gradient out of the step; whether there are any.

        On a device that is known when the selection has come to the host: with such parameters it is made again. Where
        some were found, their bucket is asked before the selection from then on.
        """
        idle, pending.idle = pending.idle, ()
        for segment, piece in zip(pending.layout.segments, pending.pieces, strict=True):
            for item in segment.members:
                if item.name in idle:
                    self._idle.add(item.name)
                    self._states.hold_back(segment, item, piece.state)
        return bool(idle)

    def average(self, buffer: Buffer, comm: Communicator) -> PendingBuffer:
        """A buffer of a dense step is averaged at once, while the next is made.

        It is added up in its own memory, unless that is a copy or a memory will read its gradient.
        """
        plan, numbers = self._settings.schedule.scheme, buffer.read()
        unused, left = without_gradient(buffer.slices, numbers), left_behind(self._settings, plan.memory)
        reads = any(reads_gradient(item, plan, self._settings, left(item.name)) for item in buffer.slices)
        mean = unfilled(numbers) if reads or buffer.copies or is_narrow(numbers) else numbers
        for item in buffer.slices:
            out, x = mean[item.start : item.stop], numbers[item.start : item.stop]
            put_unsent(out, item, x, plan, self._settings, self._states, unused, left(item.name))
        with self._clock("dense"):
            finite = average_in_place(mean, comm)
        dense = [(item, mean[item.start : item.stop]) for item in buffer.slices]
        return PendingBuffer(buffer, Layout((), buffer.slices), [], dense, unused, True, finite, mean is numbers)

    def _piece(self, segment: Segment, numbers: Array, dtype: str, plan: Scheme) -> Piece:
        x, masks = numbers[segment.start : segment.stop], self._settings.masks if plan.exchange.uses_masks else None
        state = self._states.of(segment, plan.memory.buffers, x)
        shape = self._settings.shape(segment.name, x.size, plan)
        if dtype == "float16" and plan.transform.uses_fourier:
            dtype = "float32"  # coefficients may be larger than any float16
        return Piece(segment.name, x, shape, dtype, state, mask=None if masks is None else masks.of(segment.spans))

    def _unsent(self, item: Slice, numbers: Array, plan: Scheme, unused: Container[str]) -> Array:
        """What a parameter that travels dense in a sparse step has to send."""
        x = numbers[item.start : item.stop]
        return with_unsent(item, x, plan, self._settings, self._states, unused)

    def _layout(self, slices: tuple[Slice, ...]) -> Layout:
        if slices not in self._layouts:
            settings, by_bucket = self._settings, self._settings.select_per == "bucket"
            self._layouts[slices] = lay_out(slices, settings.dense_names, settings.dense_below, by_bucket)
        return self._layouts[slices]
