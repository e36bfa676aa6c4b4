"""Scenes of jax.distributed's processes in which something is refused, fails or is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_models import gradients, zeros

from sparsewire.jax import broadcast, exchange

SCHEME = "topk(10%) | indices=rice | values=qsgd(bits=7)"


def differing(folder: Path) -> dict[str, Any]:
    """Ranks whose weights or settings differ are refused; `broadcast` makes weights equal."""
    rank = jax.process_index()
    params = {"w": jnp.full((40, 40), rank, jnp.bfloat16), "n": np.full(3, rank), "name": "x"}
    shared = broadcast(params)
    return {
        "weights": error_of(lambda: exchange("topk(1%) | memory=residual").init({"w": params["w"]})),
        "scheme": error_of(lambda: exchange(f"topk({1 + rank}%) | memory=residual").init({"w": shared["w"]})),
        "gradients": error_of(lambda: missing_on(rank)),
        "shared": [float(shared["w"].sum()), int(shared["n"][0]), shared["name"], str(shared["w"].dtype)],
        "trees": error_of(lambda: broadcast({"w": jnp.zeros(2 + rank)})),
    }


def missing_on(rank: int) -> None:
    """The last leaf has no gradient on rank 1."""
    wire = exchange("topk(10%) | memory=residual")
    given = {key: gradients(0, 1)[0][key] for key in ("w", "half")}
    state = wire.init(given)
    wire.update(given if rank != 1 else {**given, "half": None}, state)


def failing(folder: Path) -> dict[str, Any]:
    """The last rank's on_step fails in the third step of a jitted loop: there the error is the one that was raised,
    elsewhere it is told. Nothing can follow in these processes: JAX keeps what failed."""
    rank, last = jax.process_index(), jax.process_count() - 1

    def fails(facts: dict[str, Any]) -> None:
        if rank == last and facts["steps"] == 3:
            raise ZeroDivisionError("out of luck")

    wire = exchange(f"{SCHEME} | memory=residual", on_step=fails)
    given = gradients(rank, 1)[0]
    state, update = wire.init(zeros(given)), jax.jit(wire.update)

    def run(state: Any) -> None:
        with wire.link:
            for _ in range(6):
                mean, state = update(given, state)
                jax.block_until_ready(mean)

    return {"error": error_of(lambda: run(state)), "later": error_of(lambda: wire.update(given, state))}


def killed(folder: Path) -> dict[str, Any]:
    """The last rank is killed in a jitted loop; the others write down what they raise before JAX ends them."""
    rank, last = jax.process_index(), jax.process_count() - 1
    wire = exchange(f"{SCHEME} | memory=residual", timeout=3.0)
    given = gradients(rank, 1)[0]
    state, update = wire.init(zeros(given)), jax.jit(wire.update)

    def run(state: Any) -> None:
        with wire.link:
            for step in range(6):
                if step == 3 and rank == last:
                    os.kill(os.getpid(), signal.SIGKILL)
                mean, state = update(given, state)
                jax.block_until_ready(mean)

    return {"error": error_of(lambda: run(state))}


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
