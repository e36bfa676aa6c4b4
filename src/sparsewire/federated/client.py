"""`Client`: one participant. It keeps what it could not send, and what it sent until the server has counted it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..contract import State
from ..errors import FrameError, InputError, StaleBase
from ..rng import derive_key
from ..scheme import Scheme, Spec
from ..sparse import Sparse
from ..statefile import PathLike, copied, read_state, write_state
from ..wire import Data
from .coding import Coder, open_patch, open_weights
from .envelope import MODEL, PATCH, Down, Up, unpack_down, unpack_model, unpack_rounds
from .model import PLAIN_BELOW, Model, Tensor, Weights, framed, tensors_of
from .round import STATE_VERSION, ClientId

MAX_ELEMENTS = 2**31


@dataclass(frozen=True)
class Pending:
    """What was sent in a round of which the end is not known here yet."""

    round: int
    sent: dict[str, Sparse]


class Client:
    """Weights as the server has them, and this client's residual.

    scheme: for the way up; None takes the server's word for it. name: which client this is, for randomness that differs
    between them. max_elements: of the largest model that it accepts. weights: the server's initial ones, if they came
    with the application: with the server's `scheme_up`, `scheme_down`, `plain` and `plain_below`, and after
    `server.broadcast(client, base=0)` the first message need not bring them.
    """

    def __init__(
        self, scheme: Spec | None = None, *, name: ClientId = "", seed: int = 0, max_elements: int = MAX_ELEMENTS,
        weights: Mapping[str, Any] | None = None, scheme_down: Spec | None = None, plain: Iterable[str] = (),
        plain_below: int = PLAIN_BELOW,
    ) -> None:  # fmt: skip
        self.name, self.seed, self.max_elements = name, seed, max_elements
        self._wanted = None if scheme is None else _plan(scheme)
        self._coder: Coder | None = None
        self._down: Coder | None = None
        self._model: Model | None = None
        self._states: dict[str, State] = {}
        self._pending: Pending | None = None
        self.round = -1
        if weights is not None:
            self._begin(Model.of(weights, frozenset(plain), plain_below), scheme_down)

    def _begin(self, model: Model, scheme_down: Spec | None) -> None:
        if self._wanted is None:
            raise InputError("a client that begins with weights needs the server's scheme as well: Client(scheme, …)")
        down = self._wanted if scheme_down is None else _plan(scheme_down)
        self._coder, self._down = self._coders(str(self._wanted), str(down))
        self._model, self.round = model, 0

    @property
    def sent(self) -> dict[str, Sparse]:
        """What went out last, by tensor; momentum masking zeroes a local optimizer's momentum there."""
        return {} if self._pending is None else dict(self._pending.sent)

    @property
    def weights(self) -> Weights:
        """Copies of the common weights."""
        return self._known.arrays()

    def residual(self) -> Weights:
        """What was not sent, by tensor; what is on its way is not in it."""
        return {name: kept["residual"].copy() for name, kept in self._states.items()}

    @property
    def _known(self) -> Model:
        if self._model is None:
            raise InputError("this client has no model yet: receive(server.broadcast(client)) first")
        return self._model

    # --- from the server ---

    def receive(self, message: Data) -> Weights:
        """Takes over the common weights; copies of them, to train on. On an error nothing has changed.

        An update of an earlier round that the server did not count goes back into the residual.
        """
        down = unpack_down(message)
        self._check_round(down)
        model, schemes = self._opened(down)
        if model.digest != down.digest:
            raise StaleBase(
                f"the weights that the message leads to are not the server's at round {down.round}: this client's are "
                "of another training; server.broadcast(client, base=-1) sends all of them"
            )
        if not model.is_finite():
            raise FrameError("the server's weights have numbers that are not finite")
        self._take(down, model, schemes)
        return self.weights

    def _check_round(self, down: Down) -> None:
        if down.kind != MODEL and not down.base <= self.round <= down.round:
            raise StaleBase(
                f"this client is at round {self.round}, the message leads from round {down.base} to {down.round}: "
                f"server.broadcast(client, base={self.round}) starts from where it is"
            )
        if self._pending is not None and down.round < self._pending.round:
            raise StaleBase(f"a message of round {down.round}, after an update of round {self._pending.round}")

    def _opened(self, down: Down) -> tuple[Model, tuple[Coder, Coder]]:
        if down.kind == MODEL:
            texts, tensors, body = unpack_model(down.body, self.max_elements)
            return open_weights(body, tensors), self._coders(*texts)
        assert self._coder is not None and self._down is not None
        schemes = self._coder, self._down
        if down.kind == PATCH:
            return self._known.patched(open_patch(down.body, self._known.tensors)), schemes
        model = self._known
        for body in unpack_rounds(down.body, down.round - down.base)[self.round - down.base :]:
            if body:
                model = model.minus(self._down.open(body, model.tensors))
        return model, schemes

    def _coders(self, up: str, down: str) -> tuple[Coder, Coder]:
        if self._wanted is not None and str(self._wanted) != up:
            raise InputError(f"this client has the scheme {self._wanted}, its server {up}: give both the same")
        return Coder.of(up, self.seed, derive_key(str(self.name))), Coder.of(down, self.seed)

    def _take(self, down: Down, model: Model, schemes: tuple[Coder, Coder]) -> None:
        if self._model is not None and model.facts != self._model.facts:
            self._states, self._pending = {}, None  # another model: what was kept is of no use
        self._model, (self._coder, self._down), self.round = model, schemes, down.round
        if self._pending is not None and self._pending.round < down.round:
            if down.counted != self._pending.round + 1:
                self._take_back(self._pending)
            self._pending = None

    def _take_back(self, pending: Pending) -> None:
        """What was sent in vain waits for the next update."""
        for name, sent in pending.sent.items():
            if name in self._states:
                self._states[name]["residual"] += sent.flat()

    # --- to the server ---

    def update(self, weights: Mapping[str, Any], examples: int = 1) -> bytes:
        """The message with what training has changed. The residual takes what is not in it.

        A message that was lost may be sent again as it is; the server counts one of a round.
        """
        model, coder = self._known, self._coder
        assert coder is not None
        if isinstance(examples, bool) or not isinstance(examples, int | np.integer) or examples < 1:
            raise InputError(f"examples is how many were trained on, at least 1, not {examples!r}")
        if self._pending is not None:
            raise InputError(f"an update of round {self.round} was made already: send that, or receive() a new round")
        local = model.read(weights)
        changes = {name: model.flat[name] - local[name] for name in local}
        sending = coder.seal(model.tensors, changes, self._states, self.round)
        if not sending.finite:
            raise InputError("the change is too large for its number type; nothing was sent, the residual is kept")
        message = Up(self.round, int(examples), model.digest, sending.body).pack()
        sending.keep()
        self._pending = Pending(self.round, dict(zip(model.flat, sending.sent, strict=True)))
        return message

    # --- saving ---

    def save(self, path: PathLike) -> None:
        """Writes everything, whole or not at all."""
        write_state(path, self.state_dict())

    @classmethod
    def load(cls, path: PathLike) -> Client:
        """The client that a file holds; it goes on exactly where that one was."""
        return read_state(path, "federated client", cls.from_state)

    def state_dict(self, weights: bool = True) -> dict[str, Any]:
        """Copies: arrays and plain types. Without the weights, the next broadcast has to bring all of them, base=-1."""
        keeps = weights and self._model is not None
        pending = None if self._pending is None else [
            self._pending.round, {name: _saved(sent) for name, sent in self._pending.sent.items()}
        ]  # fmt: skip
        state = {
            "kind": "federated client", "version": STATE_VERSION, "name": self.name, "seed": self.seed,
            "max_elements": self.max_elements, "wanted": None if self._wanted is None else str(self._wanted),
            "round": self.round if keeps else -1, "states": self._states,
            "schemes": [str(one.scheme) for one in (self._coder, self._down) if one is not None],
            "tensors": [] if self._model is None else self._model.facts,
            "weights": dict(self._model.flat) if keeps and self._model is not None else None,
            "pending": pending,
        }  # fmt: skip
        return {name: copied(value) for name, value in state.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Client:
        if state.get("version") != STATE_VERSION:
            raise InputError(f"a client's state of version {STATE_VERSION} is needed, not {state.get('version')!r}")
        client = cls(state["wanted"], name=state["name"], seed=state["seed"], max_elements=state["max_elements"])
        if state["schemes"]:
            client._coder, client._down = client._coders(*state["schemes"])
        if state["weights"] is not None:
            client._model = Model.from_facts(state["tensors"], state["weights"])
        client.round, client._states = int(state["round"]), copied(state["states"])
        if state["pending"] is not None:
            client._pending = client._loaded(state["pending"], framed(tensors_of(state["tensors"])))
        return client

    def _loaded(self, pending: Any, tensors: Sequence[Tensor]) -> Pending:
        assert self._coder is not None
        sent = {}
        for one in tensors:
            plan, shape = self._coder.scheme_of(one), self._coder.shape_of(one)
            indices, values, width = pending[1][one.name]
            transform = None if plan.transform.is_identity else plan.transform.fitted(shape)
            sent[one.name] = Sparse(indices, values, shape, one.dtype, width, transform)
        return Pending(int(pending[0]), sent)


def _plan(spec: Spec) -> Scheme:
    return Coder.of(spec, 0).scheme


def _saved(sent: Sparse) -> list[Any]:
    return [sent.indices, sent.values, sent.width]
