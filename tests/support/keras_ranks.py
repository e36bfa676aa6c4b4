"""Starts ranks of a Keras training for tests, and the script that each of them runs.

    keras_ranks.py BACKEND OUT RANK SIZE PORTS SCENES

Each rank plays the scenes one after another and writes OUT/RANK.json: scene -> "" or the traceback.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from host_ranks import environment, free_port

SCRIPT = Path(__file__)
KILLED = "the_other_is_killed"  # the scene after which there is nobody to wait for
QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
    "TF_NUM_INTRAOP_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}


def start(backend: str, folder: Path, ranks: int, *scenes: str) -> list[subprocess.Popen[bytes]]:
    """All ranks; what they print is in `RANK.log` of the folder."""
    ports, children = [str(free_port()) for _ in range(ranks)], []
    for rank in range(ranks):
        facts = {**environment(), **QUIET, "KERAS_BACKEND": backend}
        if backend == "tensorflow":
            cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
            facts["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
        words = [backend, str(folder), str(rank), str(ranks), ports[0], ",".join(scenes)]
        with (folder / f"{rank}.log").open("wb") as log:
            command = [sys.executable, str(SCRIPT), *words]
            children.append(subprocess.Popen(command, env=facts, stdout=log, stderr=subprocess.STDOUT))
    return children


def finish(children: list[subprocess.Popen[bytes]], folder: Path, limit: float = 400) -> list[dict[str, str]]:
    """What each rank wrote."""
    deadline = time.monotonic() + limit
    try:
        for child in children:
            status = child.wait(max(0.1, deadline - time.monotonic()))
            assert status == 0, said(folder, len(children))
    except subprocess.TimeoutExpired:
        raise AssertionError(said(folder, len(children))) from None
    finally:
        end(children)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(len(children))]


def said(folder: Path, ranks: int) -> str:
    return "\n".join(f"--- rank {rank}\n{(folder / f'{rank}.log').read_text()[-3000:]}" for rank in range(ranks))


def end(children: list[subprocess.Popen[bytes]]) -> None:
    for child in children:
        child.kill()
        child.wait()


def connect(backend: str, rank: int, size: int, port: str) -> None:
    """Joins the other ranks, before anything else is done with the backend."""
    if backend == "tensorflow":
        import tensorflow as tf

        tf.distribute.MultiWorkerMirroredStrategy()
    elif backend == "jax":
        import jax

        jax.config.update("jax_cpu_enable_async_dispatch", False)
        jax.distributed.initialize(f"127.0.0.1:{port}", size, rank, initialization_timeout=60)
    else:
        from datetime import timedelta

        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=timedelta(seconds=30)
        )


def play(backend: str, folder: str, rank: str, size: str, port: str, scenes: str) -> None:
    connect(backend, int(rank), int(size), port)
    import scenes_keras
    from comm_ranks import attempt
    from keras_trainings import Place

    place = Place(Path(folder), int(rank), int(size))
    results: dict[str, str] = {}
    for name in scenes.split(","):
        start = time.monotonic()
        attempt(results, name, lambda name=name: getattr(scenes_keras, name)(place))
        print(f"{name}: {time.monotonic() - start:.1f} s\n{results[name]}", flush=True)
        (Path(folder) / f"{rank}.json").write_text(json.dumps(results))
        if results[name] or name == KILLED:
            os._exit(bool(results[name]))  # the others would wait, or have gone
    place.leave()


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", sys.argv[1])
    play(*sys.argv[1:])
