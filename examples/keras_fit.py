"""A Keras model that several processes train: one line, `attach`, and the link as the first callback.

python examples/keras_fit.py                            starts two ranks on this machine, on TensorFlow
KERAS_BACKEND=jax python examples/keras_fit.py          the same on JAX; or torch
"""

import json
import os
import socket
import subprocess
import sys

RANKS, EPOCHS, BATCH, EXAMPLES = 2, 4, 32, 4096
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def connect(rank: int, port: int) -> None:
    """Each backend's own way to join the other processes. TensorFlow must be told first of all."""
    backend = os.environ["KERAS_BACKEND"]
    if backend == "tensorflow":
        import tensorflow as tf

        tf.distribute.MultiWorkerMirroredStrategy()  # starts the cluster that TF_CONFIG describes
    elif backend == "jax":
        import jax

        jax.distributed.initialize(f"127.0.0.1:{port}", RANKS, rank)
    else:
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)


def main(rank: int, port: int) -> None:
    connect(rank, port)
    import keras
    import numpy as np

    import sparsewire.keras

    random = np.random.default_rng(0)
    labels = random.integers(0, 10, EXAMPLES)
    x = (random.normal(size=(10, 64))[labels] + 1.5 * random.normal(size=(EXAMPLES, 64))).astype("float32")
    train, test = slice(rank, 3072, RANKS), slice(3072, None)  # each rank has a share

    keras.utils.set_random_seed(rank)
    layers = [keras.layers.Dense(512, "relu"), keras.layers.Dense(512, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.02, momentum=0.9), loss, metrics=["accuracy"])

    steps = EPOCHS * len(labels[train]) // BATCH
    with sparsewire.keras.attach(model, total_steps=steps) as link:  # after compile: all ranks get rank 0's weights
        early = keras.callbacks.EarlyStopping("val_loss", patience=3)
        data = {"validation_data": (x[test], labels[test]), "batch_size": BATCH}
        history = model.fit(x[train], labels[train], epochs=EPOCHS, verbose=0, callbacks=[link, early], **data)
        stats = link.stats()
        if rank == 0:
            print(f"accuracy {history.history['val_accuracy'][-1]:.3f} after {stats['steps']} steps")
            print(f"sent {stats['bytes_sent'] / 1e6:.2f} MB, dense steps {stats['bytes_dense'] / 1e6:.1f} MB")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(int(sys.argv[1]), int(sys.argv[2]))
    else:
        probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(RANKS)]
        ports = [probe.getsockname()[1] for probe in probes]
        for probe in probes:
            probe.close()
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        children = [
            subprocess.Popen(
                [sys.executable, __file__, str(rank), str(ports[0])],
                env=os.environ
                | {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})},
            )
            for rank in range(RANKS)
        ]
        sys.exit(max(child.wait() for child in children))
