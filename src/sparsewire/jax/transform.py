"""`exchange`: an optax GradientTransformation whose updates are the means of all ranks' gradients, sent compressed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.experimental import io_callback

from sparsewire.codecs.contract import Memory
from sparsewire.codecs.scheme import Spec
from sparsewire.comm import Communicator
from sparsewire.errors import InputError
from sparsewire.training.recipe import COVERAGE
from sparsewire.training.schedule import Ratios
from sparsewire.training.settings import Exclude

from .engine import open_comm
from .every import gated
from .link import Link
from .optimizers import NOT_GIVEN, Given
from .options import Options
from .trees import Tree, as_arrays, is_traced, named_leaves, on_devices, replaced

WRAPPERS = {
    "MultiSteps.update": "optax.MultiSteps would exchange at every micro-step: write wire = exchange(…, every=k) and "
    "tx = wire.chain(optimizer) in its place",
    "apply_if_finite.<locals>.update": "optax.apply_if_finite goes by this rank's gradients alone, and others would "
    "wait: write it behind the exchange, optax.chain(wire, optax.apply_if_finite(optimizer, …))",
}


class ExchangeState(NamedTuple):
    """optax's state; what is not sent yet differs from rank to rank, and is on the host, in `wire.link`."""

    step: jax.Array


class Exchange(optax.GradientTransformation):
    """The transformation that `exchange` makes: first in the chain. `link` is its host's side."""

    link: Link

    def __new__(cls, link: Link) -> Exchange:
        made = super().__new__(cls, functools.partial(_init, link), functools.partial(_update, link))
        made.link = link
        return made

    def chain(self, *optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
        """`optax.chain(wire, *optimizer)`; with every=k of `exchange`, the k-th micro-step exchanges the mean of k
        gradients and moves the weights, and the others give zeros and leave the optimizer's state as it is."""
        whole = optax.chain(optax.GradientTransformation(_init_of(self), _update_of(self)), *optimizer)
        every = int(self.link.options.every)
        return gated(whole, every) if every > 1 else whole

    def __repr__(self) -> str:
        return f"Exchange({self.link!r})"


def exchange(
    scheme: Spec | None = None, *, optimizer: Given = NOT_GIVEN, total_steps: int | None = None,
    coverage: float = COVERAGE, ratio: float | None = None, memory: str | Memory | None = None, every: int = 1,
    select_per: str | None = None, dense_below: int = 1024, exclude: Exclude = (), warmup_steps: int = 0,
    ratio_schedule: Ratios | None = None, clip_norm: float | None = None, seed: int = 0,
    on_step: Callable[[dict[str, Any]], None] | None = None, nodes: int | str | None = None,
    comm: Communicator | None = None, timeout: float | None = None,
) -> Exchange:  # fmt: skip
    """An optax transformation that gives the mean of all ranks' gradients. Every rank calls it with the same arguments:

        wire = exchange(optimizer="sgd(momentum=0.9)", total_steps=10_000)
        tx = optax.chain(wire, optax.sgd(0.1, momentum=0.9))

    scheme: None chooses everything by the optimizer and total_steps, and rank 0 logs the choice. Or a string, dict or
        `Scheme`, e.g. "topk(1%) | indices=rice | values=qsgd(bits=7)", whose memory is chosen if it names none.
    optimizer: what follows in the chain, by its name in optax and the settings that matter, as a transformation does
        not tell them: "sgd(momentum=0.9)", "adamw(b1=0)". It decides on the memory, as exactly one of the two may hold
        the momentum. None: not known; may be left out if the scheme names its memory.
    total_steps: optimizer steps of the whole run. The ratio is coverage / total_steps, within 0.1 % … 100 %: a coverage
        is how often each coordinate is sent on average. Without it the ratio is 5 %.
    ratio, memory: instead of those that would be chosen.
    every: micro-steps in a step, with `tx = wire.chain(optimizer)` in the place of optax.chain and optax.MultiSteps.
    select_per: "parameter", or "model" for one threshold over all of them (with topk). None: as chosen.
    dense_below, exclude: parameters smaller than this, or whose name ("layers/0/bias") matches a pattern (or for which
        a function of name and parameter is true), travel dense, all in one message.
    warmup_steps: dense steps at the beginning. ratio_schedule: a function of the step after them, or (until, ratio)
        pairs.
    clip_norm: clips each rank's gradient to clip_norm/√ranks before what was not sent is added.
    seed: for everything random. on_step: called after each step with a dict, on the thread that exchanges.
    nodes: "auto", or how many ranks one after another share a machine, which average dense among themselves first.
    comm: the ranks, a `Communicator`; None: the processes of jax.distributed, or this one alone. timeout: seconds that
        a collective of jax.distributed's processes may wait for one of them; by default 60.
    """
    options = Options(
        scheme=scheme, optimizer=optimizer, total_steps=total_steps, coverage=coverage, ratio=ratio, memory=memory,
        every=every, select_per=select_per, dense_below=dense_below, exclude=exclude, warmup_steps=warmup_steps,
        ratio_schedule=ratio_schedule, clip_norm=clip_norm, seed=seed, on_step=on_step, nodes=nodes,
    )  # fmt: skip
    options.check()
    return Exchange(Link(open_comm(comm, timeout), options))


def _init(link: Link, params: Tree) -> ExchangeState:
    _refuse_micro_steps(link)
    return _init_state(link, params)


def _init_state(link: Link, params: Tree) -> ExchangeState:
    link.begin(named_leaves(params))
    return ExchangeState(jnp.zeros((), jnp.int32))


def _update(link: Link, updates: Tree, state: ExchangeState, params: Tree = None) -> tuple[Tree, ExchangeState]:
    _refuse_micro_steps(link)
    return _exchanged(link, updates, state)


def _init_of(wire: Exchange) -> Callable[[Tree], ExchangeState]:
    return lambda params: _init_state(wire.link, params)


def _update_of(wire: Exchange) -> Callable[..., tuple[Tree, ExchangeState]]:
    def update(updates: Tree, state: ExchangeState, params: Tree = None) -> tuple[Tree, ExchangeState]:
        return _exchanged(wire.link, updates, state)

    return update


def _exchanged(link: Link, updates: Tree, state: ExchangeState) -> tuple[Tree, ExchangeState]:
    """Outside jit by NumPy, within by a callback that has its place in the order of all of them."""
    _refuse_wrappers()
    leaves = as_arrays(named_leaves(updates))
    link.check(leaves)
    names, arrays = tuple(leaves), list(leaves.values())
    if is_traced({**leaves, "": state.step}):
        shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in arrays)
        call = functools.partial(link.exchange_in_callback, names)
        means: Any = io_callback(call, shapes, state.step, *arrays, ordered=True)
    else:
        exchanged = link.exchange(names, state.step, *arrays)
        means = [on_devices(mean, leaf) for mean, leaf in zip(exchanged, arrays, strict=True)]
    return replaced(updates, means), ExchangeState(state.step + 1)


def _refuse_micro_steps(link: Link) -> None:
    if link.options.every > 1:
        raise InputError(
            f"every={link.options.every}: the optimizer must wait for the exchange, too; write "
            "tx = wire.chain(optimizer) in the place of optax.chain(wire, optimizer)"
        )


def _refuse_wrappers() -> None:
    """What calls this, as Python's frames tell while JAX traces: it cannot be seen otherwise."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        refused = WRAPPERS.get(getattr(frame.f_code, "co_qualname", ""))
        if refused is not None and "optax" in frame.f_code.co_filename:
            raise InputError(refused)
        frame = frame.f_back
