"""`LocalLink`: a model that trains by itself for some steps, and meets the other ranks after them.

The optimizer's own hook counts the steps. When a meeting is due, the model's weights go to `Rounds`, and the new common
weights come back; with `overlap` that happens on another thread, and the weights come back some steps later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

import torch.distributed as dist

from sparsewire.comm import Communicator
from sparsewire.core.statefile import is_finite, reading
from sparsewire.errors import InputError, SparsewireError, add_note
from sparsewire.kernels import Array
from sparsewire.training.agree import agree
from sparsewire.training.local import round_states
from sparsewire.training.local.membership import Joined, join
from sparsewire.training.local.rounds import CALLED, DUE, LAST, Plan, Rounds, Visit
from sparsewire.training.nodes.grid import Grid
from sparsewire.training.schedule import Settings

from ..tensors import to_arrays, to_tensors
from .errand import Errand
from .flight import Flight, Pending
from .model import LocalModel, share_rest
from .settings import Group, LocalSettings, open_group

logger = logging.getLogger("sparsewire")
GRACE = 2.0  # seconds that an exchange which has begun is given to end, after an error


class LocalLink:
    """Made by `local_steps`; as a context manager it detaches at the end."""

    def __init__(self, model: LocalModel, group: Group, told: LocalSettings, settings: Settings, plan: Plan) -> None:
        self._model, self._group, self._told, self._settings = model, group, told, settings
        self.rounds = Rounds(group.comm, settings, plan, model.read(), model.dtypes())
        self._flight: Flight | None = None
        self._error: BaseException | None = None
        self._steps, self._said = 0, False
        self._bytes = [0, 0]  # sent and received over groups before this one
        self._since = [0, 0]
        self._enter(group, new=True)
        self._hook: Any = model.optimizer.register_step_post_hook(self._after_step)

    # --- what users call ---

    @property
    def comm(self) -> Communicator:
        return self._group.comm

    @property
    def attached(self) -> bool:
        return self._hook is not None

    @property
    def grid(self) -> Grid:
        return self.rounds.averager.nodes.grid

    @property
    def step(self) -> int:
        """Local steps of this rank since the beginning."""
        return self.rounds.total

    @property
    def round(self) -> int:
        return self.rounds.round

    def meet(self) -> None:
        """A meeting now, of the whole model. Every rank calls it."""
        self._check_alive()
        self._meet(CALLED)

    def stats(self) -> dict[str, Any]:
        """Totals: rounds, meetings, steps, meetings that a rank spoiled; and since `local_steps`, bytes handed to and
        got from the engine, what float32 gradients in every step would have sent, and seconds by stage."""
        sent, received = self._traffic()
        numbers = sum(tensor.numel() * (1 + tensor.is_complex()) for tensor in self._model.parameters.values())
        return {
            "rounds": self.rounds.round,
            "meetings": self.rounds.meeting,
            "steps": self.rounds.total,
            "spoiled": self.rounds.counts.spoiled,
            "bytes_sent": sent,
            "bytes_received": received,
            "bytes_dense": 4 * numbers * self._steps,
            "seconds": dict(self.rounds.averager.clock.seconds),
            "counts": dict(self.rounds.averager.clock.counts),
        }

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: tensors and plain types only. Every rank saves its own; the optimizer's is not in it."""
        flight = self._flight
        if flight is not None:
            self._result(flight)
        pending = {} if flight is None else flight.save(self._told.mix, self.rounds)
        state = round_states.save(self.rounds, self._usable_weights(pending))
        return to_tensors({**state, "pending": pending})

    def _usable_weights(self, pending: Mapping[str, Any]) -> Mapping[str, Array]:
        """The model's weights. Where they are not finite, and the next meeting would undo them, those that this rank
        began the round with: a state that holds anything else could not be loaded."""
        now = self._model.read()
        if all(map(is_finite, now.values())):
            return now
        return {name: self.rounds.given(name) for name in now} | dict(pending.get("then", {}))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from this rank's saved state, and writes its weights to the model; other ranks are not asked."""
        self.take_over(self.read_state(state))

    def read_state(self, state: Mapping[str, Any]) -> Any:
        """This rank's saved state, checked, as `take_over` needs it; link and model stay as they are."""
        with reading():
            arrays = to_arrays(state)
            ready, pending = round_states.read(self.rounds, arrays), arrays["pending"]
            return ready, Pending.read(pending, self.rounds.common) if pending else None

    def take_over(self, ready: Any) -> None:
        """Goes on from what `read_state` gave."""
        if self._flight is not None:
            self._flight.errand.wait()
        rounds, pending = ready
        self._model.write(round_states.take_over(self.rounds, rounds))
        self._flight = None if pending is None else Flight.of(pending, self.rounds)

    @property
    def connected(self) -> bool:
        """Whether the other ranks can be spoken to."""
        return self.attached and self._error is None

    def gather(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, after an exchange that is on its way; whoever fails tells the others."""
        if self._flight is not None:
            self._flight.errand.wait()
        try:
            return [bytes(part) for part in self.comm.all_gather(data, "state")]
        except BaseException as error:
            self._error = self._group.fail(error)
            raise self._error from None if self._error is error else error

    def resume(self, group: dist.ProcessGroup | Communicator | None = None) -> None:
        """Goes on with a new group, of any size: after a rank was lost, or to let others in. Every rank of it calls it;
        ranks that are new call `local_steps` instead.

        Local steps and residuals stay. Whether the meeting in which a rank was lost has been held is found out, and is
        the same on all ranks (`sparsewire.training.local.membership`).
        """
        if self._hook is None:
            raise SparsewireError("the link is detached; call local_steps again")
        if self._error is None:
            with suppress(SparsewireError):
                self._land()
        self._leave()
        self._bytes = list(self._traffic())
        self._group = open_group(group, self._told.timeout, "resume")
        self._since, self._error = [self.comm.bytes_sent, self.comm.bytes_received], None
        self._enter(self._group, new=False)

    def detach(self, error: BaseException | None = None) -> None:
        """Meets a last time, if any rank has made steps since the last meeting, so that all end with the same weights,
        and lets go of the optimizer. Every rank calls it, and waits for the others. With the error that ended its
        training a rank leaves at once, and the others hear of that error; `with` does so by itself. If the last meeting
        fails, `resume` goes on with another group, or a second `detach` lets go.
        """
        error = error or self._error
        if error is None and self._hook is not None:
            self._meet(LAST)
        self._end(error)

    def __enter__(self) -> LocalLink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.detach()
        finally:
            self._end(error or self._error)

    # --- coming and going ---

    def _enter(self, group: Group, new: bool) -> None:
        """All ranks have the same settings, meeting and common weights, or all of them raise."""
        try:
            model = {**self._model.tensors, **self._model.rest}
            agree(group.comm, self._settings, model, self._told.agreed(self.rounds.plan))
            share_rest(self._model, group.comm, new)
            joined = join(self.rounds, group.comm, self._model.read(), new)
        except BaseException as error:
            self._error = group.fail(error)
            raise self._error  # noqa: B904 - a peer's failure hides the engine's error
        if new:
            self._since = [group.comm.bytes_sent, group.comm.bytes_received]
        self._take_over(joined)

    def _take_over(self, joined: Joined) -> None:
        flight, self._flight = self._flight, None
        if joined.held is not None:
            self._take_in(joined.held, joined.finite, flight is not None)
        self._model.write(joined.weights)

    def _end(self, error: BaseException | None) -> None:
        if self._hook is None:
            return
        self._hook.remove()
        self._hook = None
        try:
            if error is None:
                self._group.close()
            else:
                self._group.tell(error)
        finally:
            self._leave()

    def _leave(self) -> None:
        self._group.leave()
        if self._flight is not None:
            self._flight.errand.wait(GRACE)

    def _check_alive(self) -> None:
        if self._hook is None:
            raise SparsewireError("the link is detached; call local_steps again")
        if self._error is not None:
            raise self._error

    def _traffic(self) -> tuple[int, int]:
        now = self.comm.bytes_sent, self.comm.bytes_received
        sent, received = (
            before + count - start for before, count, start in zip(self._bytes, now, self._since, strict=True)
        )
        return sent, received

    # --- steps and meetings ---

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        """What the optimizer calls after each step, on the thread that trains."""
        self._check_alive()
        if was_skipped(optimizer):
            return
        self._steps += 1
        self.rounds.count()
        if self._flight is not None:
            self._flight.left -= 1
            if self._flight.left <= 0:
                self._land()
        if self._flight is None and self._is_due():
            self._meet(DUE)

    def _is_due(self) -> bool:
        """Whether a meeting is; the others hear of a round that is too short, as theirs may be another one."""
        try:
            return self.rounds.due
        except InputError as error:
            self._error = self._group.fail(error)
            raise

    def _meet(self, kind: int) -> None:
        self._land()
        visit = self.rounds.visit(self._model.read(), kind)
        if kind == DUE and self._told.overlap:
            visit = visit.copied()
            self._flight = Flight(visit, Errand(lambda: self.rounds.hold(visit)), self._told.overlap)
        else:
            self._take_in(visit, self._hold(visit, lambda: self.rounds.hold(visit)), False)

    def _land(self) -> None:
        """Takes an exchange in that is on its way."""
        if self._flight is not None:
            finite = self._result(self._flight)
            flight, self._flight = self._flight, None
            self._take_in(flight.visit, finite, True)

    def _result(self, flight: Flight) -> bool | None:
        self._check_alive()
        return self._hold(flight.visit, flight.errand.result)

    def _hold(self, visit: Visit, call: Callable[[], bool | None]) -> bool | None:
        try:
            return call()
        except BaseException as error:
            self.rounds.cancel(visit)
            self._error = self._group.fail(error)
            add_note(self._error, f"sparsewire: on rank {self.comm.rank}, at meeting {self.rounds.meeting}")
            raise self._error  # noqa: B904 - a peer's failure hides the engine's error

    def _take_in(self, visit: Visit, finite: bool | None, late: bool) -> None:
        """Writes what a meeting came to into the model."""
        if finite is None:
            return
        if finite:
            new = {name: self.rounds.given(name) for name in visit.names}
            self._model.write(self._with_progress(new, visit.local) if late else new)
            self._model.mask(self.rounds.sent)
        else:
            self._model.write({name: self.rounds.given(name) for name in self.rounds.common})
            self._model.heal()
            self._say_spoiled()
        self.rounds.settle(visit, finite)
        if self._told.on_round is not None:
            plan = self.rounds.averager.settings.schedule.at(self.rounds.meeting - 1)
            self._told.on_round({**self.stats(), "scheme": str(plan or "dense"), "finite": finite})

    def _with_progress(self, new: Mapping[str, Array], then: Mapping[str, Array]) -> dict[str, Array]:
        """θ + mix · (θ_r now − θ_r then): what was exchanged is in θ, what came after it is in no meeting yet."""
        now = self._model.read()
        return {
            name: array + array.dtype.type(self._told.mix) * (now[name] - then[name]) for name, array in new.items()
        }

    def _say_spoiled(self) -> None:
        if not self._said:
            self._said = True
            logger.warning(
                "meeting %d: the weights of some rank are not finite, so all ranks go back to the common weights; "
                "stats()['spoiled'] counts such meetings",
                self.rounds.meeting - 1,
            )


def was_skipped(optimizer: Any) -> bool:
    """Whether a GradScaler made this step one that changes nothing, as it does within fused optimizers."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found.item())
