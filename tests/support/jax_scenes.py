"""Scenes of several processes of jax.distributed, and the script that each of them runs.

    jax_scenes.py SCENES OUT RANK SIZE PORT

Each rank writes OUT/RANK.json: scene -> what it saw, or the traceback of what went wrong.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jax_models import MODELS, batches, digest, distance, gradients, loss_of
from jax_ranks import connect

SCHEME = "topk(10%) | indices=rice | values=qsgd(bits=7)"
LOSSLESS = "nonzero | values=raw | memory=none"


@functools.cache
def compiled(model: str) -> Any:
    """Loss and gradient; compiled once, as that takes longer than all else."""
    import jax

    return jax.jit(jax.value_and_grad(loss_of(model)))


def trained(model: str, wire: Any, optimizer: Any, steps: int, jit: bool = False) -> tuple[Any, list[float]]:
    """The weights after so many steps, and the losses."""
    import jax
    import optax

    tx = wire.chain(optimizer) if hasattr(wire, "chain") else optax.chain(wire, optimizer)
    params = MODELS[model][0]()
    state, losses, computed = tx.init(params), [], compiled(model)

    def whole(params: Any, state: Any, x: Any, y: Any) -> Any:
        value, gradient = computed(params, x, y)
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    step = jax.jit(whole)
    for x, y in batches(model, jax.process_index(), steps):
        if jit:
            params, state, value = step(params, state, x, y)
        else:
            value, gradient = computed(params, x, y)
            updates, state = tx.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
        losses.append(float(value))
    return params, losses


@functools.cache
def summing() -> tuple[Any, Any]:
    """A sharding over all processes, and JAX's own mean over them."""
    import jax

    mesh = jax.make_mesh((jax.process_count(),), ("rank",), devices=jax.devices())
    spread, everywhere = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (["rank"], []))
    mean = jax.jit(lambda tree: jax.tree.map(lambda every: every.mean(0), tree), out_shardings=everywhere)
    return spread, mean


def dense() -> Any:
    """Averages as JAX does."""
    import jax
    import numpy as np
    import optax

    spread, mean = summing()

    def average(updates: Any, params: Any = None) -> Any:
        own = jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(spread, np.asarray(leaf)[None]), updates)
        return jax.tree.map(lambda leaf: jax.numpy.asarray(leaf.addressable_data(0)), mean(own))

    return optax.stateless(average)


# --- scenes ---


def lossless(folder: Path) -> dict[str, float]:
    """How far weights are from those of dense training."""
    import optax

    from sparsewire.jax import exchange

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
    import optax

    from sparsewire.jax import exchange

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
    import jax
    import jax.numpy as jnp

    from sparsewire.jax import exchange

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
    import jax

    return jax.lax.scan(lambda kept, one: wire.update(one, kept)[::-1], state, gradients)


def accumulated(folder: Path) -> dict[str, Any]:
    """Three micro-steps with every=3 are one step with their mean; so are they in jit."""
    import jax
    import optax

    from sparsewire.jax import exchange

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
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    from sparsewire.jax import exchange

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
    import jax
    import numpy as np
    import optax
    import orbax.checkpoint as ocp

    from sparsewire.jax import exchange

    shared = folder.parent / f"{folder.name}-checkpoint"

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


def differing(folder: Path) -> dict[str, Any]:
    """Ranks whose weights or settings differ are refused; `broadcast` makes weights equal."""
    import jax
    import jax.numpy as jnp

    from sparsewire.jax import broadcast, exchange

    rank = jax.process_index()
    params = {"w": jnp.full((40, 40), rank, jnp.bfloat16), "n": np_int(rank), "name": "x"}
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
    from sparsewire.jax import exchange

    wire = exchange("topk(10%) | memory=residual")
    given = {key: gradients(0, 1)[0][key] for key in ("w", "half")}
    state = wire.init(given)
    wire.update(given if rank != 1 else {**given, "half": None}, state)


def zeros(tree: Any) -> Any:
    import jax

    return jax.tree.map(jax.numpy.zeros_like, tree)


def np_int(value: int) -> Any:
    import numpy as np

    return np.full(3, value)


def failing(folder: Path) -> dict[str, Any]:
    """The last rank's on_step fails in the third step of a jitted loop: there the error is the one that was raised,
    elsewhere it is told. Nothing can follow in these processes: JAX keeps what failed."""
    import jax

    from sparsewire.jax import exchange

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
    import jax

    from sparsewire.jax import exchange

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


SCENES: dict[str, Callable[[Path], Any]] = {
    scene.__name__: scene
    for scene in (lossless, recipe, same_bits, accumulated, flax, resumed, differing, failing, killed)
}


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
        os._exit(0)  # JAX would wait for the rank that is gone


if __name__ == "__main__":
    main(*sys.argv[1:])
