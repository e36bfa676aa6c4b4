"""`local`: ranks train alone, between jitted steps, and meet every H of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparsewire.codecs.scheme import Spec
from sparsewire.comm import Communicator
from sparsewire.core.files import PathLike
from sparsewire.errors import InputError
from sparsewire.planning.auto import read_auto
from sparsewire.training import checkpoints
from sparsewire.training.agree import agree, refuse
from sparsewire.training.checkpoints import NAME
from sparsewire.training.link_parts import RoundsLink, round_stats
from sparsewire.training.local import round_states
from sparsewire.training.local.membership import join
from sparsewire.training.local.outer import OuterSpec
from sparsewire.training.local.recipe import COVERAGE, LocalRecipe
from sparsewire.training.local.round_schedule import Every
from sparsewire.training.local.rounds import CALLED, DUE, LAST, Plan, Rounds
from sparsewire.training.local.settings import LocalSettings, OnRound
from sparsewire.training.schedule import Ratios, Settings
from sparsewire.training.settings import Exclude, excluded

from .engine import open_comm
from .guard import GuardedLink
from .opt_state import finite_only, masked
from .trees import Tree, as_arrays, flat_weights, named_leaves, weights_like

logger = logging.getLogger("sparsewire")


def local(
    params: Tree, scheme: Spec | None = None, *, every: Every | None = None, total_steps: int | None = None,
    coverage: float = COVERAGE, outer: OuterSpec | None = None, mean: str | None = None,
    mask_momentum: bool | None = None, dense_rounds: int = 0, ratio_schedule: Ratios | None = None,
    dense_below: int = 0, exclude: Exclude = (), plain: Exclude = (), fragments: int = 1, seed: int = 0,
    comm: Communicator | None = None, on_round: OnRound | None = None, timeout: float | None = None,
) -> LocalLink:  # fmt: skip
    """Lets every rank train alone; after `every` steps its weights' change is exchanged like a gradient:

        rounds = local(params, "diloco", every=50)
        params = rounds.params                              # rank 0's, on every rank
        for batch in batches:
            params, state = step(params, state, batch)      # jitted; without any exchange
            params = rounds(params)                         # the new common weights, where a meeting was due
        params = rounds.finish(params)

    Every rank calls it, with the same arguments; trees that are given stay as they are.

    scheme: how a change is compressed: string, dict or `Scheme`, or a preset that also says every, outer, mean and
        mask_momentum. None chooses top-k with error feedback and mean="sqrt"; rank 0 logs it.
    every: optimizer steps in a round: a number, a function of the round, or (until_round, every) pairs.
    total_steps: optimizer steps of the whole run on each rank: without a scheme the ratio is coverage / rounds, within
        0.1 % … 100 %, and 5 % where total_steps is not known.
    outer: the rule that moves the common weights by the mean change: "sgd(rate=1.0, momentum=0, nesterov=false)".
    mean: what the sum of a coordinate is divided by: "all" ranks, its "senders", or "sqrt" of their product.
    mask_momentum: the optimizer's momentum is zeroed at the coordinates that this rank has sent sparse: call
        `params, state = rounds(params, state)`.
    dense_rounds: rounds at the beginning that are sent in full. ratio_schedule: as in `exchange`, by rounds.
    dense_below, exclude: as in `exchange`. plain: names of what takes its mean in full, such as batch statistics.
    fragments: the tree is exchanged in so many parts, which take turns: meetings are every/fragments steps apart.
    seed: for everything random. on_round: called after each meeting with a dict. comm, timeout: as in `exchange`.
    """
    ranks = open_comm(comm, timeout)
    try:
        if read_auto(scheme) is not None:
            raise InputError("local has no auto: name a scheme or a preset, or leave it out")
        leaves = as_arrays(named_leaves(params))
        recipe = LocalRecipe.of(scheme, every, total_steps, coverage, "sparsewire.jax.local(params")
        options = LocalSettings(
            recipe.scheme, every, outer, mean, mask_momentum, dense_rounds, ratio_schedule, dense_below, exclude,
            "mean", fragments, 0, 1.0, seed, on_round, None,
        )  # fmt: skip
        settings, plan = options.read(leaves, excluded(leaves, plain))
    except Exception as error:
        refuse(ranks, error)
        raise
    if scheme is None and ranks.rank == 0:
        logger.info("%s", recipe.text())
    agree(ranks, settings, leaves, {**options.agreed(plan), "plain": sorted(plan.plain)})
    return LocalLink(params, ranks, options, settings, plan)


class LocalLink(RoundsLink, GuardedLink):
    """Made by `local`. `params` are rank 0's weights, to begin with."""

    def __init__(
        self, params: Tree, comm: Communicator, options: LocalSettings, settings: Settings, plan: Plan
    ) -> None:
        super().__init__(comm, "call local(…) again")
        self._options, self._steps, self._warned = options, 0, False
        weights, dtypes = flat_weights(params)
        self.rounds = Rounds(comm, settings, plan, weights, dtypes)
        with self.guarded():
            joined = join(self.rounds, comm, weights, new=True)
        self.params = weights_like(params, joined.weights)
        self._tree, self._local = params, weights

    # --- what users call ---

    def __call__(self, params: Tree, state: Any = None, *, steps: int = 1) -> Any:
        """Counts a step, or as many as a scan has made, and meets the other ranks if a meeting is due: the weights to
        go on with, and the optimizer's state if that is given."""
        if self.rounds.plan.keep_sent and state is None:
            raise InputError(
                "mask_momentum zeroes the optimizer's momentum where something was sent: write params, state = "
                "rounds(params, state), or local(…, mask_momentum=False)"
            )
        with self.guarded():
            for _ in range(steps):
                self.rounds.count()
            self._steps += steps
            due = self.rounds.due
        return self._met(DUE, params, state) if due else _both(params, state)

    def meet(self, params: Tree, state: Any = None) -> Any:
        """A meeting now, of all weights. Every rank calls it."""
        return self._met(CALLED, params, state)

    def finish(self, params: Tree) -> Tree:
        """A last meeting, if any rank has made steps since the last one, so that all end with the same weights."""
        params = self._met(LAST, params, None)
        with self.guarded():
            self.comm.barrier()
        self.attached = False
        return params

    def stats(self) -> dict[str, Any]:
        """Totals: rounds, meetings, steps, meetings at which a rank's weights were not finite; bytes handed to and got
        from the engine, what float32 gradients in every step would have sent, and seconds by stage."""
        traffic = self.comm.traffic()
        moved = [array.size for name, array in self.rounds.common.items() if name not in self.rounds.plan.plain]
        dense = 4 * sum(moved) * self._steps
        return round_stats(self.rounds, traffic.bytes_sent, traffic.bytes_received, dense)

    def save(self, folder: PathLike, params: Tree, name: str = NAME) -> Path:
        """Writes this rank's state, with its weights, to a file of its own, whole or not at all. Every rank calls it;
        the optimizer's state is not in it."""
        self._local, _ = flat_weights(params)
        return checkpoints.save(self, self.state_dict, folder, name)

    def load(self, folder: PathLike, name: str = NAME) -> Tree:
        """Goes on from the latest set of files in the folder, and returns this rank's weights. Every rank calls it."""
        checkpoints.load(self, folder, name)
        return weights_like(self._tree, self._local)

    # --- what checkpoints need ---

    def state_dict(self) -> dict[str, Any]:
        return round_states.save(self.rounds, self._local)

    def read_state(self, state: Mapping[str, Any]) -> Any:
        return round_states.read(self.rounds, state)

    def take_over(self, ready: Any) -> None:
        self._local = round_states.take_over(self.rounds, ready)

    # --- a meeting ---

    def _met(self, kind: int, params: Tree, state: Any) -> Any:
        with self.guarded():
            local, _ = flat_weights(params)
            visit = self.rounds.visit(local, kind)
            finite = self.rounds.hold(visit)
            if finite is None:
                return _both(params, state)
            names = visit.names if finite else tuple(self.rounds.common)
            weights = local | {name: self.rounds.given(name) for name in names}
            self.rounds.settle(visit, finite)
            self._report(finite)
        return _both(weights_like(params, weights), self._state_after(state, finite))

    def _state_after(self, state: Any, finite: bool) -> Any:
        if state is None:
            return None
        return masked(state, self.rounds.sent) if finite else finite_only(state)

    def _report(self, finite: bool) -> None:
        if not finite and not self._warned:
            self._warned = True
            logger.warning(
                "meeting %d: the weights of some rank are not finite, so all ranks go back to the common weights; "
                "stats()['nonfinite'] counts such meetings",
                self.rounds.meeting - 1,
            )
        if self._options.on_round is not None:
            scheme = self.rounds.averager.settings.schedule.at(self.rounds.meeting - 1)
            self._options.on_round({**self.stats(), "scheme": str(scheme or "dense"), "finite": finite})


def _both(params: Tree, state: Any) -> Any:
    return params if state is None else (params, state)
