"""The client's side: a mod that hands its app uncompressed weights, and compresses what training has changed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MessageType

from sparsewire.codecs.scheme import Spec
from sparsewire.core.statefile import pack_state, unpack_state
from sparsewire.errors import InputError, StaleBase
from sparsewire.federated import Client
from sparsewire.federated.client import MAX_ELEMENTS

from .records import STALE, MessageRecord, find_message_record, replaced, to_message_record, to_record, to_weights

App = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, App], Message]
TREE, ARRAYS = "sparsewire.tree", "sparsewire.arrays"  # in the context's state
log = logging.getLogger("flwr")


def make_mod(scheme: Spec | None = None, *, seed: int = 0, max_elements: int = MAX_ELEMENTS) -> Mod:
    """A mod with settings. scheme: None takes the server's word for it; another than the server's is an error.

    max_elements: of the largest model that the client accepts.
    """

    def configured(msg: Message, ctxt: Context, call_next: App) -> Message:
        received = find_message_record(msg.content)
        if received is None:
            _warn_uncompressed(msg)
            return call_next(msg, ctxt)
        client = load_client(ctxt, received.training)
        if client is None:
            client = Client(scheme, name=ctxt.node_id, seed=seed, max_elements=max_elements)
        return _answer(client, received, msg, ctxt, call_next)

    return configured


mod = make_mod()


def _trains(msg: Message) -> bool:
    return msg.metadata.message_type.split(".")[0] == MessageType.TRAIN


def _warn_uncompressed(msg: Message) -> None:
    if _trains(msg) and msg.content.array_records:
        log.warning("sparsewire: the server's arrays are not compressed; its strategy needs Compressed(strategy, …)")


def _answer(client: Client, received: MessageRecord, msg: Message, ctxt: Context, call_next: App) -> Message:
    """The app's reply; where it was asked to train, with the compressed change in place of its weights."""
    try:
        weights = client.receive(received.message)
    except StaleBase as error:
        return Message(Error(STALE, str(error)), reply_to=msg)
    keep_client(ctxt, received.training, client)
    msg.content = replaced(msg.content, received.key, to_record(weights))
    reply = call_next(msg, ctxt)
    if reply.has_content() and _trains(msg):
        key = _key_of_weights(reply, set(weights), received.key)
        update = client.update(to_weights(reply.content.array_records[key]))
        reply.content = replaced(reply.content, key, to_message_record(received.training, update))
        keep_client(ctxt, received.training, client)
    return reply


def _key_of_weights(reply: Message, names: set[str], key: str) -> str:
    """The record with the names of the model's tensors; of several, the one under the key that the weights had."""
    keys = [candidate for candidate, record in reply.content.array_records.items() if set(record) == names]
    if len(keys) == 1 or key in keys:
        return key if key in keys else keys[0]
    raise InputError(
        f"a reply to a train message needs one ArrayRecord with the names of the arrays that came, not {len(keys)}"
    )


# --- between messages ------------------------------------------------------------------------------------------------


def keep_client(ctxt: Context, training: str, client: Client) -> None:
    """Residual, common weights and what is on its way, as records of the node's state in this run."""
    tree, arrays = pack_state(client.state_dict())
    ctxt.state[TREE] = ConfigRecord({"training": training, "tree": tree})
    ctxt.state[ARRAYS] = ArrayRecord({name: Array(array) for name, array in arrays.items()})


def load_client(ctxt: Context, training: str) -> Client | None:
    """The client as it was after the last message of this training; None before the first, or if it is damaged."""
    if TREE not in ctxt.state or ctxt.state.config_records[TREE].get("training") != training:
        return None
    try:
        tree: Any = ctxt.state.config_records[TREE]["tree"]
        return Client.from_state(unpack_state(tree, to_weights(ctxt.state.array_records[ARRAYS])))
    except Exception as error:
        log.warning("sparsewire: this node's state is damaged, and begins anew: %s", error)
        del ctxt.state[TREE]
        return None
