"""Step times and bytes of `sparsewire.jax` beside JAX's own steps, on two processes of this machine.

python benchmarks/jax_step.py -o docs/results/jax.json

Every arm makes its steps in turns with the others, so what the machine does besides is in all of them. "alone" is JAX
without any exchange, on both processes at once; "jax" averages dense by JAX's own collective (gloo).
"""

import argparse
import functools
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS, STEPS, RANKS = 6, 5, 2
SIZES = {"1.1M": (256, 900, 900, 64), "6.3M": (512, 2200, 2200, 128)}
LOSSLESS = "nonzero | values=raw | memory=none"
SCHEME = "topk(1%) | indices=rice | values=qsgd(bits=7) | memory=gain(momentum=0.9)"
ARMS = {
    "alone": None, "jax, dense": None, "lossless, outside jit": LOSSLESS, "top 1%, outside jit": SCHEME,
    "top 1%, in jit": SCHEME,
}  # fmt: skip


def build(sizes):
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.key(0), len(sizes))
    pairs = zip(keys, sizes, sizes[1:], strict=False)
    return [{"w": jax.random.normal(key, (a, b)) * (2 / a) ** 0.5, "b": jnp.zeros(b)} for key, a, b in pairs]


def loss_of(params, x):
    import jax
    import jax.numpy as jnp

    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return jnp.mean((x @ params[-1]["w"] + params[-1]["b"] - 1) ** 2)


@functools.cache
def averaging():
    """A sharding over all processes, and a mean over them."""
    import jax

    mesh = jax.make_mesh((RANKS,), ("rank",), devices=jax.devices())
    spread, everywhere = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (["rank"], []))
    mean = jax.jit(lambda tree: jax.tree.map(lambda every: every.mean(0), tree), out_shardings=everywhere)
    return spread, mean


def dense_mean(gradients):
    import jax

    spread, mean = averaging()
    own = jax.tree.map(
        lambda x: jax.make_array_from_single_device_arrays((RANKS, *x.shape), spread, [x[None]]), gradients
    )
    return jax.tree.map(lambda x: x.addressable_data(0), mean(own))


class Arm:
    """One way to train, with its own weights."""

    def __init__(self, name, sizes):
        import jax
        import optax

        import sparsewire.jax

        self.name, self.params, self.seconds = name, build(sizes), []
        self.wire = None
        chain = [optax.sgd(0.001, momentum=0.9)]
        if ARMS[name]:
            self.wire = sparsewire.jax.exchange(ARMS[name], optimizer="sgd(momentum=0.9)")
            chain.insert(0, self.wire)
        tx = optax.chain(*chain)
        self.state = tx.init(self.params)
        gradient, inner = jax.jit(jax.grad(loss_of)), optax.sgd(0.001, momentum=0.9)

        def applied(params, gradients, state):
            updates, state = inner.update(gradients, state, params)
            return optax.apply_updates(params, updates), state

        def whole(params, state, x):
            updates, state = tx.update(jax.grad(loss_of)(params, x), state, params)
            return optax.apply_updates(params, updates), state

        apply = jax.jit(applied, donate_argnums=(0, 2))

        def between(params, state, x):
            gradients = gradient(params, x)
            if self.wire is None:
                means, outer = dense_mean(gradients), state[:-1]
            else:
                means, first = self.wire.update(gradients, state[0], params)
                outer = (first,)
            params, kept = apply(params, means, state[-1])
            return params, (*outer, kept)

        in_one = name == "alone" or name.endswith("in jit")
        self.step = jax.jit(whole, donate_argnums=(0, 1)) if in_one else between

    def run(self, x, steps):
        import jax

        for _ in range(steps):
            begin = time.perf_counter()
            self.params, self.state = self.step(self.params, self.state, x)
            jax.block_until_ready(self.params)
            self.seconds.append(time.perf_counter() - begin)

    def report(self):
        seen = {"step_ms": 1000 * statistics.median(self.seconds[STEPS:])}
        if self.wire is not None:
            stats = self.wire.link.stats()
            seen |= {name: stats[name] / stats["steps"] for name in ("bytes_sent", "bytes_dense")}
        return {name: round(value, 1) for name, value in seen.items()}


def rank_main(rank, port):
    import jax
    import numpy as np

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.distributed.initialize(f"127.0.0.1:{port}", RANKS, rank)
    seen = {}
    for size, sizes in SIZES.items():
        arms = [Arm(name, sizes) for name in ARMS]
        x = np.random.default_rng(rank).normal(size=(64, sizes[0])).astype(np.float32)
        for _ in range(ROUNDS + 1):
            for arm in arms:
                arm.run(x, STEPS)
        seen[size] = {arm.name: arm.report() for arm in arms}
    if rank == 0:
        print(json.dumps(seen))


def main(output):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    facts = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    command = [sys.executable, __file__, "--port", str(port), "--rank"]
    children = [subprocess.Popen([*command, str(rank)], env=facts, stdout=subprocess.PIPE) for rank in range(RANKS)]
    text = children[0].communicate()[0].decode().splitlines()[-1]
    assert not any(child.wait() for child in children)
    import jax

    about = {"jax": jax.__version__, "ranks": RANKS, "cpus": os.cpu_count(), "machine": platform.machine()}
    results = {"what": "median step, ms; bytes a step and rank", **about, "sizes": json.loads(text)}
    print(json.dumps(results, indent=1))
    if output:
        output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port")
    args = parser.parse_args()
    main(args.output) if args.rank is None else rank_main(args.rank, args.port)
