"""JAX and optax on two ranks: gradients are computed by one jitted function, exchanged, and used by another.

python examples/jax_optax.py                          starts two ranks on this machine
python examples/jax_optax.py RANK SIZE HOST:PORT      is one rank; rank 0 is on HOST
"""

import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import sparsewire.jax

STEPS = 200


def build(seed):
    """A network with two hidden layers."""
    keys, sizes = jax.random.split(jax.random.key(seed), 4), (16, 256, 256, 4)
    pairs = zip(keys, sizes, sizes[1:], strict=False)
    return [{"w": jax.random.normal(key, (a, b)) * (2 / a) ** 0.5, "b": jnp.zeros(b)} for key, a, b in pairs]


def output(params, x):
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def loss_of(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(output(params, x), y).mean()


def draw(random, count):
    """Points, and which of four directions each is nearest to."""
    x = random.normal(size=(count, 16)).astype(np.float32)
    return x, (x[:, :4] + 0.5 * x[:, 4:8] * x[:, 8:12]).argmax(1)


def main(rank, size, coordinator):
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.distributed.initialize(coordinator, size, rank)

    wire = sparsewire.jax.exchange(optimizer="sgd(momentum=0.9)", total_steps=STEPS)
    tx = optax.chain(wire, optax.sgd(0.05, momentum=0.9))
    params = sparsewire.jax.broadcast(build(seed=rank))  # rank 0's
    state = tx.init(params)

    gradient = jax.jit(jax.value_and_grad(loss_of))
    apply = jax.jit(optax.apply_updates, donate_argnums=0)
    random = np.random.default_rng(rank)
    with wire.link:
        for step in range(STEPS):
            loss, gradients = gradient(params, *draw(random, 64))
            updates, state = tx.update(gradients, state, params)  # here the ranks exchange
            params = apply(params, updates)
            if rank == 0 and step % 50 == 49:
                print(f"step {step + 1}: loss {loss:.3f}")

    stats = wire.link.stats()
    x, y = draw(np.random.default_rng(99), 4000)
    accuracy = (output(params, x).argmax(1) == y).mean()
    print(f"rank {rank}: sum of weights {sum(float(layer['w'].sum()) for layer in params):.6f}")
    if rank == 0:
        print(f"accuracy {100 * accuracy:.1f}%")
        print(f"sent {stats['bytes_sent'] / 1e6:.2f} MB instead of {stats['bytes_dense'] / 1e6:.2f} MB")
        print(stats["recipe"])


def start(size):
    """All ranks, on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    words = [[sys.executable, __file__, str(rank), str(size), coordinator] for rank in range(size)]
    children = [subprocess.Popen(command) for command in words]
    sys.exit(max(abs(child.wait()) for child in children))


if __name__ == "__main__":
    if len(sys.argv) == 1:
        start(size=2)
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
