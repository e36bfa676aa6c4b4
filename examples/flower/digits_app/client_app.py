"""A client: trains on its part of the pictures. `mods=[mod]` is all that compression adds."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app import task
from sparsewire.flower import mod

app = ClientApp(mods=[mod])


def own_data(context: Context) -> tuple[task.Array, task.Labels]:
    return task.partition(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))


def weights_in(message: Message) -> task.Weights:
    return {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}


@app.train()
def train(message: Message, context: Context) -> Message:
    weights, (pixels, labels) = weights_in(message), own_data(context)
    settings, turn = context.run_config, message.content.config_records["config"]["server-round"]
    loss = task.train(
        weights, pixels, labels, int(settings["local-epochs"]), float(settings["learning-rate"]), seed=int(turn)
    )
    arrays = ArrayRecord({name: Array(array) for name, array in weights.items()})
    metrics = MetricRecord({"num-examples": len(labels), "train-loss": loss})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    pixels, labels = own_data(context)
    found = task.accuracy(weights_in(message), pixels, labels)
    metrics = MetricRecord({"num-examples": len(labels), "accuracy": found})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
