"""`Link`: the host's side of an exchange: an `Averager` that gets gradients from JAX, outside jit or in a callback."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import numpy as np

from sparsewire.comm import Communicator
from sparsewire.core.files import PathLike
from sparsewire.core.sparse import store
from sparsewire.errors import InputError, add_note
from sparsewire.training import checkpoints
from sparsewire.training.agree import agree, refuse
from sparsewire.training.averager import Averager
from sparsewire.training.checkpoints import NAME
from sparsewire.training.nodes.grid import Grid
from sparsewire.training.recipe import Recipe
from sparsewire.training.settings import real_sizes

from .engine import in_callback, original, tell
from .guard import GuardedLink, wait_for_callbacks
from .options import Options
from .share import check_same
from .staging import Staging
from .trees import as_arrays, is_traced, like

logger = logging.getLogger("sparsewire")


class Link(GuardedLink):
    """Made by `exchange`; it knows the parameters from `tx.init(params)` on. As a context manager it detaches at the
    end, and raises what went wrong in a callback as it was raised there."""

    def __init__(self, comm: Communicator, options: Options) -> None:
        super().__init__(comm, "make another exchange(…)")
        self.options = options
        self.recipe: Recipe | None = None
        self._tensors: dict[str, Any] = {}
        self._averager: Averager | None = None
        self._staging = Staging()
        self._given: tuple[str, ...] = ()  # the gradients that come in every step

    # --- what users call ---

    @property
    def averager(self) -> Averager:
        if self._averager is None:
            raise InputError("the parameters are not known yet: call tx.init(params) first, without jit")
        return self._averager

    @property
    def step(self) -> int:
        """Exchanges that were made; those of jitted steps that are under way are waited for."""
        self.settle()
        return 0 if self._averager is None else self._averager.step

    @property
    def grid(self) -> Grid:
        """Which ranks share a machine, where these average first."""
        return self.averager.nodes.grid

    def __repr__(self) -> str:
        state = "detached" if not self.attached else "before init" if self._averager is None else "attached"
        call = "" if self.recipe is None else f": {self.options.in_words_of_exchange(repr(self.recipe))}"
        return f"<{type(self).__name__} {state}, rank {self.comm.rank} of {self.comm.size}{call}>"

    def stats(self) -> dict[str, Any]:
        """Totals: steps, bytes handed to and got from the engine, what dense steps would have sent, and seconds by
        stage. "recipe" is the call that says everything that was chosen."""
        self.settle()
        return {**self.averager.stats(), "recipe": self.options.in_words_of_exchange(repr(self.recipe))}

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: NumPy arrays and plain types only. Every rank saves its own."""
        self.settle()
        return self.averager.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from this rank's saved state, whatever other ranks do."""
        self.take_over(self.read_state(state))

    def save(self, folder: PathLike, name: str = NAME) -> Path:
        """Writes this rank's state to a file of its own, whole or not at all. Every rank calls it, at the same step,
        beside the checkpoint of parameters and optax's state."""
        return checkpoints.save(self, self.state_dict, folder, name)

    def load(self, folder: PathLike, name: str = NAME) -> None:
        """Goes on from the latest set of files in the folder, whatever number of ranks wrote it. Every rank calls it,
        after `tx.init`: all of them go on, or all raise."""
        checkpoints.load(self, folder, name)

    def detach(self, error: BaseException | None = None) -> None:
        """Ends the exchange. Every rank calls it, and waits for the others. With the error that ended its training a
        rank leaves at once, and the others hear of that error, where the engine can tell; `with` does so by itself."""
        if not self.attached:
            return
        if error is None and self.error is None:
            self.settle()
            self.comm.barrier()
        elif self.error is None and error is not None:
            tell(self.comm, error)
        self.attached = False

    def __enter__(self) -> Link:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, jax.errors.JaxRuntimeError):
            wait_for_callbacks()  # until the callback that failed has said why
        known = error if error is None else original(error, self.error)
        self.detach(known)
        if known is not None and known is not error:
            raise known from None

    # --- what checkpoints need ---

    def read_state(self, state: Mapping[str, Any]) -> Any:
        """This rank's saved state, checked, as `take_over` needs it; the link stays as it is."""
        return self.averager.read_state(state)

    def take_over(self, ready: Any) -> None:
        """Goes on from what `read_state` gave."""
        self.settle()
        self.averager.take_over(ready)

    # --- parameters ---

    def begin(self, leaves: Mapping[str, Any]) -> None:
        """The parameters are these. Without jit the ranks agree on them, and a training that has made steps begins
        anew; within, both are left to the first step."""
        arrays = as_arrays(leaves)
        tensors = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in arrays.items()}
        if self._tensors and tensors != self._tensors:
            raise InputError("tx.init was called with other parameters before: write an exchange(…) for each model")
        self._tensors = tensors
        if not is_traced(leaves):
            self.settle()
            with self.guarded():
                self._open()
                check_same(self.comm, arrays)

    def check(self, leaves: Mapping[str, Any]) -> None:
        """Refuses gradients of other parameters than `tx.init` was given."""
        if not self._tensors:
            raise InputError("the parameters are not known yet: call tx.init(params) before tx.update")
        for name, leaf in leaves.items():
            due = self._tensors.get(name)
            if due is None or tuple(leaf.shape) != due.shape:
                have = f"{list(leaf.shape)}, not {list(due.shape)}" if due else "which tx.init(params) did not have"
                raise InputError(f"a gradient {name!r} came, {have}: give tx.update gradients of those parameters")

    def _open(self) -> None:
        try:
            recipe, settings = self.options.settings_for(self._tensors)
        except Exception as error:
            refuse(self.comm, error)
            raise
        agree(self.comm, settings, self._tensors, self.options.agreed)
        if self.recipe is None and self.comm.rank == 0:
            logger.info("%s", self.options.in_words_of_exchange(recipe.text()))
        self.recipe, self._given = recipe, ()
        self._averager = Averager(self.comm, settings, real_sizes(self._tensors))

    # --- a step ---

    def exchange(self, names: Sequence[str], step: Any, *leaves: Any) -> tuple[np.ndarray[Any, Any], ...]:
        """The means of gradients, in memory that is theirs."""
        with self.guarded():
            self._check_step(int(step), tuple(names))
            averager = self.averager
            buffers = self._staging.fill(dict(zip(names, leaves, strict=True)))
            averager.put_buffers(buffers)
            averager.finish()
            flats = self._staging.flats()
            return tuple(
                like(store(*flats[name]), leaf.dtype, leaf.shape) for name, leaf in zip(names, leaves, strict=True)
            )

    def exchange_in_callback(self, names: Sequence[str], step: Any, *leaves: Any) -> tuple[np.ndarray[Any, Any], ...]:
        """The same while the devices wait."""
        with in_callback(self.comm):
            return self.exchange(names, step, *leaves)

    def _check_step(self, step: int, names: tuple[str, ...]) -> None:
        if self._averager is None:
            self._open()
        if step > 0 and self.averager.step == 0:
            raise InputError(
                f"optax's state is at step {step}, and the link at its beginning: what waits to be sent is missing; "
                "write wire.link.load(folder) after tx.init(params), or go on with the state of tx.init"
            )
        if not self._given:
            self._agree_on_gradients(names)
        if names != self._given:
            changed = sorted({*names} ^ {*self._given})
            raise InputError(f"the gradients of {', '.join(changed)} come in some steps only: give zeros in the others")

    def _agree_on_gradients(self, names: tuple[str, ...]) -> None:
        heard = [bytes(part).decode() for part in self.comm.all_gather("\n".join(names).encode(), "gradients")]
        for rank, theirs in enumerate(heard):
            if theirs != heard[0]:
                changed = sorted({*theirs.split("\n")} ^ {*heard[0].split("\n")})
                raise InputError(f"rank {rank} and rank 0 have gradients of other parameters: {', '.join(changed)}")
        self._given = names

    def fail(self, error: BaseException) -> None:
        """Leaves the step undone."""
        if self._averager is not None:
            self._averager.abandon()
        step = 0 if self._averager is None else self._averager.step
        add_note(error, f"sparsewire: on rank {self.comm.rank}, at step {step}")
