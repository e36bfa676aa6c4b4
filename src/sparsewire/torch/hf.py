"""`SparsewireCallback`: compression for Hugging Face's `Trainer`, with every rank's state in its checkpoints.

A callback is handed the model without its wrapper, so this one is made with the trainer, which has the wrapped one.
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.nn.parallel import DistributedDataParallel

from sparsewire.errors import InputError
from sparsewire.frames.codec import Spec

from .checkpoint.files import load, save
from .ddp.attach import attach
from .ddp.link import Link

if find_spec("transformers") is None:
    text = "sparsewire.torch.hf needs transformers: pip install transformers accelerate"
    raise ModuleNotFoundError(text, name="transformers")

from transformers import TrainerCallback

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments


class SparsewireCallback(TrainerCallback):
    """Attaches when training begins, keeps every rank's state in the Trainer's checkpoints, detaches at the end.

    `trainer.add_callback(SparsewireCallback(trainer))`; scheme and `settings` are those of `attach`. By default
    `optimizer`, `total_steps` and `scaler` are the trainer's. `clip_norm` is `max_grad_norm`, 1 unless it is written,
    which is 0 meanwhile: the Trainer would clip what has waited together with the gradient. `link` exists from the
    start of `train`, and can still be read after its end.

    Each rank writes its state to `checkpoint-…/sparsewire`, unless `save_only_model` is set. When training is resumed,
    the state is read from the checkpoint of that step in `output_dir`; all ranks go on from it or none does.
    """

    def __init__(self, trainer: Trainer, scheme: Spec | None = None, **settings: Any) -> None:
        self.link: Link | None = None
        self._trainer, self._scheme, self._settings = trainer, scheme, settings
        self._max_grad_norm: float | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._end(args)  # of a run that an exception ended, as auto_find_batch_size does
        usual = {
            "optimizer": self._trainer.optimizer,
            "total_steps": state.max_steps,
            "scaler": self._trainer.accelerator.scaler,
            "clip_norm": args.max_grad_norm or None,
        }
        self.link = attach(_wrapped(self._trainer), self._scheme, **{**usual, **self._settings})
        self._max_grad_norm, args.max_grad_norm = args.max_grad_norm, 0.0
        self.link.ignore_changes()  # the Trainer measures the norm by clipping to infinity
        if state.global_step:
            _resume(self.link, _folder(args, state))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.link is not None and not args.save_only_model:
            save(self.link, _folder(args, state))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._end(args)

    def _end(self, args: TrainingArguments) -> None:
        if self.link is not None:
            self.link.detach()
        if self._max_grad_norm is not None:
            args.max_grad_norm, self._max_grad_norm = self._max_grad_norm, None


def _wrapped(trainer: Trainer) -> Any:
    model = trainer.model_wrapped
    inner = getattr(model, "_orig_mod", model)  # torch.compile goes around DDP
    if isinstance(inner, DistributedDataParallel):
        return model
    raise InputError(
        f"SparsewireCallback needs a Trainer that wraps the model in DistributedDataParallel; {type(inner).__name__} "
        f"is not ({trainer.args.world_size} processes): start several with torchrun, without FSDP or DeepSpeed"
    )


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / "sparsewire"


def _resume(link: Link, folder: Path) -> None:
    """Where no rank has a folder, the checkpoint is of a training without compression."""
    if b"1" in link.gather(b"1" if folder.is_dir() else b"0"):
        load(link, folder)
    elif link.comm.rank == 0:
        warnings.warn(f"there is no {folder}: step and residuals start at zero", stacklevel=2)
