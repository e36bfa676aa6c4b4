"""Checks of a saved state before a server or a client goes on from it: its file may be damaged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from sparsewire.codecs.contract import State
from sparsewire.core.sparse import work_dtype
from sparsewire.errors import InputError
from sparsewire.training.schedule import is_whole

from .coding import Coder
from .history import History
from .inbox import Inbox, Limits
from .model import TensorInfo
from .round import MOST_ID, STATE_VERSION, ClientId, ClientRecord, Round

MOST = 2**64 - 1


@contextmanager
def reading(whose: str, state: Any) -> Iterator[None]:
    """Whatever is wrong with the state of a server or a client comes out as an `InputError`."""
    version = state.get("version") if isinstance(state, Mapping) else None
    if not is_whole(version) or version != STATE_VERSION:
        raise InputError(f"a {whose}'s state of version {STATE_VERSION} is needed, not {version!r}")
    try:
        yield
    except Exception as error:
        raise InputError(
            f"the state of this federated {whose} is damaged ({type(error).__name__}: {error}); load an older one"
        ) from error


def demand(right: bool, what: str) -> None:
    if not right:
        raise InputError(f"{what} is none that was saved")


# --- single values ---------------------------------------------------------------------------------------------------


def whole(value: Any, least: int | None = 0) -> int:
    demand(is_whole(value) and (least is None or least <= value <= MOST), f"the whole number {value!r}")
    return int(value)


def number(value: Any) -> float:
    """A norm, for example."""
    demand(isinstance(value, int | float) and not isinstance(value, bool) and value >= 0, f"the number {value!r}")
    return float(value)


def text(value: Any) -> str:
    demand(isinstance(value, str), f"the text {value!r}")
    return str(value)


def flag(value: Any) -> bool:
    demand(isinstance(value, bool), f"the flag {value!r}")
    return bool(value)


def data(value: Any) -> bytes:
    demand(isinstance(value, bytes), f"the message {value!r}")
    return bytes(value)


def mapping(value: Any) -> Mapping[Any, Any]:
    demand(isinstance(value, Mapping), f"the mapping {value!r}")
    items: Mapping[Any, Any] = value
    return items


def checked_id(client: Any) -> ClientId:
    if isinstance(client, bool) or not isinstance(client, str | int):
        raise InputError(f"a client's id is a text or a whole number, not {client!r}")
    if isinstance(client, int) and client.bit_length() > MOST_ID:
        raise InputError(f"a client's id is a text or a whole number of at most {MOST_ID} bits")
    return client


def checked_clip(clip: Any) -> str | None:
    if clip is not None and clip != "median":
        raise InputError(f"clip is None or 'median', not {clip!r}")
    return None if clip is None else "median"


# --- parts of a state ------------------------------------------------------------------------------------------------


def buffers(
    saved: Any, tensors: Sequence[TensorInfo], names_of: Callable[[TensorInfo], tuple[str, ...]]
) -> dict[str, State]:  # fmt: skip
    """Copies of the tensors' buffers, of which each has the names that it should have."""
    infos = {info.name: info for info in tensors}
    return {name: _buffers(kept, infos[name], names_of(infos[name])) for name, kept in mapping(saved).items()}


def _buffers(kept: Any, info: TensorInfo, names: tuple[str, ...]) -> State:
    demand(set(mapping(kept)) == set(names), f"a buffer of {info.name!r}")
    return {name: array(numbers, info.size, work_dtype(info.dtype)).copy() for name, numbers in kept.items()}


def array(numbers: Any, size: int, dtype: np.dtype[Any]) -> Any:
    """A flat array without NaN."""
    fits = isinstance(numbers, np.ndarray) and numbers.shape == (size,) and numbers.dtype == dtype
    demand(fits and not np.isnan(numbers).any(), f"an array that should have {size} numbers of {dtype}")
    return numbers


def client_records(saved: Any, round_: int) -> dict[ClientId, ClientRecord]:
    """The records of the clients, at a server that is at this round."""
    return {checked_id(client): _client_record(facts, round_) for client, facts in saved.items()}


def _client_record(facts: Any, round_: int) -> ClientRecord:
    base, counted = mapping(facts)["base"], whole(facts["counted"])
    demand(counted <= round_ and (base is None or whole(base) <= round_), f"the client {dict(facts)}")
    return ClientRecord(None if base is None else int(base), counted)


def restored_history(state: Mapping[str, Any], coder: Coder, tensors: Sequence[TensorInfo], round_: int) -> History:
    first, rounds = whole(state["first"]), [data(body) for body in state["rounds"]]
    demand(first + len(rounds) == round_, f"a history of {len(rounds)} rounds from round {first} on")
    for body in filter(None, rounds):
        coder.open(body, tensors)
    return History(coder, first, rounds, whole(state["keep_rounds"]))


def restored_inbox(state: Mapping[str, Any], coder: Coder) -> Inbox:
    inbox = Inbox(coder, Limits(**state["limits"]))
    inbox.norms.extend(number(norm) for norm in state["norms"])
    inbox.examples.extend(whole(examples, 1) for examples in state["examples"])
    return inbox


def open_round(saved: Any, read: Callable[[ClientId, bytes], object]) -> Round:
    """The round that was open; `read` takes a message that waits."""
    facts = mapping(saved)
    counted = {checked_id(client): whole(examples, 1) for client, examples in mapping(facts["counted"]).items()}
    held = {checked_id(client): data(message) for client, message in mapping(facts["held"]).items()}
    norms = [number(norm) for norm in facts["norms"]]
    demand(set(held) <= set(counted) and len(norms) == len(counted), "the open round")
    for client, message in held.items():
        read(client, message)
    return Round(
        asked=_ids(facts["asked"]), counted=counted, norms=norms, held=held, repeated=_ids(facts["repeated"]),
        refused={checked_id(client): text(reason) for client, reason in mapping(facts["refused"]).items()},
        strangers=whole(facts["strangers"]), cap=_cap(facts["cap"]), bytes_up=whole(facts["bytes_up"]),
        bytes_down=whole(facts["bytes_down"]),
    )  # fmt: skip


def _ids(saved: Any) -> dict[ClientId, None]:
    return dict.fromkeys(map(checked_id, mapping(saved)))


def _cap(saved: Any) -> float | None:
    """At least one example, or as many as a client claims."""
    demand(saved is None or saved == math.inf or whole(saved, 1) >= 1, f"the cap {saved!r}")
    return None if saved is None else saved if saved == math.inf else int(saved)
