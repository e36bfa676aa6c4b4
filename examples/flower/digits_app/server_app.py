"""The server: Flower's FedAvg. `Compressed(…)` around it is all that compression adds; the rest prints what it did."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result

from digits_app import task
from sparsewire.flower import Compressed

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    strategy = Compressed(
        FedAvg(fraction_train=float(settings["fraction-train"]), fraction_evaluate=0.2),
        str(settings["scheme-up"]),
        str(settings["scheme-down"]),
    )
    start = ArrayRecord({name: Array(array) for name, array in task.initial_weights().items()})
    rounds = int(settings["num-server-rounds"])
    tell(strategy.start(grid, start, num_rounds=rounds, evaluate_fn=on_the_server), rounds)


def on_the_server(_: int, arrays: ArrayRecord) -> MetricRecord:
    weights = {name: array.numpy() for name, array in arrays.items()}
    return MetricRecord({"accuracy": task.accuracy(weights, *task.test_data())})


def tell(result: Result, rounds: int) -> None:
    print(f"accuracy after {rounds} rounds: {result.evaluate_metrics_serverapp[rounds]['accuracy']:.3f}")
    for way in ("up", "down"):
        sent, dense = (total(result, f"sparsewire-{name}-{way}") for name in ("bytes", "dense-bytes"))
        print(f"{way}: {sent:,.0f} bytes, {dense / sent:.1f} times fewer than dense")


def total(result: Result, name: str) -> float:
    phases = (result.train_metrics_clientapp, result.evaluate_metrics_clientapp)
    return sum(float(metrics.get(name, 0)) for phase in phases for metrics in phase.values())  # type: ignore[arg-type]
