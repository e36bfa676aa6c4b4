"""`Meetings`: when a rank meets the others, and what a meeting writes into the model.

A meeting that is due after a local step is held at once or, with `overlap`, on another thread; then its outcome is
written to the model some steps later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from sparsewire.errors import InputError, add_note
from sparsewire.kernels import Array
from sparsewire.training.link_parts import round_stats
from sparsewire.training.local.membership import Joined
from sparsewire.training.local.rounds import DUE, Rounds, Visit
from sparsewire.training.local.settings import LocalSettings

from ..tensors import local
from .background_call import BackgroundCall
from .groups import Group
from .model import LocalModel
from .pending_exchange import PendingExchange
from .traffic import TrafficTotal

logger = logging.getLogger("sparsewire")


class Meetings:
    """Holds this rank's meetings and writes their outcomes into its model.

    After a failure, `error` is what every later call of the link raises.
    """

    def __init__(self, model: LocalModel, group: Group, options: LocalSettings, rounds: Rounds) -> None:
        self.model, self.group, self.options, self.rounds = model, group, options, rounds
        self.pending: PendingExchange | None = None
        self.error: BaseException | None = None
        self.traffic = TrafficTotal()
        self._steps, self._warned = 0, False

    def stats(self) -> dict[str, Any]:
        """As `LocalLink.stats` says."""
        sent, received = self.traffic.total(self.group.comm)
        numbers = sum(local(tensor).numel() * (1 + tensor.is_complex()) for tensor in self.model.parameters.values())
        return round_stats(self.rounds, sent, received, 4 * numbers * self._steps)

    def fail(self, error: BaseException) -> BaseException:
        """Tells the other ranks and leaves the group; the error to raise."""
        self.error = self.group.fail(error)
        return self.error

    def count_step(self) -> None:
        """Counts a local step, and does what is due after it."""
        self._steps += 1
        self.rounds.count()
        if self.pending is not None:
            self.pending.steps_left -= 1
            if self.pending.steps_left <= 0:
                self.finish_pending()
        if self.pending is None and self._is_due():
            self.hold(DUE)

    def _is_due(self) -> bool:
        """Whether a meeting is due. The others hear of a round that is too short: their rounds may be longer."""
        try:
            return self.rounds.due
        except InputError as error:
            self.fail(error)
            raise

    def hold(self, kind: int) -> None:
        """Holds a meeting, after the pending one."""
        self.finish_pending()
        visit = self.rounds.visit(self.model.read(), kind)
        if kind == DUE and self.options.overlap:
            visit = visit.copied()
            call = BackgroundCall(lambda: self.rounds.hold(visit))
            self.pending = PendingExchange(visit, call, self.options.overlap)
        else:
            self._write_outcome(visit, self._outcome(visit, lambda: self.rounds.hold(visit)), False)

    def wait(self, patience: float | None = None) -> None:
        """Waits for the pending exchange to end; its outcome stays pending."""
        if self.pending is not None:
            self.pending.call.wait(patience)

    def finish_pending(self) -> None:
        """Waits for the pending exchange, and writes its outcome into the model."""
        if self.pending is not None:
            finite = self._outcome(self.pending.visit, self.pending.call.result)
            pending, self.pending = self.pending, None
            self._write_outcome(pending.visit, finite, True)

    def save_pending(self) -> dict[str, Any]:
        """The pending exchange for a saved state, after it has ended; empty if there is none."""
        if self.pending is None:
            return {}
        self._outcome(self.pending.visit, self.pending.call.result)
        return self.pending.save(self.options.mix, self.rounds)

    def take_over(self, joined: Joined) -> None:
        """Writes what joining a group came to into the model."""
        pending, self.pending = self.pending, None
        if joined.held is not None:
            self._write_outcome(joined.held, joined.finite, pending is not None)
        self.model.write(joined.weights)

    def _outcome(self, visit: Visit, call: Callable[[], bool | None]) -> bool | None:
        """Whether the meeting was finite on all ranks; None if it had nothing to do."""
        try:
            return call()
        except BaseException as error:
            self.rounds.cancel(visit)
            failed = self.fail(error)
            add_note(failed, f"sparsewire: on rank {self.group.comm.rank}, at meeting {self.rounds.meeting}")
            raise failed  # noqa: B904 - a peer's failure hides the engine's error

    def _write_outcome(self, visit: Visit, finite: bool | None, late: bool) -> None:
        if finite is None:
            return
        if finite:
            new = {name: self.rounds.given(name) for name in visit.names}
            self.model.write(self._with_progress(new, visit.local) if late else new)
            self.model.mask(self.rounds.sent)
        else:
            self.model.write({name: self.rounds.given(name) for name in self.rounds.common})
            self.model.reset_nonfinite()
            self._warn_nonfinite()
        self.rounds.settle(visit, finite)
        if self.options.on_round is not None:
            scheme = self.rounds.averager.settings.schedule.at(self.rounds.meeting - 1)
            self.options.on_round({**self.stats(), "scheme": str(scheme or "dense"), "finite": finite})

    def _with_progress(self, new: Mapping[str, Array], then: Mapping[str, Array]) -> dict[str, Array]:
        """θ + mix · (θ_r now − θ_r then): what was exchanged is in θ, what came after it is in no meeting yet."""
        now = self.model.read()
        return {
            name: array + array.dtype.type(self.options.mix) * (now[name] - then[name]) for name, array in new.items()
        }

    def _warn_nonfinite(self) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "meeting %d: the weights of some rank are not finite, so all ranks go back to the common weights; "
                "stats()['nonfinite'] counts such meetings",
                self.rounds.meeting - 1,
            )
