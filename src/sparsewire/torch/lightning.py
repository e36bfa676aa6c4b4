"""`SparsewireCallback`: compression for a Lightning `Trainer(strategy="ddp")`, on CPU as well.

Lightning registers its own `ddp_comm_hook` on CUDA devices only; a callback attaches wherever the model is.
"""

from __future__ import annotations

import importlib
import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from sparsewire.comm.torch import TorchCommunicator
from sparsewire.core.statefile import pack, reading, unpack
from sparsewire.errors import InputError
from sparsewire.frames.codec import Spec
from sparsewire.training.together import together

from .checkpoint.files import State, read_own
from .ddp.attach import attach
from .ddp.link import Link
from .optimizers import NOT_GIVEN, only_optimizers
from .tensors import to_arrays, to_tensors

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:

    def _callback() -> type:
        """Lightning has two package names; the one that the user has imported already is the one whose Trainer runs."""
        for name in sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules):
            if find_spec(name.partition(".")[0]) is not None:
                return importlib.import_module(name).Callback
        raise ImportError("sparsewire.torch.lightning needs Lightning: pip install lightning")

    Callback = _callback()


class SparsewireCallback(Callback):
    """Attaches when fitting starts, logs bytes, keeps every rank's state in the checkpoint, detaches at the end.

    `Trainer(strategy="ddp", callbacks=[SparsewireCallback()])`; scheme and `settings` are those of `attach`. By default
    `optimizer` is what the trainer has for the model, one or several, and `total_steps` its
    `estimated_stepping_batches`. `scaler` is that of the precision plugin (`16-mixed`), so that residuals follow the
    loss scale. `clip_norm` is the trainer's `gradient_clip_val`, which is off meanwhile: it would clip what has waited
    together with the gradient. `link` exists from the start of `fit`, and can still be read after its end.

    Rank 0 alone writes Lightning's checkpoint, so it collects the other ranks' states into it. After an
    exception the link leaves at once, and the other ranks hear of it.
    """

    def __init__(self, scheme: Spec | None = None, **settings: Any) -> None:
        self.link: Link | None = None
        self._clip_val: float | None = None
        self._scheme, self._settings = scheme, settings
        self._resume: Sequence[State] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._resume = None
        if stage == "fit":
            self.link = None

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        # Popped, so that Lightning does not copy all ranks' residuals for `load_state_dict`.
        self._resume = checkpoint["callbacks"].pop(self.state_key, {"ranks": ()})["ranks"]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        model = trainer.strategy.model
        if not isinstance(model, DistributedDataParallel):
            kind = type(trainer.strategy).__name__
            raise InputError(f'SparsewireCallback needs Trainer(strategy="ddp"); {kind} does not wrap the model in DDP')
        usual = {
            "optimizer": only_optimizers(trainer.optimizers, model) or NOT_GIVEN,
            "total_steps": _total_steps(trainer),
            "scaler": _scaler(trainer),
            "clip_norm": _clip_norm(trainer, self._settings),
        }
        self.link = attach(model, self._scheme, **{**usual, **self._settings})
        self._clip_val, trainer.gradient_clip_val = trainer.gradient_clip_val, None
        if self._resume is not None:
            _restore(self.link, self._resume)
            self._resume = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.loggers and self.link is not None:
            stats = self.link.stats()
            ratio = stats["bytes_dense"] / max(stats["bytes_sent"], 1)
            kept = {name: float(stats[name]) for name in ("bytes_sent", "bytes_received", "bytes_dense")}
            pl_module.log_dict({f"sparsewire/{name}": value for name, value in (kept | {"ratio": ratio}).items()})

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self.link is not None and (states := _gather(self.link.state_dict())):
            checkpoint["callbacks"][self.state_key] = {"ranks": states}

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self.link is not None:
            self.link.detach(exception)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._resume = None
        if stage == "fit" and self.link is not None:
            self.link.detach()
            trainer.gradient_clip_val, self._clip_val = self._clip_val, None


def _scaler(trainer: Trainer) -> torch.amp.GradScaler | None:
    """The GradScaler of mixed precision in float16; other precisions have none."""
    return getattr(trainer.strategy.precision_plugin, "scaler", None)


def _total_steps(trainer: Trainer) -> int | None:
    """Optimizer steps of the whole fit; None where they are not known."""
    steps = trainer.estimated_stepping_batches
    return int(steps) if 0 < steps < math.inf else None


def _clip_norm(trainer: Trainer, settings: Mapping[str, Any]) -> float | None:
    """The trainer's norm to clip gradients to, if it has one."""
    value, given = trainer.gradient_clip_val, trainer.gradient_clip_algorithm
    rule = str(getattr(given, "value", given) or "norm")
    if not value:
        return None
    if settings.get("clip_norm") is not None:
        raise InputError("gradient_clip_val would clip after clip_norm has: leave gradient_clip_val out")
    if rule != "norm":
        raise InputError(
            f"gradient_clip_algorithm={rule!r} would clip what has waited together with the gradient: leave "
            "gradient_clip_val out, and write SparsewireCallback(clip_norm=…) to clip by norm"
        )
    return float(value)


def _restore(link: Link, states: Sequence[State]) -> None:
    if states:
        link.take_over(together(link.gather, lambda: (_read(link, states), None))[0])
    elif link.comm.rank == 0:
        warnings.warn("the checkpoint has no sparsewire state: step and residuals start at zero", stacklevel=2)


def _read(link: Link, states: Sequence[State]) -> Any:
    with reading("the checkpoint's sparsewire state"):
        return read_own(link, states)


def _gather(state: State) -> list[State]:
    """All ranks' states on rank 0; nothing on the others. Over the default group: the link's own may be closed."""
    comm = TorchCommunicator()
    if comm.rank != 0:
        comm.send(pack(to_arrays(state)), 0)
        return []
    return [state, *(to_tensors(unpack(bytearray(comm.recv(rank)))) for rank in range(1, comm.size))]
