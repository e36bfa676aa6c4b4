"""`open_link` makes a link from the arguments of `attach`: it chooses, checks, lets the ranks agree, and connects."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import keras

from sparsewire.codecs.scheme import Spec
from sparsewire.comm import Communicator
from sparsewire.errors import InputError
from sparsewire.training.agree import agree, refuse
from sparsewire.training.options import StepOptions
from sparsewire.training.recipe import Recipe
from sparsewire.training.schedule import Settings
from sparsewire.training.settings import is_positive

from .backends import backend_for
from .link import Link, Trained
from .optimizers import check_fit, check_optimizer, momentum_of, read_facts
from .ranks import find_ranks
from .variables import dense_names, named_variables, take_over

logger = logging.getLogger("sparsewire")


@dataclass(frozen=True, kw_only=True)
class Options(StepOptions):
    """The arguments of `attach`, which documents them."""

    scheme: Spec | None
    optimizer: Any
    timeout: float
    comm: Communicator | None


def open_link(model: Any, options: Options) -> Link:
    """The link of a model. Where this rank refuses, the others are told and refuse as well."""
    name = keras.backend.backend()
    backend = backend_for(name)
    limit = options.timeout if options.timeout is not None and is_positive(options.timeout) else 60.0
    comm = find_ranks(name, limit) if options.comm is None else options.comm
    try:
        optimizer: Any = getattr(model, "optimizer", None) if options.optimizer is None else options.optimizer
        _check(model, optimizer, name)
        named = named_variables(model)
        recipe, settings = _choose(named, optimizer, options)
    except Exception as error:
        refuse(comm, error)
        raise
    agree(comm, settings, named)
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    take_over([*model.weights, *optimizer.variables], comm)
    _compile_plainly(model, name)
    if comm.rank == 0:
        logger.info("%s", recipe.text())
    compiled = optimizer is getattr(model, "optimizer", None)
    trained = Trained(model, optimizer, compiled, comm, options.comm is None, backend)
    return Link(trained, named, settings, recipe)


def _check(model: Any, optimizer: Any, backend: str) -> None:
    if not isinstance(model, keras.Model):
        raise InputError(f"attach takes a Keras model, not {type(model).__name__}")
    check_optimizer(optimizer)
    if "apply" in vars(optimizer):
        raise InputError("the optimizer has a link already; call its detach() first")
    if backend == "jax" and keras.distribution.distribution() is not None:
        raise InputError(
            "keras.distribution averages gradients itself, in full: leave set_distribution out, and start one process "
            "for each device"
        )


def _choose(named: Mapping[str, Any], optimizer: Any, options: Options) -> tuple[Recipe, Settings]:
    if isinstance(options.scheme, str) and options.scheme.strip().startswith("auto"):
        raise InputError('scheme="auto" is for PyTorch; leave the scheme out, or write one such as "topk(1%)"')
    if options.select_per == "bucket":
        raise InputError("Keras has no buckets: write select_per='model', or leave it out")
    dense = dense_names(named, options.exclude)
    facts = [read_facts(optimizer)] if options.sparse(named, dense) else []
    recipe = options.recipe_for(facts, options.scheme)
    settings = options.settings_by(recipe, named, dense, timeout=options.timeout)
    if facts:
        check_fit(optimizer, settings.schedule.scheme.memory)
    momentum = momentum_of(optimizer)
    return recipe, replace(settings, momenta=lambda: dict.fromkeys(named, momentum))


def _compile_plainly(model: Any, backend: str) -> None:
    """XLA of TensorFlow, and torch.compile, cannot call Python."""
    if backend != "jax" and getattr(model, "optimizer", None) is not None and model.jit_compile:
        model.jit_compile = False
        logger.warning("jit_compile is set to False: a step that %s compiles cannot exchange gradients", backend)
