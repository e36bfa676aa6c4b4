"""`find_ranks`: the communicator of the ranks that a program was started with, by Keras' backend."""

from __future__ import annotations

import os
import sys

from sparsewire.comm import Communicator
from sparsewire.errors import InputError
from sparsewire.training.host_link import alone

COUNTS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")  # what starters of several processes set
STARTS = {
    "tensorflow": "set TF_CONFIG, and make tf.distribute.MultiWorkerMirroredStrategy() the first TensorFlow call",
    "jax": "call jax.distributed.initialize(…) before the first JAX call",
    "torch": 'call torch.distributed.init_process_group("gloo") first',
}


def find_ranks(backend: str, timeout: float) -> Communicator:
    """The backend's own ranks; torch.distributed's, which work under any; or a single one."""
    if backend == "tensorflow" and os.environ.get("TF_CONFIG"):
        from sparsewire.comm import TensorFlowCommunicator

        return TensorFlowCommunicator(timeout)
    if backend == "jax" and _has_jax():
        from sparsewire.comm import JaxCommunicator

        return JaxCommunicator(timeout)
    if _has_torch():
        from .torch_ranks import OwnGroup

        return OwnGroup(timeout)
    for name in COUNTS:
        if os.environ.get(name, "1") not in ("", "1"):
            raise InputError(
                f"this is one of {os.environ[name]} processes ({name}), which do not know each other: "
                f"{STARTS.get(backend, STARTS['torch'])}; or write attach(model, comm=…), such as "
                "sparsewire.comm.MPICommunicator()"
            )
    return alone()


def _has_jax() -> bool:
    import jax

    return bool(jax.distributed.is_initialized())


def _has_torch() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized()
