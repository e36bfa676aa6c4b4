"""Scenes of several processes of jax.distributed, and the script that each of them runs.

    jax_scenes.py SCENES OUT RANK SIZE PORT

Each rank writes OUT/RANK.json: scene -> what it saw, or the traceback of what went wrong.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_failures import SCHEME, differing, error_of, failing, killed
from jax_models import MODELS, batches, compiled, dense, digest, distance, gradients, trained, zeros
from jax_ranks import connect

from sparsewire.jax import exchange

LOSSLESS = "nonzero | values=raw | memory=none"


# --- scenes ---


def lossless(folder: Path) -> dict[str, float]:
    """How far weights are from those of dense training."""
    seen = {}
    for model in MODELS:
        for name, optimizer in {"sgd": optax.sgd(0.05, momentum=0.9), "adam": optax.adam(0.01)}.items():
            wire = exchange(LOSSLESS, optimizer="sgd(momentum=0.9)" if name == "sgd" else "adam")
            params, _ = trained(model, wire, optimizer, 6)
            wire.link.detach()
            plain, _ = trained(model, dense(), optimizer, 6)
            seen[f"{model} {name}"] = distance(params, plain) / max(1.0, distance(plain, zeros(plain)))
    return seen


def recipe(folder: Path) -> dict[str, Any]:
    """The default trains, and sends less."""
    seen: dict[str, Any] = {}
    cases = {"sgd(momentum=0.9)": optax.sgd(0.05, momentum=0.9), "adam(b1=0)": optax.adam(0.01, b1=0.0)}
    for given, optimizer in cases.items():
        wire = exchange(optimizer=given, total_steps=100, dense_below=0)
        with wire.link:
            params, losses = trained("mlp", wire, optimizer, 100, jit=True)
        stats = wire.link.stats()
        seen[given] = {
            "first": sum(losses[:10]), "last": sum(losses[-10:]), "digest": digest(params), "recipe": stats["recipe"],
            "steps": stats["steps"], "saved": stats["bytes_dense"] / stats["bytes_sent"],
        }  # fmt: skip
    return seen


def same_bits(folder: Path) -> dict[str, Any]:
    """Digests of the means of the same gradients: without jit, in jit, and in a scan with donated gradients."""
    rank, seen = jax.process_index(), {}
    for way in ("outside", "jit", "scan"):
        wire = exchange(f"{SCHEME} | memory=dgc(momentum=0.9)", optimizer="sgd(momentum=0.9)", dense_below=100)
        given = gradients(rank, 6)
        state = wire.init(zeros(given[0]))
        if way == "scan":
            together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *given)
            run = jax.jit(functools.partial(scanned, wire), donate_argnums=(0, 1))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # donated buffers that JAX cannot use
                state, stacked = run(state, together)
            means = [jax.tree.map(lambda leaf, step=step: leaf[step], stacked) for step in range(6)]
        else:
            update, means = jax.jit(wire.update) if way == "jit" else wire.update, []
            for one in given:
                mean, state = update(one, state)
                means.append(mean)
        seen[way] = [digest(mean) for mean in means]
        seen["kept structure"] = jax.tree.structure(means[0]) == jax.tree.structure(gradients(rank, 1)[0])
        seen["kept dtypes"] = [str(leaf.dtype) for leaf in jax.tree.leaves(means[0])]
        seen["step"] = int(state.step)
        wire.link.detach()
    return seen


def scanned(wire: Any, state: Any, gradients: Any) -> Any:
    """State and means after one step for each gradient."""
    return jax.lax.scan(lambda kept, one: wire.update(one, kept)[::-1], state, gradients)


def accumulated(folder: Path) -> dict[str, Any]:
    """Three micro-steps with every=3 are one step with their mean; so are they in jit."""
    rank, seen = jax.process_index(), {}
    given = [{"w": one["w"]} for one in gradients(rank, 6)]
    for way in ("every", "every in jit", "mean"):
        wire = exchange(LOSSLESS, optimizer="sgd(momentum=0.9)", every=1 if way == "mean" else 3)
        tx = wire.chain(optax.sgd(0.1, momentum=0.9))
        params = zeros(given[0])
        state = tx.init(params)
        if way == "mean":
            given = [{"w": sum(one["w"] for one in given[at : at + 3]) / 3} for at in (0, 3)]
        update, moved = jax.jit(tx.update) if "jit" in way else tx.update, []
        for one in given:
            updates, state = update(one, state, params)
            params = optax.apply_updates(params, updates)
            moved.append(bool(updates["w"].any()))
        seen[way] = {"moved": moved, "steps": wire.link.step}
        if way == "every":
            first = params
        seen[way]["distance"] = distance(first, params)
        wire.link.detach()
    return seen


def flax(folder: Path) -> dict[str, Any]:
    """nnx.Optimizer in nnx.jit."""
    from flax import nnx

    wire = exchange(optimizer="sgd(momentum=0.9)", total_steps=60, dense_below=0)
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(nnx.Linear(8, 40, rngs=rngs), nnx.Dropout(0.1, rngs=rngs), nnx.relu,
                           nnx.Linear(40, 1, rngs=rngs))  # fmt: skip
    optimizer = nnx.Optimizer(model, optax.chain(wire, optax.sgd(0.05, momentum=0.9)), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        loss, gradient = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        optimizer.update(model, gradient)
        return loss

    losses = [float(step(model, optimizer, x, y)) for x, y in batches("mlp", jax.process_index(), 60)]
    stats = wire.link.stats()
    wire.link.detach()
    weights = digest(nnx.state(model, nnx.Param))
    names = sorted(wire.link.averager.sizes)
    return {"first": sum(losses[:9]), "last": sum(losses[-9:]), "digest": weights, "steps": stats["steps"],
            "names": names}  # fmt: skip


def resumed(folder: Path) -> dict[str, Any]:
    """Weights after eight steps, and those of a training that goes on after four from what orbax and the link saved."""
    import orbax.checkpoint as ocp

    shared = folder / "checkpoint"

    def opened() -> tuple[Any, Any]:
        wire = exchange(SCHEME, optimizer="sgd(momentum=0.9)", ratio=None)
        return wire, optax.chain(wire, optax.sgd(0.05, momentum=0.9))

    def go_on(tx: Any, params: Any, state: Any, steps: range) -> tuple[Any, Any]:
        for step, batch in enumerate(batches("mlp", jax.process_index(), steps.stop)):
            if step in steps:
                updates, state = tx.update(compiled("mlp")(params, *batch)[1], state, params)
                params = optax.apply_updates(params, updates)
        return params, state

    wire, tx = opened()
    params = MODELS["mlp"][0]()
    half = go_on(tx, params, tx.init(params), range(4))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(shared / "jax", jax.tree.map(np.asarray, {"params": half[0], "opt": half[1]}))
    wire.link.save(shared / "wire")
    whole, _ = go_on(tx, *half, range(4, 8))
    wire.link.detach()

    wire, tx = opened()
    fresh = {"params": params, "opt": tx.init(params)}
    with ocp.StandardCheckpointer() as checkpointer:
        saved = checkpointer.restore(shared / "jax", jax.tree.map(np.asarray, fresh))
    wire.link.load(shared / "wire")
    again, _ = go_on(tx, saved["params"], saved["opt"], range(4, 8))
    wire.link.detach()

    wire, tx = opened()
    tx.init(params)
    return {"whole": digest(whole), "again": digest(again), "without load": error_of(
        lambda: go_on(tx, saved["params"], saved["opt"], range(4, 5)))}  # fmt: skip


SCENES: dict[str, Callable[[Path], Any]] = {
    scene.__name__: scene
    for scene in (lossless, recipe, same_bits, accumulated, flax, resumed, differing, failing, killed)
}


def wait_for_survivors(folder: Path, count: int) -> None:
    """Once rank 0 has gone, JAX's service goes with it and aborts those that are still writing."""
    deadline = time.monotonic() + 30
    while len(list(folder.glob("*.json"))) < count and time.monotonic() < deadline:
        time.sleep(0.05)


def main(names: str, folder: str, rank: str, size: str, port: str) -> None:
    connect(rank, size, port)
    seen: dict[str, Any] = {}
    for name in names.split(","):
        try:
            begin = time.monotonic()
            seen[name] = SCENES[name](Path(folder))
            print(name, time.monotonic() - begin, flush=True)
        except Exception:
            seen[name] = traceback.format_exc()
        (Path(folder) / f"{rank}.json").write_text(json.dumps(seen))
    if names == "killed":
        wait_for_survivors(Path(folder), int(size) - 1)
        os._exit(0)  # JAX would wait for the rank that is gone


if __name__ == "__main__":
    main(*sys.argv[1:])
