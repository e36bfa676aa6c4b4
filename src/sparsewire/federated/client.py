"""`Client` takes part in federated rounds. It keeps what it did not send, and what it sent until that is counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsewire import kernels
from sparsewire.codecs.contract import State
from sparsewire.codecs.scheme import Scheme, Spec
from sparsewire.core.rng import derive_key
from sparsewire.core.sparse import Sparse
from sparsewire.core.statefile import PathLike, copied, read_state, write_state
from sparsewire.errors import FrameError, InputError, StaleBase
from sparsewire.frames.wire import Data

from .coding import Coder, open_patch, open_weights
from .envelope import MODEL, PATCH, Down, Up, unpack_down, unpack_model, unpack_rounds
from .model import DENSE_BELOW, DIGEST_SIZE, Facts, Model, TensorInfo, Weights, framed, tensors_of
from .round import STATE_VERSION, ClientId
from .saved import buffers, checked_id, data, demand, reading, text, whole

MAX_ELEMENTS = 2**31


@dataclass(frozen=True)
class Pending:
    """An update whose round has not ended, as far as this client knows, and the digest of the model it started from."""

    round: int
    digest: bytes
    sent: dict[str, Sparse]


class Client:
    """Weights as the server has them, and this client's residual. A client is used by one thread at a time.

    scheme: for the way up; None takes the server's word for it. name: which client this is, for randomness that differs
    between them. max_elements: of the largest model that it accepts. weights: the server's initial ones, if they came
    with the application: with the server's `scheme_up`, `scheme_down`, `dense` and `dense_below`, and after
    `server.broadcast(client, base=0)` the first message need not bring them.
    """

    def __init__(
        self, scheme: Spec | None = None, *, name: ClientId = "", seed: int = 0, max_elements: int = MAX_ELEMENTS,
        weights: Mapping[str, Any] | None = None, scheme_down: Spec | None = None, dense: Iterable[str] = (),
        dense_below: int = DENSE_BELOW,
    ) -> None:  # fmt: skip
        self.name, self.seed, self.max_elements = name, seed, max_elements
        self._wanted = None if scheme is None else _plan(scheme)
        self._coder: Coder | None = None
        self._down: Coder | None = None
        self._model: Model | None = None
        self._facts: Facts = []  # of the last model, which may not be here
        self._states: dict[str, State] = {}
        self._pending: Pending | None = None
        self.round, self._last = -1, -1  # `_last`: the last round for which an update was made
        if weights is not None:
            self._begin(Model.of(weights, frozenset(dense), dense_below), scheme_down)

    def _begin(self, model: Model, scheme_down: Spec | None) -> None:
        if self._wanted is None:
            raise InputError("a client that begins with weights needs the server's scheme as well: Client(scheme, …)")
        down = self._wanted if scheme_down is None else _plan(scheme_down)
        self._coder, self._down = self._coders(str(self._wanted), str(down))
        self._model, self._facts, self.round = model, model.facts, 0

    @property
    def sent(self) -> dict[str, Sparse]:
        """The last update, by tensor; momentum masking zeroes a local optimizer's momentum there."""
        return {} if self._pending is None else dict(self._pending.sent)

    @property
    def weights(self) -> Weights:
        """Copies of the common weights."""
        return self._known.arrays()

    def residual(self) -> Weights:
        """Changes that were not sent, by tensor, without the update that is pending."""
        return {name: kept["residual"].copy() for name, kept in self._states.items()}

    @property
    def _known(self) -> Model:
        if self._model is None:
            raise InputError("this client has no model yet: receive(server.broadcast(client)) first")
        return self._model

    # --- from the server ---

    def receive(self, message: Data) -> Weights:
        """Takes over the common weights; copies of them, to train on. On an error nothing has changed.

        An update of an earlier round that the server did not count goes back into the residual. Where the server has
        counted an update that this client does not know of, the client was restored from an old state: its residual was
        sent since then, and is dropped.
        """
        if not isinstance(message, bytes | bytearray | memoryview):
            raise InputError(f"a message is bytes, not {type(message).__name__}")
        down = unpack_down(message)
        self._check_round(down)
        model, schemes = self._opened(down)
        if model.digest != down.digest:
            raise StaleBase(
                f"the weights that the message leads to are not the server's at round {down.round}: this client's are "
                "of another training; server.broadcast(client, base=-1) sends all of them"
            )
        if not model.is_held():
            raise FrameError("the server's weights have numbers that are not finite, or not of their tensor's type")
        arrays = model.arrays()
        self._take(down, model, schemes)
        return arrays

    def _check_round(self, down: Down) -> None:
        if down.kind == MODEL or down.base <= self.round <= down.round:
            return
        base = self.round if self.round <= down.round else -1  # ahead of a server that was restored
        raise StaleBase(
            f"this client is at round {self.round}, the message leads from round {down.base} to {down.round}: "
            f"server.broadcast(client, base={base}) sends what it needs"
        )

    def _opened(self, down: Down) -> tuple[Model, tuple[Coder, Coder]]:
        if down.kind == MODEL:
            texts, tensors, body = unpack_model(down.body, self.max_elements)
            coders = self._coders(*texts)
            for coder in coders:
                coder.check(tensors)
            return open_weights(body, tensors), coders
        if self._coder is None or self._down is None:
            raise StaleBase("this client has no model yet: server.broadcast(client, base=-1) sends it")
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
        other, old = model.facts != self._facts, down.counted > self._last + 1
        if other or old:  # what was kept is of another model, or of a state before an update that was counted
            self._states, self._pending = {}, None
        if self._pending is not None and (self._pending.round, self._pending.digest) != (down.round, down.digest):
            if down.counted != self._pending.round + 1:
                self._take_back(self._pending)
            self._pending = None
        went_back = down.round < self.round
        self._model, self._facts, self.round = model, model.facts, down.round
        self._coder, self._down = schemes
        self._last = down.counted - 1 if went_back else max(self._last, down.counted - 1)

    def _take_back(self, pending: Pending) -> None:
        """An update that was not counted goes back into the residual, unless the scheme keeps nothing."""
        if self._coder is None or not self._coder.scheme.memory.buffers:
            return
        for name, sent in pending.sent.items():
            if name in self._states:
                self._states[name]["residual"] += sent.flat()
            else:
                self._states[name] = {"residual": sent.flat()}

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
        with np.errstate(over="ignore"):
            changes = {
                info.name: model.flat[info.name] - local[info.name] + self._returned(info) for info in model.tensors
            }
        sending = coder.seal(model.tensors, changes, self._states, self.round)
        if not sending.finite:
            raise InputError("the change is too large for its number type; nothing was sent, the residual is kept")
        message = Up(self.round, int(examples), model.digest, sending.body).pack()
        sending.keep()
        for info in model.tensors:
            if info.dense:
                self._states.pop(info.name, None)  # all of it is on its way
        self._pending = Pending(self.round, model.digest, dict(zip(model.flat, sending.sent, strict=True)))
        self._last = self.round
        return message

    def _returned(self, info: TensorInfo) -> Any:
        """The change of a dense tensor that was sent but not counted; compressed tensors have a memory that adds it."""
        return self._states[info.name]["residual"] if info.dense and info.name in self._states else 0

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
            self._pending.round, self._pending.digest, {name: _saved(sent) for name, sent in self._pending.sent.items()}
        ]  # fmt: skip
        state = {
            "kind": "federated client", "version": STATE_VERSION, "name": self.name, "seed": self.seed,
            "max_elements": self.max_elements, "wanted": None if self._wanted is None else str(self._wanted),
            "round": self.round if keeps else -1, "last": self._last, "states": self._states,
            "schemes": [str(coder.scheme) for coder in (self._coder, self._down) if coder is not None],
            "tensors": self._facts,
            "weights": dict(self._model.flat) if keeps and self._model is not None else None,
            "pending": pending,
        }  # fmt: skip
        return {name: copied(value) for name, value in state.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Client:
        """The client of a state; what no client has written is an `InputError`."""
        with reading("client", state):
            most = whole(state["max_elements"])
            client = cls(
                state["wanted"], name=checked_id(state["name"]), seed=whole(state["seed"], None), max_elements=most
            )
            client._restore(state)
        return client

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._facts = copied(state["tensors"])
        tensors, schemes = framed(tensors_of(self._facts)), [text(scheme) for scheme in state["schemes"]]
        demand(len(schemes) == (2 if tensors else 0), f"a client with {len(schemes)} schemes")
        if schemes:
            self._coder, self._down = self._coders(*schemes)
        self.round, self._last = whole(state["round"], -1), whole(state["last"], -1)
        if state["weights"] is not None:
            self._model = Model.from_facts(state["tensors"], state["weights"])
        demand((self.round >= 0) == (state["weights"] is not None), f"a client at round {self.round}")
        self._states = buffers(state["states"], tensors, self._kept_of)
        self._pending = None if state["pending"] is None else self._loaded(state["pending"], tensors)

    def _kept_of(self, info: TensorInfo) -> tuple[str, ...]:
        assert self._coder is not None
        return self._coder.scheme.memory.buffers

    def _loaded(self, pending: Any, tensors: Sequence[TensorInfo]) -> Pending:
        assert self._coder is not None
        round_, digest, saved = pending
        demand(whole(round_) <= self._last and len(data(digest)) == DIGEST_SIZE, "the update on its way")
        sent = {}
        for info in tensors:
            plan, shape = self._coder.scheme_of(info), self._coder.shape_of(info)
            indices, values, width = saved[info.name]
            transform = None if plan.transform.is_identity else plan.transform.fitted(shape)
            sent[info.name] = Sparse(indices, values, shape, info.dtype, whole(width, 1), transform)
            demand(kernels.all_finite(sent[info.name].work_values), f"what was sent of {info.name!r}")
        return Pending(round_, digest, sent)


def _plan(spec: Spec) -> Scheme:
    return Coder.of(spec, 0).scheme


def _saved(sent: Sparse) -> list[Any]:
    return [sent.indices, sent.values, sent.width]
