"""`open_link` makes a link from the arguments of `attach`: it chooses, checks, lets the ranks agree, and connects."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import keras

from sparsewire.codecs.contract import Memory
from sparsewire.codecs.scheme import Spec
from sparsewire.comm import Communicator
from sparsewire.errors import InputError
from sparsewire.training.agree import agree, refuse
from sparsewire.training.recipe import Recipe
from sparsewire.training.schedule import Ratios, Settings, is_whole
from sparsewire.training.settings import Exclude, is_positive, read_settings, real_sizes

from .backends import backend_for
from .link import Link, Place
from .optimizers import check_fit, check_optimizer, momentum_of, read_facts
from .ranks import find_ranks
from .variables import dense_names, named_variables, take_over

logger = logging.getLogger("sparsewire")


@dataclass(frozen=True)
class Options:
    """The arguments of `attach`, which documents them."""

    scheme: Spec | None
    optimizer: Any
    total_steps: int | None
    coverage: float
    ratio: float | None
    memory: str | Memory | None
    select_per: str | None
    dense_below: int
    exclude: Exclude
    warmup_steps: int
    ratio_schedule: Ratios | None
    clip_norm: float | None
    seed: int
    on_step: Callable[[dict[str, Any]], None] | None
    timeout: float
    nodes: int | str | None
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
    place = Place(model, optimizer, optimizer is getattr(model, "optimizer", None), comm, options.comm is None, backend)
    return Link(place, named, settings, recipe)


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
    dense, sizes = dense_names(named, options.exclude), real_sizes(named)
    least = options.dense_below if is_whole(options.dense_below) else 0  # what is no number is refused later
    facts = [read_facts(optimizer)] if any(size >= least for name, size in sizes.items() if name not in dense) else []
    recipe = Recipe.of(
        facts, options.scheme, total_steps=options.total_steps, coverage=options.coverage, ratio=options.ratio,
        memory=options.memory, select_per=options.select_per, ratio_schedule=options.ratio_schedule,
    )  # fmt: skip
    settings = read_settings(
        named, recipe.scheme, recipe.select_per, options.dense_below, lambda name, _: name in dense,
        options.warmup_steps, recipe.ratio_schedule, None, options.seed, options.on_step, options.timeout,
        options.clip_norm, options.nodes,
    )  # fmt: skip
    if facts:
        check_fit(optimizer, settings.schedule.scheme.memory)
    momentum = momentum_of(optimizer)
    return recipe, replace(settings, momenta=lambda: dict.fromkeys(named, momentum))


def _compile_plainly(model: Any, backend: str) -> None:
    """XLA of TensorFlow, and torch.compile, cannot call Python."""
    if backend != "jax" and getattr(model, "optimizer", None) is not None and model.jit_compile:
        model.jit_compile = False
        logger.warning("jit_compile is set to False: a step that %s compiles cannot exchange gradients", backend)
