"""Keras' optimizers behind a memory: how error feedback serves each, and Adam without its first moment.

Error feedback delivers a coordinate late and as a sum, which acts like a momentum; a second one behind it costs
accuracy. SGD stays as it is: it is handed means from which its own momentum is taken out. Adam and Adamax read beta_1
as they update: for variables that travel sparse it is 0 meanwhile, which gives what compiling with beta_1=0.0 gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from sparsewire.codecs.contract import Memory
from sparsewire.errors import InputError
from sparsewire.training.fit import check_sgd
from sparsewire.training.notices import warn_once
from sparsewire.training.recipe import OptimizerFacts

INSTEAD = 'train with SGD, Adam or AdamW, or send everything: attach(model, "nonzero | memory=none")'
ALONE = 'attach(model, "topk(5%) | memory=residual")'
PLAIN = ("RMSprop", "Adagrad", "Adadelta", "Adafactor")  # without a first moment
MOMENT = ("Adam", "AdamW", "Adamax", "Nadam")
LEFT_OUT = ("Adam", "AdamW", "Adamax")  # whose beta_1 can be left out within a step
REFUSED = {
    "Lion": "its steps are the signs of a momentum, however much waited",
    "Lamb": "its rate goes by the norm of an update, and late sums have another",
    "Ftrl": "it adds up gradients with weights of its own, which no measurement with late sums covers",
    "Muon": "the variables that it leaves to Adam have a momentum, behind error feedback",
    "ScheduleFreeAdamW": "it averages weights as a momentum would, behind error feedback",
    "MultiOptimizer": "several optimizers in one are not looked into",
}
CLIPS = ("clipnorm", "global_clipnorm", "clipvalue")


def inner(optimizer: Any) -> Any:
    """The optimizer that moves the weights: mixed precision puts a LossScaleOptimizer around it."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def check_optimizer(optimizer: Any) -> None:
    """Refuses what is no optimizer of Keras 3, and one that wants several calls for a step."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise InputError(f"optimizer is one of keras.optimizers, not {optimizer!r}: call model.compile(optimizer, …) "
                         "before attach, or write attach(model, optimizer=…)")  # fmt: skip
    steps = getattr(inner(optimizer), "gradient_accumulation_steps", None)
    if steps:
        raise InputError(
            f"gradient_accumulation_steps={steps} would exchange every micro-batch: leave it out of "
            f"keras.optimizers.{kind_of(inner(optimizer))}(…), and give fit batches of {steps} times the size"
        )


def kind_of(optimizer: Any) -> str:
    """The name of the Keras class, or of the one that it is derived from."""
    known = {"SGD", *MOMENT, *PLAIN, *REFUSED}
    for base in type(optimizer).__mro__:
        if base.__module__.startswith("keras.") and base.__name__ in known:
            return base.__name__
    return type(optimizer).__name__


def read_facts(optimizer: Any) -> OptimizerFacts:
    """What the recipe has to know."""
    unwrapped = inner(optimizer)
    kind = kind_of(unwrapped)
    if kind == "SGD":
        return OptimizerFacts(
            "SGD", momentum=momentum_of(unwrapped), nesterov=bool(unwrapped.nesterov) and momentum_of(unwrapped) > 0
        )
    if kind == "Nadam" and unwrapped.beta_1:
        return OptimizerFacts(kind, refused="its look-ahead goes by beta_1; write keras.optimizers.Adam(…) instead")
    if kind == "RMSprop" and unwrapped.momentum:
        return OptimizerFacts(kind, refused=_moving(unwrapped.momentum))
    if kind in MOMENT or kind in PLAIN:
        return OptimizerFacts(kind, "adaptive")
    if kind in REFUSED:
        return OptimizerFacts(kind, refused=f"{REFUSED[kind]}; {INSTEAD}")
    return OptimizerFacts(kind, refused=(
        "sparsewire does not know this optimizer, nor whether a momentum of its own would stand behind error feedback; "
        f"{INSTEAD}"
    ))  # fmt: skip


def _moving(momentum: float) -> str:
    return (
        f"its momentum {momentum:g} behind error feedback is a second one; write RMSprop(…, momentum=0) with a rate of "
        f"1/(1 − {momentum:g}) times as much, or AdamW"
    )


def momentum_of(optimizer: Any) -> float:
    """SGD's momentum. What other optimizers call so is another thing: 0."""
    unwrapped = inner(optimizer)
    return float(unwrapped.momentum) if kind_of(unwrapped) == "SGD" else 0.0


def check_fit(optimizer: Any, memory: Memory) -> None:
    """Whether exactly one of optimizer and memory holds the momentum, and nothing clips what has waited."""
    unwrapped = inner(optimizer)
    kind = kind_of(unwrapped)
    if kind == "SGD":
        momentum = momentum_of(unwrapped)
        check_sgd(memory, momentum, bool(unwrapped.nesterov))
        if momentum and unwrapped.nesterov and memory.held_momentum is not None and not memory.look_ahead:
            raise InputError(
                f"SGD looks ahead (nesterov=True) behind memory={memory}, which has done so already: write "
                f"memory=gain(momentum={momentum:g}, nesterov=true)"
            )
    elif memory.held_momentum is not None:
        raise InputError(f"memory={memory} is for SGD with momentum; with {kind} write memory=residual")
    clips = [name for name in CLIPS if getattr(unwrapped, name, None) is not None]
    if clips and memory.buffers:
        warn_once(
            f"{clips[0]} clips what has waited to be sent together with the gradient, and costs accuracy; leave it out "
            "of the optimizer and write attach(…, clip_norm=…)"
        )


class FirstMoment:
    """Adam's beta_1 is 0 for variables that travel sparse, while a sparse step is applied."""

    def __init__(self, optimizer: Any, travels_sparse: Callable[[Any, Any], bool], share: Callable[[], Any]) -> None:
        """`share` gives how much of beta_1 is left: 0 in sparse steps, 1 in dense ones."""
        self._optimizer, self._sparse, self._share = inner(optimizer), travels_sparse, share

    def attach(self) -> None:
        self._update = self._optimizer._backend_update_step
        self._optimizer._backend_update_step = self._apply

    def detach(self) -> None:
        del self._optimizer._backend_update_step

    def _apply(self, grads: Sequence[Any], variables: Sequence[Any], rate: Any) -> None:
        pairs = [
            (grad, variable, self._sparse(grad, variable)) for grad, variable in zip(grads, variables, strict=True)
        ]
        whole = [(grad, variable) for grad, variable, sparse in pairs if not sparse]
        late = [(grad, variable) for grad, variable, sparse in pairs if sparse]
        if whole:
            self._update(*map(list, zip(*whole, strict=True)), rate)
        if late:
            with self._left_out():
                self._update(*map(list, zip(*late, strict=True)), rate)

    @contextmanager
    def _left_out(self) -> Iterator[None]:
        settings = vars(self._optimizer)  # not setattr, with which Keras tracks what it is given
        beta = settings["beta_1"]
        settings["beta_1"] = beta * self._share()
        try:
            yield
        finally:
            settings["beta_1"] = beta
