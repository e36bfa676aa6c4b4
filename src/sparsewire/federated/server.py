"""`Server` runs rounds of federated averaging, compressed both ways. Its messages are bytes; the caller sends them.

    server.broadcast(client) → bytes        for each client that takes part in the round
    server.add(client, bytes)               what it answers, as it comes
    server.finish_round() → Report          when enough have answered, or time is up

The mean of the clients' changes goes through the server's optimizer; the step that this makes, and what earlier rounds
left of theirs, is compressed, and the common weights move by exactly what every client will see of it. Methods may be
called from several threads: one runs after another.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from sparsewire import kernels
from sparsewire.codecs.presets import local_settings
from sparsewire.codecs.scheme import Spec
from sparsewire.core.statefile import PathLike, copied, read_state, write_state
from sparsewire.errors import InputError, UpdateRefused
from sparsewire.frames.wire import Data
from sparsewire.training.local.outer import OuterSpec
from sparsewire.training.schedule import is_whole

from .coding import Coder
from .history import History
from .inbox import ENOUGH, Inbox, Limits, Update
from .lock import Locked, locked
from .model import DENSE_BELOW, Model, Weights
from .optimizer import ServerOptimizer
from .round import STATE_VERSION, ClientId, ClientRecord, Report, Round
from .saved import (
    buffers,
    checked_clip,
    checked_id,
    client_records,
    open_round,
    reading,
    restored_history,
    restored_inbox,
    whole,
)
from .total import Total

MOST_HELD = 2  # times the model: what coded updates that wait for a median may take


class Server(Locked):
    """The common weights and all that rounds need.

    weights: arrays by name. scheme_up, scheme_down: for the clients' changes and for the server's; by default the way
    down is like the way up. optimizer: "sgd(rate=1.0)" takes the mean as it is (FedAvg), "sgd(rate=…, momentum=…,
    nesterov=true)", "adam(rate=…)" (FedAdam). mean: all, senders or sqrt, by default the preset's. clip: "median"
    scales every update down to the median norm of the round. dense, dense_below: tensors that are never compressed, by
    name or size. keep_rounds: how many rounds at the most are kept for clients that come back.
    """

    def __init__(
        self, weights: Mapping[str, Any], scheme_up: Spec = "stc", scheme_down: Spec | None = None, *,
        optimizer: OuterSpec = "sgd(rate=1.0)", mean: str | None = None, clip: str | None = None,
        dense: Iterable[str] = (), dense_below: int = DENSE_BELOW, limits: Limits | None = None,
        keep_rounds: int = 1000, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        checked_clip(clip)
        if not is_whole(keep_rounds) or keep_rounds < 0:
            raise InputError(f"keep_rounds is a whole number, 0 or more, not {keep_rounds!r}")
        self.model = Model.of(weights, frozenset(dense), dense_below)
        self.up = Coder.of(scheme_up, seed)
        self.down = self.up if scheme_down is None else Coder.of(scheme_down, seed)
        self.optimizer, self.clip, self.seed = ServerOptimizer(optimizer), clip, seed
        rule = mean if mean is not None else local_settings(scheme_up).get("mean", "all")
        self._total = Total(self.model.tensors, self.up, rule)
        self._inbox = Inbox(self.up, limits or Limits())
        self._history = History(self.down, most_rounds=keep_rounds)
        self._states: dict[str, Any] = {}
        self._clients: dict[ClientId, ClientRecord] = {}
        self._open, self.round = Round(cap=self._inbox.known_cap()), 0

    @property
    def weights(self) -> Weights:
        """Copies of the common weights."""
        return self.model.arrays()

    @property
    def limits(self) -> Limits:
        return self._inbox.limits

    @property
    def cached_bytes(self) -> int:
        """Bytes of the rounds that are kept for clients who come back."""
        return self._history.size

    @locked
    def residual(self) -> Weights:
        """The steps of the server's optimizer, by tensor, that were not sent yet."""
        return {name: kept["residual"].copy() for name, kept in self._states.items()}

    # --- a round ---

    @locked
    def broadcast(self, client: ClientId, *, base: int | None = None, asks: bool = True) -> bytes:
        """The message that brings a client to the common weights and takes it into the round.

        It starts from the last round that the client has shown to have, or from `base`, which a client that lost its
        state tells (`client.round`); −1, or a round to come: from nothing. asks=False is for a client that shall have
        the weights, to evaluate them, say, and is not asked for an update: the report does not count the message.
        """
        if base is not None and not is_whole(base):
            raise InputError(f"base is the round of a client's weights, client.round, or -1, not {base!r}")
        record = self._clients.setdefault(checked_id(client), ClientRecord())
        if base is not None:
            record.base = int(base) if 0 <= base <= self.round else None  # None: ahead of a server that went back
        message = self._history.message(self.model, record.base, record.counted, self.up.scheme)
        if asks:
            self._open.asked[client] = None
            self._open.bytes_down += len(message)
        return message

    @locked
    def confirm(self, client: ClientId) -> None:
        """The client has shown that it has the common weights as they are now; the next broadcast starts from there."""
        if client in self._clients:
            self._clients[client].base = self.round

    @locked
    def forget(self, client: ClientId) -> None:
        """A client that will not come back."""
        self._clients.pop(client, None)

    @locked
    def add(self, client: ClientId, message: Data) -> None:
        """Counts a client's update, or raises an `UpdateRefused` that says why not; the round goes on."""
        try:
            update = self.read(client, message)
        except UpdateRefused as refused:
            self.refuse(client, refused.reason)
            raise
        if self.clip is None and self._open.cap is not None:
            self._total.add(update.parts, self._open.weight(update.examples))
            self.note(client, update)
        else:
            self._open.held[client] = bytes(message)
            self.note(client, update)
            self._count_first()

    @locked
    def read(self, client: ClientId, message: Data) -> Update:
        """An update that `add` would count; nothing is changed."""
        if checked_id(client) not in self._open.asked:
            raise UpdateRefused(client, f"it was not asked to take part in round {self.round}: broadcast to it first")
        if client in self._open.counted:
            raise UpdateRefused(client, f"its update of round {self.round} has been counted already")
        return self._inbox.read(client, message, self.model, self.round)

    @locked
    def refuse(self, client: ClientId, reason: str) -> None:
        """For the report: why a client's update of this round is not counted; by itself where `add` is not used."""
        self._open.refuse(checked_id(client), reason)

    @locked
    def note(self, client: ClientId, update: Update) -> None:
        """A client's part in the round; by itself for updates that are averaged elsewhere and end in `publish`."""
        if update.round != self.round or client in self._open.counted:
            raise UpdateRefused(client, f"its update of round {update.round} is late or has been counted already")
        self._open.count(checked_id(client), update.examples, update.norm, update.size)
        self.confirm(client)

    @locked
    def finish_round(self) -> Report:
        """Moves the common weights by the mean of what was counted; the next round is open then."""
        self._count_held()
        return self._close(bool(self._total.weight) and self._apply(*self.optimizer.step(self._total.means())))

    @locked
    def publish(self, weights: Mapping[str, Any]) -> Report:
        """Ends the round with weights that somebody else has found: the common ones move towards them.

        What the way down leaves of the difference waits in the server's residual, so the caller goes on from the common
        weights, not from those that it gave. Updates that were only `read` and `note`d count as taken.
        """
        given = self.model.read(weights)
        return self._close(self._apply({name: self.model.flat[name] - flat for name, flat in given.items()}, {}))

    @locked
    def cancel_round(self) -> Report:
        """Ends the round without moving; whoever has sent something takes it back into its residual."""
        return self._close(False)

    def _count_first(self) -> None:
        """Updates of a first round wait for the median of their examples, until they take too much memory."""
        large = self._open.bytes_up > MOST_HELD * self.model.dense_bytes
        if self.clip is None and large and len(self._open.held) >= ENOUGH:
            self._count_held()

    def _count_held(self) -> None:
        """Updates that waited; with clipping, none is longer than the median."""
        held, self._open.held = self._open.held, {}
        if held and self._open.cap is None:
            self._open.cap = self._inbox.cap(self._open.counted.values())
        middle = statistics.median(self._open.norms) if self.clip is not None and held else math.inf
        for client, message in held.items():
            update = self._inbox.read(client, message, self.model, self.round)
            scale = min(1.0, middle / update.norm) if update.norm else 1.0
            self._total.add(update.parts, self._open.weight(update.examples), scale)

    def _apply(self, steps: Mapping[str, Any], kept: Mapping[str, Any]) -> bool:
        """Sends the steps and moves by what was sent, unless that is not finite: then nothing changes."""
        if not all(map(kernels.all_finite, steps.values())):
            return False
        sending = self.down.seal(self.model.tensors, steps, self._states, self.round)
        moved = self.model.minus(sending.sent) if sending.finite else None
        if moved is None or not moved.is_finite():
            return False
        sending.keep()
        self.model = moved
        self.optimizer.keep(kept)
        self._history.append(sending.body, self.model.dense_bytes)
        return True

    def _close(self, applied: bool) -> Report:
        ended = self._open
        if applied:
            self._inbox.remember(ended.norms, ended.counted.values())
            for client in self._clients.keys() & ended.counted.keys():
                self._clients[client].counted = self.round + 1
        else:
            self._history.append(b"", self.model.dense_bytes)
        report = ended.report(self.round, applied, self.model.dense_bytes)
        self._total.clear()
        self._open, self.round = Round(cap=self._inbox.known_cap()), self.round + 1
        return report

    # --- saving ---

    def save(self, path: PathLike) -> None:
        """Writes everything, in mid-round too, whole or not at all."""
        write_state(path, self.state_dict())

    @classmethod
    def load(cls, path: PathLike) -> Server:
        """The server that a file holds; it goes on exactly where that one was."""
        return read_state(path, "federated server", cls.from_state)

    @locked
    def state_dict(self) -> dict[str, Any]:
        """Copies: arrays, bytes and plain types."""
        state = {
            "kind": "federated server", "version": STATE_VERSION, "round": self.round, "seed": self.seed,
            "scheme_up": str(self.up.scheme), "scheme_down": str(self.down.scheme),
            "optimizer": str(self.optimizer.rule), "mean": self._total.rule, "clip": self.clip,
            "limits": asdict(self.limits), "tensors": self.model.facts, "weights": dict(self.model.flat),
            "states": self._states, "kept": self.optimizer.kept, "total": self._total.state_dict(),
            "open": asdict(self._open), "norms": list(self._inbox.norms),
            "examples": list(self._inbox.examples),
            "clients": {client: asdict(record) for client, record in self._clients.items()},
            "first": self._history.first, "rounds": list(self._history.rounds),
            "keep_rounds": self._history.most_rounds,
        }  # fmt: skip
        return {name: copied(value) for name, value in state.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Server:
        """The server of a state; what no server has written is an `InputError`."""
        server = cls.__new__(cls)
        Locked.__init__(server)
        with reading("server", state):
            server._restore(state)
        return server

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.model = Model.from_facts(state["tensors"], state["weights"])
        self.seed, self.round = whole(state["seed"], None), whole(state["round"])
        self.clip = checked_clip(state["clip"])
        self.up, self.down = (Coder.of(state[direction], self.seed) for direction in ("scheme_up", "scheme_down"))
        self.optimizer = ServerOptimizer(state["optimizer"])
        self._total = Total(self.model.tensors, self.up, state["mean"])
        self._total.load_state_dict(copied(state["total"]))
        self._inbox = restored_inbox(state, self.up)
        self._history = restored_history(state, self.down, self.model.tensors, self.round)
        self._states = buffers(state["states"], self.model.tensors, self.down.buffers_of)
        self.optimizer.keep(buffers(state["kept"], self.model.tensors, lambda _: self.optimizer.rule.buffers))
        self._clients = client_records(state["clients"], self.round)
        self._open = open_round(state["open"], partial(self._inbox.read, model=self.model, round_=self.round))
