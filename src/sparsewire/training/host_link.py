"""`HostLink`: one rank's part in a training whose host hands its gradients over as arrays, as Keras and JAX do.

    link = HostLink(comm, settings, sizes, recipe)      # after `agree(comm, settings, named)`
    link.put({"0:kernel": gradient}, scale=1.0)         # as many calls as there are buckets, the same on every rank
    means = link.finish()                               # by name: a tensor of the gradient's kind, or a `Sparse`

`exchange(tensors)` is both in one. A tensor is whatever `core.host.to_host` takes: NumPy's, torch's, JAX's,
TensorFlow's, or something with `indices`, `values` and `dense_shape`, whose mean is a `Sparse` of rows. The means of
torch's tensors are torch's, all others NumPy's; they are buffers of the link, which the next `put` of that name
overwrites: a host whose tensors may share memory with NumPy's arrays copies them. With `in_place=True` writable
gradients in the work dtype are overwritten instead.

A step that fails leaves every buffer as it was, and `error` keeps what was raised, whatever the framework makes of it.
A subclass overrides `settled`, which waits until the framework has ended the steps that it has begun.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparsewire.comm import Communicator, ThreadCommunicator
from sparsewire.comm.threads import Hub
from sparsewire.core.files import PathLike
from sparsewire.core.host import Dense, is_writable, like, shares_memory, to_host
from sparsewire.core.sparse import Sparse
from sparsewire.errors import InputError, SparsewireError, add_note
from sparsewire.kernels import Array

from . import checkpoints
from .averager import Averager
from .checkpoints import NAME
from .link_parts import AveragerLink
from .recipe import Recipe
from .schedule import Settings


def alone() -> Communicator:
    """The communicator of a training in one process."""
    return ThreadCommunicator(Hub(1, 60.0), 0)


class HostLink(AveragerLink):
    """An averager for arrays: `put`, `finish`, `stats`, `save`, `load`, `detach`."""

    def __init__(
        self, comm: Communicator, settings: Settings, sizes: Mapping[str, int] | None = None,
        recipe: Recipe | None = None,
    ) -> None:  # fmt: skip
        self.comm, self.recipe = comm, recipe
        self.averager = Averager(comm, settings, sizes)
        self.error: BaseException | None = None  # that ended the training here
        self.attached = True
        self._staging: dict[str, Array] = {}
        self._step: dict[str, tuple[Any, Dense | Sparse]] = {}  # tensors of this step, and what was put of them

    # --- what users call ---

    def save(self, folder: PathLike, name: str = NAME) -> Path:
        """Writes this rank's state to a file of its own. Every rank calls it, at the same step; an error on any rank
        is one on all of them, and leaves the set of files that was saved before."""
        return checkpoints.save(self, self.state_dict, folder, name)

    def load(self, folder: PathLike, name: str = NAME) -> None:
        """Goes on from the latest complete set of files, whatever number of ranks wrote it. Every rank calls it."""
        checkpoints.load(self, folder, name)

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: arrays and plain types only. Every rank saves its own."""
        self.settled()
        return self.averager.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from this rank's saved state, whatever other ranks do."""
        self.take_over(self.read_state(state))

    def detach(self) -> None:
        """Ends the exchange; the communicator stays open."""
        self.attached = False

    # --- what checkpoints call ---

    @property
    def connected(self) -> bool:
        """Whether the other ranks can be spoken to."""
        return self.attached and self.error is None

    def gather(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, between steps."""
        self.settled()
        with self.watched():
            return [bytes(part) for part in self.comm.all_gather(data, "state")]

    def read_state(self, state: Mapping[str, Any]) -> Any:
        """A saved state, checked, as `take_over` needs it; the link stays as it is."""
        return self.averager.read_state(state)

    def take_over(self, ready: Any) -> None:
        """Goes on from what `read_state` gave."""
        self.settled()
        self.averager.take_over(ready)

    def settled(self) -> None:
        """Waits until no step is on its way."""

    # --- a step ---

    def exchange(
        self, tensors: Mapping[str, Any], scale: float | None = None, in_place: bool = False
    ) -> dict[str, Any]:
        """The means of one step's gradients, by name."""
        self.put(tensors, scale, in_place)
        return self.finish()

    def put(self, tensors: Mapping[str, Any], scale: float | None = None, in_place: bool = False) -> None:
        """Hands gradients over, which are sent as soon as the selection allows. `scale` is the loss's, if any."""
        with self.watched():
            self._check_ready()
            if scale is not None and not self._step:
                self.averager.rescale(float(scale))
            ready = {name: self._read(name, tensor, in_place) for name, tensor in tensors.items()}
            self._step |= {name: (tensor, ready[name]) for name, tensor in tensors.items()}
            dense = {name: x for name, x in ready.items() if isinstance(x, Dense)}
            sparse = {name: x for name, x in ready.items() if isinstance(x, Sparse)}
            dtypes = {name: x.dtype for name, x in dense.items()}
            self.averager.put({**{name: x.flat for name, x in dense.items()}, **sparse}, dtypes)

    def finish(self) -> dict[str, Any]:
        """Ends the step: the means by name."""
        with self.watched():
            self.averager.finish()
            step, self._step = self._step, {}
            return {name: self._mean(name, tensor, put) for name, (tensor, put) in step.items()}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """An error here ends the training on this rank: it is kept, and told to ranks that can hear of it."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Ends a step that cannot go on; the other ranks are told, where the engine can do so."""
        if self.error is None:
            self.error = error
            add_note(error, f"sparsewire: on rank {self.comm.rank}, at step {self.step}")
            tell = getattr(self.comm, "tell", None)
            if tell is not None:
                tell(error)
        self._step = {}
        self.averager.abandon()

    def _check_ready(self) -> None:
        if self.error is not None:
            raise SparsewireError(f"the link has failed: {type(self.error).__name__}: {self.error}") from self.error
        if not self.attached:
            raise InputError("the link is detached: attach again")

    def _read(self, name: str, tensor: Any, in_place: bool) -> Dense | Sparse:
        """The gradient in memory that may be written to."""
        x = to_host(tensor)
        if isinstance(x, Sparse) or (in_place and x.flat.flags.writeable and is_writable(tensor)):
            return x
        if not (x.flat.flags.owndata and x.flat.flags.writeable) or shares_memory(tensor, x.flat):
            staging = self._staging.get(name)
            if staging is None or staging.size != x.flat.size or staging.dtype != x.flat.dtype:
                staging = self._staging[name] = x.flat.copy()
            else:
                staging[:] = x.flat
            return Dense(staging, x.dtype, x.shape)
        return x

    def _mean(self, name: str, tensor: Any, put: Dense | Sparse) -> Any:
        return self.averager.sparse_means[name] if isinstance(put, Sparse) else like(tensor, put.flat, put)
