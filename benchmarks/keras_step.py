"""Step times and bytes of Keras on two processes of this machine, on each backend, beside steps that exchange nothing.

    python benchmarks/keras_step.py --json docs/results/keras.json

Each process trains three copies of a network of 5.8 million weights in turn, some steps at a time: by Keras alone, with
dense exchanges, and with the recipe's top-k of 1 %. So all of them meet the same load of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
BACKENDS = ("tensorflow", "jax", "torch")
RANKS, ROUNDS, STEPS, BATCH = 2, 4, 5, 64
ARMS: dict[str, dict[str, Any] | None] = {"alone": None, "dense": {"warmup_steps": 10**6}, "topk(1%)": {}}


def arm_of(settings: dict[str, Any] | None) -> tuple[Any, Any]:
    """A compiled model and its link."""
    import keras

    import sparsewire.keras

    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(2048, "relu"), keras.layers.Dense(2048, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((784,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
    return model, None if settings is None else sparsewire.keras.attach(model, "topk(1%)", **settings)


def measure(rank: int) -> dict[str, Any]:
    """By arm: median seconds of a step, and bytes that this rank sends in one."""
    import numpy as np

    random = np.random.default_rng(rank)
    x, y = random.normal(size=(BATCH, 784)).astype("float32"), random.integers(0, 10, BATCH)
    arms = {name: arm_of(settings) for name, settings in ARMS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    sent = dict.fromkeys(arms, 0.0)
    for turn in range(ROUNDS + 1):  # the first one compiles
        for name, (model, link) in arms.items():
            before = link.stats()["bytes_sent"] if link else 0
            for _ in range(STEPS):
                start = time.perf_counter()
                model.train_on_batch(x, y)  # gives the loss, so the step is over
                if turn:
                    seconds[name].append(time.perf_counter() - start)
            sent[name] = ((link.stats()["bytes_sent"] if link else 0) - before) / STEPS
    weights = int(sum(np.prod(one.shape) for one in arms["alone"][0].trainable_variables))
    found = {name: {"seconds": statistics.median(seconds[name]), "bytes_sent": sent[name]} for name in arms}
    return {"arms": found, "dense_bytes": 4 * weights, "weights": weights}


def rank_main(backend: str, rank: int, port: str, out: str) -> None:
    from keras_ranks import connect

    connect(backend, rank, RANKS, port)
    Path(out).write_text(json.dumps(measure(rank)))
    from keras_trainings import Place

    Place(Path("."), rank, RANKS).leave()


def both_ranks(backend: str, folder: Path) -> dict[str, Any]:
    from host_ranks import free_port

    ports, children = [str(free_port()) for _ in range(RANKS)], []
    for rank in range(RANKS):
        facts = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
        facts |= {"TF_NUM_INTRAOP_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
        if backend == "tensorflow":
            cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
            facts["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
        words = ["--rank", backend, str(rank), ports[0], str(folder / f"{backend}-{rank}.json")]
        children.append(subprocess.Popen([sys.executable, __file__, *words], env=facts))
    if any(child.wait(400) for child in children):
        raise SystemExit(f"a rank on {backend} failed")
    found = [json.loads((folder / f"{backend}-{rank}.json").read_text()) for rank in range(RANKS)]
    slowest = {
        name: {
            "seconds": max(one["arms"][name]["seconds"] for one in found),
            "bytes_sent": found[0]["arms"][name]["bytes_sent"],
        }
        for name in ARMS
    }
    return {**found[0], "backend": backend, "arms": slowest}


def main() -> None:
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.rank:
        backend, rank, port, out = given.rank
        rank_main(backend, int(rank), port, out)
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for backend in given.backends:
            rows.append(both_ranks(backend, Path(folder)))
            times = {name: f"{1000 * arm['seconds']:.0f} ms" for name, arm in rows[-1]["arms"].items()}
            print(
                backend, times, {name: round(arm["bytes_sent"]) for name, arm in rows[-1]["arms"].items()}, flush=True
            )
    if given.json:
        settings = {"ranks": RANKS, "batch": BATCH, "steps": ROUNDS * STEPS, "cpus": os.cpu_count()}
        given.json.write_text(json.dumps({**settings, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
