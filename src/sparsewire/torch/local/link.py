"""`LocalLink` connects a model that trains by itself for some steps to the ranks that it meets after them.

The optimizer's own hook counts the steps. When a meeting is due, the model's weights go to `Rounds`, and the new common
weights come back (`meetings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

import torch.distributed as dist

from sparsewire.comm import Communicator
from sparsewire.core.statefile import is_finite, reading
from sparsewire.errors import SparsewireError
from sparsewire.kernels import Array
from sparsewire.training.agree import agree
from sparsewire.training.link_parts import RoundsLink
from sparsewire.training.local import round_states
from sparsewire.training.local.membership import join
from sparsewire.training.local.recipe import LocalRecipe
from sparsewire.training.local.rounds import CALLED, LAST, Plan, Rounds
from sparsewire.training.local.settings import LocalSettings
from sparsewire.training.schedule import Settings

from ..group import GRACE
from ..tensors import to_arrays, to_tensors
from .groups import Group, open_group
from .meetings import Meetings
from .model import LocalModel, share_rest
from .pending_exchange import PendingExchange, SavedExchange


class LocalLink(RoundsLink):
    """Made by `local_steps`; as a context manager it detaches at the end."""

    def __init__(
        self, model: LocalModel, group: Group, options: LocalSettings, settings: Settings, plan: Plan,
        recipe: LocalRecipe,
    ) -> None:  # fmt: skip
        self.recipe = recipe
        self._model, self._options, self._settings = model, options, settings
        self.rounds = Rounds(group.comm, settings, plan, model.read(), model.dtypes())
        self._meetings = Meetings(model, group, options, self.rounds)
        self._enter(group, new=True)
        self._hook: Any = model.optimizer.register_step_post_hook(self._after_step)

    # --- what users call ---

    @property
    def comm(self) -> Communicator:
        return self._meetings.group.comm

    @property
    def attached(self) -> bool:
        return self._hook is not None

    def __repr__(self) -> str:
        state = f"at step {self.step}" if self.attached else "detached"
        return f"<{type(self).__name__} {state}: {self.recipe!r}>"

    def meet(self) -> None:
        """A meeting now, of the whole model. Every rank calls it."""
        self._check_alive()
        self._meetings.hold(CALLED)

    def stats(self) -> dict[str, Any]:
        """Totals: rounds, meetings, steps, meetings at which a rank's weights were not finite; and since `local_steps`,
        bytes handed to and got from the engine, what float32 gradients in every step would have sent, and seconds by
        stage. "recipe" is the call that says what was chosen."""
        return {**self._meetings.stats(), "recipe": repr(self.recipe)}

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: tensors and plain types only. Every rank saves its own; the optimizer's is not in it."""
        if self._meetings.pending is not None:
            self._check_alive()
        pending = self._meetings.save_pending()
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
            rounds, pending = round_states.read(self.rounds, arrays), arrays["pending"]
            return rounds, SavedExchange.read(pending, self.rounds.common) if pending else None

    def take_over(self, ready: Any) -> None:
        """Goes on from what `read_state` gave."""
        self._meetings.wait()
        rounds, exchange = ready
        self._model.write(round_states.take_over(self.rounds, rounds))
        self._meetings.pending = None if exchange is None else PendingExchange.of(exchange, self.rounds)

    @property
    def connected(self) -> bool:
        """Whether the other ranks can be spoken to."""
        return self.attached and self._meetings.error is None

    def gather(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, after an exchange that is pending; whoever fails tells the others."""
        self._meetings.wait()
        try:
            return [bytes(part) for part in self.comm.all_gather(data, "state")]
        except BaseException as error:
            failed = self._meetings.fail(error)
            raise failed from None if failed is error else error

    def resume(self, group: dist.ProcessGroup | Communicator | None = None) -> None:
        """Goes on with a new group, of any size: after a rank was lost, or to let others in. Every rank of it calls it;
        ranks that are new call `local_steps` instead.

        Local steps and residuals stay. Whether the meeting in which a rank was lost has been held is found out, and is
        the same on all ranks (`sparsewire.training.local.membership`).
        """
        self._check_attached()
        if self._meetings.error is None:
            with suppress(SparsewireError):
                self._meetings.finish_pending()
        self._leave()
        self._meetings.traffic.close(self.comm)
        opened = open_group(group, self._options.timeout, "resume")
        self._meetings.group, self._meetings.error = opened, None
        self._meetings.traffic.open(opened.comm)
        self._enter(opened, new=False)

    def detach(self, error: BaseException | None = None) -> None:
        """Meets a last time, if any rank has made steps since the last meeting, so that all end with the same weights,
        and lets go of the optimizer. Every rank calls it, and waits for the others. With the error that ended its
        training a rank leaves at once, and the others hear of that error; `with` does so by itself. If the last meeting
        fails, `resume` goes on with another group, or a second `detach` lets go.
        """
        error = error or self._meetings.error
        if error is None and self._hook is not None:
            self._meetings.hold(LAST)
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
            self._end(error or self._meetings.error)

    # --- coming and going ---

    def _enter(self, group: Group, new: bool) -> None:
        """Joins the group: all ranks have the same settings, meeting and common weights then, or all of them raise."""
        try:
            agree(group.everyone, self._settings, self._model.agreed, self._options.agreed(self.rounds.plan))
            share_rest(self._model, group.comm, new)
            joined = join(self.rounds, group.comm, self._model.read(), new)
        except BaseException as error:
            raise self._meetings.fail(error)  # noqa: B904 - a peer's failure hides the engine's error
        if new:
            self._meetings.traffic.open(group.comm)
        self._meetings.take_over(joined)

    def _end(self, error: BaseException | None) -> None:
        if self._hook is None:
            return
        self._hook.remove()
        self._hook = None
        try:
            if error is None:
                self._meetings.group.close()
            else:
                self._meetings.group.tell(error)
        finally:
            self._leave()

    def _leave(self) -> None:
        self._meetings.group.leave()
        self._meetings.wait(GRACE)

    def _check_attached(self) -> None:
        if self._hook is None:
            raise SparsewireError("the link is detached; call local_steps again")

    def _check_alive(self) -> None:
        self._check_attached()
        if self._meetings.error is not None:
            raise self._meetings.error

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        """Counts a step; the optimizer calls it after each step, on the thread that trains."""
        self._check_alive()
        if not was_skipped(optimizer):
            self._meetings.count_step()


def was_skipped(optimizer: Any) -> bool:
    """Whether a GradScaler made this step one that changes nothing, as it does within fused optimizers."""
    overflow = getattr(optimizer, "found_inf", None)
    return overflow is not None and bool(overflow.item())
