"""`TrainingState`: what a rank of a training keeps from step to step, and how it is saved and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsewire.codecs.scheme import Scheme
from sparsewire.comm import Communicator
from sparsewire.core.statefile import reading
from sparsewire.errors import InputError
from sparsewire.exchange import Clock

from .guard import Guard, read_guard
from .model_select import ModelSelect
from .nodes.nodes import nodes
from .residuals.gain import StepGain
from .residuals.saved import STATE_VERSION, Saved, check_sizes, check_state
from .residuals.states import States
from .schedule import Settings
from .step_end import StepEnd


class TrainingState:
    """Buffers, step number, loss scale, selection and gain of one rank."""

    def __init__(self, comm: Communicator, settings: Settings, sizes: Mapping[str, int] | None = None) -> None:
        """`sizes` are the elements of every tensor that will come, by name: states of others are then refused."""
        self.settings, self.sizes = settings, sizes
        self.connect(comm)
        self.settings = settings.of_part(self.nodes.grid.parts)
        self.step, self.scale = 0, settings.scale() if settings.scale is not None else 1.0
        self.states, self.clock = States(), Clock()
        self.was_sparse = False  # the last step
        self._bytes_dense = 0
        self._model, self._gain = ModelSelect(), StepGain(settings.schedule.scheme.memory)
        memory = settings.schedule.scheme.memory
        self._guard = Guard(settings.on_divergence, bool(memory.buffers), comm.rank)
        self._end: StepEnd | None = None  # of a step whose means are out, while it is not known whether it counts

    def connect(self, comm: Communicator) -> None:
        """These are the ranks from now on. Every one of them calls it."""
        self.comm, self.nodes = comm, nodes(comm, self.settings)

    def forget_norms(self) -> None:
        """The guard begins anew, as it must on every rank where ranks have come that cannot know what it has seen."""
        self._guard.load(read_guard({}))

    @property
    def scheme(self) -> Scheme | None:
        """This step's; None if it is dense."""
        return None if self._guard.is_dense(self.step) else self.settings.schedule.at(self.step)

    def count_dense_step(self, nbytes: int) -> None:
        """Counts a dense step that was made elsewhere: nothing waited to be sent, so a plain mean was enough."""
        self._bytes_dense += nbytes
        self._gain.follow(dense=True)
        self.step, self.was_sparse = self.step + 1, False

    def rescale(self, scale: float) -> None:
        """Buffers are in the loss's scale, so they change with it (by powers of two: exactly)."""
        if scale != self.scale:
            self.states.multiply(scale / self.scale)
            self._model.multiply(scale / self.scale)
            self._guard.rescale(scale / self.scale)
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
            **self._guard.stats(),
            **self.nodes.stats(),
        }

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: arrays and plain types only. Every rank saves its own."""
        self._check_settled()
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
            "guard": self._guard.saved(),
            "nodes": self.nodes.grid.facts(self.comm.rank),
        }

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raises unless a saved state is this rank's."""
        check_state(state, self.comm.rank, self.nodes.grid, self.settings.schedule.scheme.memory)
        if self.sizes is not None:
            check_sizes(state, self.sizes, self.comm.rank, self.nodes.grid)

    def read_state(self, state: Mapping[str, Any]) -> Saved:
        """This rank's saved state, checked, in the loss's present scale. Nothing changes before `take_over`."""
        with reading():
            self.check_state(state)
            return Saved.read(state, self.scale)

    def take_over(self, saved: Saved) -> None:
        """Goes on from what `read_state` gave."""
        self._check_settled()
        self.states.take_over(saved.states)
        if not self.settings.follow_rate:
            self.states.rates = {}  # nobody would keep them up to date
        self.step, self.scale = saved.step, saved.scale
        self._model.load(saved.selection)
        self._gain.load(saved.gain)
        self._guard.load(saved.guard)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from this rank's saved state, in the loss's present scale; other ranks are not asked."""
        self.take_over(self.read_state(state))

    def _check_settled(self) -> None:
        if self._end is not None:
            raise InputError("the means of the last step are out: call settle(counted) before anything else")
