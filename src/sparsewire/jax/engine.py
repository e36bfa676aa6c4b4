"""The ranks: processes of jax.distributed, those of a given communicator, or this process alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import jax

from sparsewire.comm import Communicator, ThreadCommunicator
from sparsewire.comm.threads import Hub
from sparsewire.errors import CommError, InputError, SparsewireError
from sparsewire.training.settings import is_positive

SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")  # what launchers say


def open_comm(comm: Communicator | None, timeout: float | None) -> Communicator:
    """The communicator of a host that was given this one, or none. Every rank calls it, in the same order."""
    if not is_positive(timeout):
        raise InputError(f"timeout is a number of seconds above 0, or None, not {timeout!r}")
    if comm is not None:
        return _checked(comm, timeout)
    if jax.distributed.is_initialized():
        from sparsewire.comm import JaxCommunicator

        return JaxCommunicator(timeout or 60.0)
    for name in SIZES:
        if os.environ.get(name, "1") not in ("", "1"):
            raise CommError(
                f"{name}={os.environ[name]}, but these processes do not know each other: call "
                "jax.distributed.initialize() first, or pass comm=, e.g. comm=sparsewire.comm.MPICommunicator()"
            )
    return ThreadCommunicator(Hub(1, timeout or 60.0), 0)


def _checked(comm: Communicator, timeout: float | None) -> Communicator:
    if not isinstance(comm, Communicator):
        raise InputError(f"comm is a Communicator of sparsewire, or None for jax.distributed's processes, not {comm!r}")
    if timeout is not None:
        raise InputError("timeout= is for the processes of jax.distributed; a communicator has a timeout of its own")
    return comm


@contextmanager
def in_callback(comm: Communicator) -> Iterator[None]:
    """Collectives meanwhile do not need the devices, which wait for the callback."""
    within = getattr(comm, "within_callback", None)
    if within is None:
        yield
    else:
        with within():
            yield


def tell(comm: Communicator, error: BaseException) -> None:
    """Has the other ranks know why this one fails, where the engine can."""
    say = getattr(comm, "tell", None)
    if say is not None:
        say(error)


def original(error: BaseException, known: BaseException | None) -> BaseException:
    """The error that was raised in a callback, in the place of what JAX makes of it."""
    wrapped = known is not None and isinstance(error, jax.errors.JaxRuntimeError)
    return known if wrapped and not isinstance(error, SparsewireError) and known is not None else error
