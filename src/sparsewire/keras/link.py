"""`Link` connects a Keras model to the other ranks: hooks around its optimizer and its steps on top of a `HostLink`.

The optimizer's `apply` and `stateless_apply` exchange the gradients first, around a LossScaleOptimizer if there is one:
inside it, ranks would disagree on which gradients are finite. As a callback of `fit` the link lets the ranks meet
before each step, and makes their metrics and the ends of their epochs the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import keras

from sparsewire.comm import Communicator
from sparsewire.errors import InputError
from sparsewire.training.host_link import HostLink
from sparsewire.training.recipe import Recipe
from sparsewire.training.schedule import Settings
from sparsewire.training.settings import real_sizes

from .backends import Backend
from .meetings import Meetings
from .optimizers import LEFT_OUT, FirstMoment, kind_of
from .optimizers import inner as inner_of

logger = logging.getLogger("sparsewire")


@dataclass(frozen=True)
class Trained:
    """What a link works on: the model, its optimizer, whether that is the compiled one, and the ranks."""

    model: Any
    optimizer: Any
    compiled: bool
    comm: Communicator
    own_comm: bool
    backend: Backend


class Link(HostLink, keras.callbacks.Callback):  # type: ignore[misc]
    """Made by `attach`: a callback, and `stats()`, `save()`, `load()`, `state_dict()`, `detach()`; `with` detaches at
    its end."""

    def __init__(self, trained: Trained, named: Mapping[str, Any], settings: Settings, recipe: Recipe) -> None:
        keras.callbacks.Callback.__init__(self)
        HostLink.__init__(self, trained.comm, settings, real_sizes(named), recipe)
        self.optimizer = trained.optimizer
        self._trained, self._names = trained, {id(variable): name for name, variable in named.items()}
        if keras.backend.backend() == "tensorflow":  # its loops may name the tf.Variables
            self._names |= {id(variable.value): name for name, variable in named.items()}
        self._meetings = Meetings(self.gather)
        self._fitting = self._stopped = self._within = False
        self._dense_share: Any = 0.0  # of beta_1 that is left in this step
        self._logs: Any = {}
        self._moment: FirstMoment | None = None
        self._hook()

    # --- hooks ---

    def _hook(self) -> None:
        trained, inner = self._trained, inner_of(self.optimizer)
        self._apply, self._stateless = self.optimizer.apply, self.optimizer.stateless_apply
        self.optimizer.apply, self.optimizer.stateless_apply = self._applied, self._stateless_applied
        if kind_of(inner) in LEFT_OUT and inner.beta_1 and self.settings.schedule.scheme.memory.buffers:
            self._moment = FirstMoment(inner, self._travels_sparse, lambda: self._dense_share)
            self._moment.attach()
        self._make = trained.model.make_train_function
        trained.model.make_train_function = self._make_train_function
        trained.model.train_function = None  # it may hold the optimizer as it was

    def _unhook(self) -> None:
        del self.optimizer.apply, self.optimizer.stateless_apply
        if self._moment is not None:
            self._moment.detach()
        del self._trained.model.make_train_function
        self._trained.model.train_function = None

    def detach(self, error: BaseException | None = None) -> None:
        """From now on the model trains on this rank's gradients alone. Every rank calls it, and waits for the others;
        with the error that ended its training a rank leaves at once."""
        if not self.attached:
            return
        if error is not None:
            self.fail(error)
        meets = self.connected
        super().detach()
        self._unhook()
        try:
            if meets:
                self.settled()
                self.comm.barrier()
        finally:
            if self._trained.own_comm:
                self.comm.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        first = self.error
        self.detach(error)
        if error is not None and first is not None and first is not error:
            raise first from None

    def settled(self) -> None:
        self._trained.backend.settle()

    # --- a step ---

    def _applied(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """In the place of the optimizer's `apply`."""
        if self._within:
            return self._apply(grads, trainable_variables)
        variables = None if trainable_variables is None else list(trainable_variables)
        return self._apply(self._means(list(grads), variables), variables)

    def _stateless_applied(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """In the place of its `stateless_apply`, which calls `apply`."""
        mapping = list(zip(self.optimizer.variables, optimizer_variables, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            means = self._means(list(grads), None)
        self._within = True
        try:
            return self._stateless(optimizer_variables, means, trainable_variables)
        finally:
            self._within = False

    def _means(self, grads: list[Any], variables: Sequence[Any] | None) -> list[Any]:
        known = self.optimizer._trainable_variables if variables is None else variables
        used = [place for place, grad in enumerate(grads) if grad is not None]
        names = [self._name(known[place]) for place in used]
        scale = getattr(self.optimizer, "dynamic_scale", None)
        given = None if scale is None else keras.ops.convert_to_tensor(scale)
        step = self._trained.backend.exchange(self, names, [grads[place] for place in used], given)
        self._dense_share = 1 - step.sparse if self.settings.schedule.warmup_steps else 0.0
        for place, mean in zip(used, step.means, strict=True):
            grads[place] = mean
        return grads

    def _name(self, variable: Any) -> str:
        name = self._names.get(id(variable))
        if name is None:
            raise InputError(
                f"{getattr(variable, 'path', variable)} is no trainable variable of the attached model: call attach "
                "after the layers have been frozen or unfrozen, once for each model and its optimizer"
            )
        return name

    def _travels_sparse(self, grad: Any, variable: Any) -> bool:
        """A table's rows are sent whole."""
        name = self._name(variable)
        size = self.averager.sizes[name] if self.averager.sizes else 0
        return not hasattr(grad, "dense_shape") and self.settings.is_sparse(name, size)

    # --- steps of `fit` ---

    def _make_train_function(self, force: bool = False) -> Any:
        """In the place of the model's; errors of an exchange keep their class, whatever the backend makes of them."""
        model = self._trained.model
        if model.train_function is not None and not force:
            return model.train_function
        self._make(force)
        train = model.train_function

        def trained(*args: Any) -> Any:
            try:
                return self._train(train, *args)
            except StopIteration:
                raise
            except BaseException as caught:
                if self.error is None and self.comm.size > 1:
                    self.fail(caught)  # others wait for this rank
                if self.error is None or self.error is caught:
                    raise
                raise self.error from None

        model.train_function = trained
        return trained

    def _train(self, train: Any, *args: Any) -> Any:
        """Trains on as many batches as all ranks have; if one has none, the epoch ends."""
        if not self._fitting:
            return train(*args)
        *state, source = args
        drawn, is_list = _draw(source, self._trained.model.steps_per_execution)
        self.settled()
        count = self._meetings.batches(len(drawn))
        if not count:
            return self._end_epoch(drawn, state)
        batches = drawn[:count] if is_list else iter(drawn[:count])
        result = train(*state, batches)
        self._logs = result[0] if state else result
        return result

    def _end_epoch(self, drawn: Sequence[Any], state: Sequence[Any]) -> Any:
        """Data that ends here ends the epoch in Keras' own way, another rank's end through `stop_training`."""
        if not drawn:
            raise StopIteration
        logger.info("rank %d: another rank has ended its epoch, or its training", self.comm.rank)
        self._trained.model.stop_training = self._stopped = True
        return (self._logs, *state) if state else self._logs

    # --- what `fit` calls ---

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.attached:
            raise InputError("the link is detached: attach again, or leave it out of callbacks")
        if self._trained.compiled and self._trained.model.optimizer is not self.optimizer:
            raise InputError(
                "the model was compiled again after attach, and has another optimizer: call link.detach() before "
                "compile, and attach after it"
            )
        self._fitting, self._meetings = True, Meetings(self.gather)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._logs, self._stopped = {}, False
        self._meetings.begin_epoch()

    def on_test_begin(self, logs: Any = None) -> None:
        """Validation after an epoch's last batch."""
        if self._fitting:
            self._meetings.end_epoch()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Every rank gets the mean metrics, in place, for the callbacks that follow; and one decision to stop."""
        if not self._fitting:
            return
        model = self._trained.model
        self.settled()
        self._meetings.end_epoch()
        if self._stopped:  # by this link, to end the epoch
            model.stop_training = self._stopped = False
        means, stops = self._meetings.means(logs or {}, model.stop_training)
        if logs is not None:
            logs.update(means)
        model.stop_training = model.stop_training or stops

    def on_train_end(self, logs: Any = None) -> None:
        if self._fitting:
            self._fitting = False
            self._meetings.end_training()


def _draw(source: Any, most: int) -> tuple[list[Any], bool]:
    """Up to so many batches, and whether they came as a list, as with torch."""
    if isinstance(source, list):
        return source, True
    drawn = list[Any]()
    for batch in source:
        drawn.append(batch)
        if len(drawn) == most:
            break
    return drawn, False
