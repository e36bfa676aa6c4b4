"""An exchange within one process: what it refuses and notices, and ranks that are threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import edit

from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import AccuracyWarning, CommError, InputError, SchemeError, SparsewireError

jax = pytest.importorskip("jax", reason="jax is not installed")
optax = pytest.importorskip("optax", reason="optax is not installed")

import jax.numpy as jnp  # noqa: E402

from sparsewire.jax import Exchange, broadcast, exchange  # noqa: E402

LOSSLESS = "nonzero | values=raw | memory=none"
PARAMS = {"w": np.zeros((40, 30), np.float32), "b": np.zeros(3, np.float32)}


@pytest.mark.parametrize("arguments, words", [
    ({}, 'write exchange(optimizer="sgd(momentum=0.9)", total_steps=…), or name the memory'),
    ({"scheme": "topk(1%)"}, "optimizer=None"),
    ({"scheme": "auto", "optimizer": None}, "no auto"),
    ({"scheme": "pactrain(ratio=50%)"}, "for PyTorch"),
    ({"optimizer": "adam"}, 'optax.adam(…, b1=0.0) and exchange(…, optimizer="adam(b1=0)")'),
    ({"optimizer": "rmsprop(momentum=0.9)"}, "leave it out"),
    ({"optimizer": "lion"}, "steps by a sign"),
    ({"optimizer": "muon", "total_steps": 10_000, "ratio": 0.01}, "exchange(optimizer=…, ratio=0.1)"),
    ({"optimizer": "sgdd"}, "did you mean 'sgd'"),
    ({"optimizer": "sgd(0.9)"}, "by name: momentum, nesterov"),
    ({"optimizer": "sgd(rate=0.1)"}, "by name: momentum, nesterov"),
    ({"optimizer": "sgd(momentum=1)"}, "0 or more and below 1"),
    ({"optimizer": "adam(b1=0)", "memory": "dgc(momentum=0.9)"}, "with adam write memory=residual"),
    ({"optimizer": "sgd(momentum=0.8)", "memory": "dgc(momentum=0.9)"}, "make them equal"),
    ({"optimizer": "sgd(momentum=0.9, nesterov=true)", "memory": "dgc(momentum=0.9)"}, "nesterov=False"),
    ({"optimizer": object()}, "transformation does not tell its settings"),
    ({"optimizer": "sgd", "every": 0}, "every is a number of micro-steps"),
    ({"optimizer": "sgd", "total_steps": 0}, "total_steps"),
    ({"optimizer": "sgd", "timeout": -1}, "timeout is a number of seconds"),
    ({"optimizer": "sgd", "comm": 3}, "comm is a Communicator"),
    ({"scheme": "topk(1%) | memory=residual", "memory": "residual"}, "given twice"),
])  # fmt: skip
def test_a_refusal_names_the_line_to_write(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises((InputError, SchemeError)) as told:
        exchange(**arguments)
    assert words in str(told.value)


def test_momentum_behind_a_residual_is_warned_of() -> None:
    with pytest.warns(AccuracyWarning, match="gain"):
        exchange("topk(1%) | memory=residual", optimizer="sgd(momentum=0.77)")


def test_all_that_is_excluded_needs_no_memory_that_fits() -> None:
    wire = exchange("topk(1%) | memory=residual", optimizer="adam(b1=0)", exclude="*")
    wire.init(PARAMS)
    assert "exclude" not in repr(wire) and wire.link.stats()["steps"] == 0


def test_launched_ranks_that_do_not_know_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with pytest.raises(CommError, match=r"jax.distributed.initialize\(\) first, or pass comm="):
        exchange(LOSSLESS)


def test_multi_steps_is_noticed() -> None:
    tx = optax.MultiSteps(optax.chain(exchange(LOSSLESS), optax.sgd(0.1)), every_k_schedule=2)
    state = tx.init(PARAMS)
    with pytest.raises(InputError, match=r"exchange\(…, every=k\)"):
        tx.update(PARAMS, state, PARAMS)


def test_apply_if_finite_stands_behind_the_exchange() -> None:
    def rank(comm: Communicator) -> tuple[float, int]:
        wire = exchange("topk(5%) | memory=residual", comm=comm)
        tx = optax.chain(wire, optax.apply_if_finite(optax.sgd(0.1), 5))
        state = tx.init(PARAMS)
        updates, state = tx.update({"w": jnp.full((40, 30), jnp.nan if comm.rank else 1.0), "b": jnp.ones(3)}, state)
        return float(updates["w"].sum()), int(state[1].total_notfinite)

    assert run_ranks(2, rank) == [(0.0, 1)] * 2
    around = optax.apply_if_finite(exchange(LOSSLESS), 5)
    with pytest.raises(InputError, match=r"optax.chain\(wire, optax.apply_if_finite"):
        around.update(PARAMS, around.init(PARAMS))


def test_every_needs_the_optimizer() -> None:
    with pytest.raises(InputError, match=r"wire.chain\(optimizer\)"):
        optax.chain(exchange(LOSSLESS, every=2), optax.sgd(0.1)).init(PARAMS)


def test_gradients_of_others_are_refused_at_once() -> None:
    wire = exchange(LOSSLESS)
    with pytest.raises(InputError, match=r"tx.init\(params\)"):
        wire.update(PARAMS, optax.EmptyState())
    state = wire.init(PARAMS)
    with pytest.raises(InputError, match=r"'new'.* did not have"):
        jax.jit(wire.update)({**PARAMS, "new": jnp.ones(2)}, state)
    with pytest.raises(InputError, match=r"'b'.*\[4\], not \[3\]"):
        wire.update({**PARAMS, "b": jnp.ones(4)}, state)
    wire.update(PARAMS, state)
    with pytest.raises(InputError, match="give zeros"):
        wire.update({"w": PARAMS["w"]}, state)
    with pytest.raises(InputError, match="other parameters before"):
        wire.init({"w": np.zeros(2, np.float32)})


def test_one_process_alone_gets_its_own_gradients() -> None:
    given = {"w": jnp.ones((40, 30)), "s": 2.5, "none": None, "n": jnp.arange(3), "t": (jnp.float32(3.0),)}
    wire = exchange(LOSSLESS)
    state = wire.init(given)
    mean, state = wire.update(given, state)
    assert jax.tree.structure(mean) == jax.tree.structure(given)
    assert all((one == two).all() for one, two in zip(*map(jax.tree.leaves, (mean, given)), strict=True))
    assert int(state.step) == wire.link.step == 1


def test_parameters_of_a_jitted_init_are_agreed_on_at_the_first_step() -> None:
    wire = exchange("topk(10%) | memory=residual")
    state = jax.jit(wire.init)(PARAMS)
    with pytest.raises(InputError, match="without jit"):
        wire.link.stats()
    wire.update(PARAMS, state)
    assert wire.link.stats()["steps"] == 1


def test_init_begins_anew() -> None:
    wire = exchange("topk(10%) | memory=residual")
    given = {"w": jnp.ones((40, 30)), "b": jnp.ones(3)}
    first, _ = wire.update(given, wire.init(PARAMS))
    again, _ = wire.update(given, wire.init(PARAMS))
    assert (first["w"] == again["w"]).all() and wire.link.step == 1


def test_shardings_are_kept_outside_jit() -> None:
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    spread = jax.NamedSharding(mesh, jax.P("data"))
    given = {"w": jax.device_put(jnp.arange(64.0).reshape(8, 8), spread), "b": jnp.ones(3)}
    wire = exchange(LOSSLESS)
    mean, _ = wire.update(given, wire.init(given))
    assert mean["w"].sharding == spread and (mean["w"] == given["w"]).all()
    assert mean["b"].sharding == given["b"].sharding


def test_on_step_may_ask_for_stats() -> None:
    seen: list[int] = []
    wire = exchange(LOSSLESS, on_step=lambda facts: seen.append(wire.link.stats()["steps"]))
    state, update = wire.init(PARAMS), jax.jit(wire.update)
    for _ in range(3):
        _, state = update(PARAMS, state)
    assert wire.link.step == 3 and seen == [1, 2, 3]


def test_a_detached_link_is_done() -> None:
    wire = exchange(LOSSLESS)
    with wire.link as link:
        state = wire.init(PARAMS)
    assert "detached" in repr(link)
    with pytest.raises(SparsewireError, match="detached"):
        wire.update(PARAMS, state)


def test_chain_of_one_micro_step_is_optax_chain() -> None:
    wire = exchange(LOSSLESS, optimizer="sgd(momentum=0.9)")
    assert isinstance(wire, Exchange)
    params, plain = {"w": jnp.ones((4, 4))}, optax.sgd(0.1, momentum=0.9)
    ours, _ = (tx := wire.chain(plain)).update(params, tx.init(params), params)
    theirs, _ = plain.update(params, plain.init(params), params)
    assert (ours["w"] == theirs["w"]).all()


def test_threads_are_ranks_too(tmp_path: Path) -> None:
    """What is not sent is in the residuals, and saved, also for another number of ranks."""

    def rank(comm: Communicator) -> Any:
        wire = exchange("topk(10%) | values=raw | memory=residual", comm=comm)
        state = wire.init(PARAMS)
        given = {"w": jnp.full((40, 30), 1.0 + comm.rank), "b": jnp.full(3, 1.0 + comm.rank)}
        mean, state = wire.update(given, state)
        wire.link.save(tmp_path)
        return mean

    mean, other = run_ranks(2, rank)
    assert all((one == two).all() for one, two in zip(*map(jax.tree.leaves, (mean, other)), strict=True))
    assert int((mean["w"] != 0).sum()) <= 240 and (mean["b"] == 1.5).all()
    wire = exchange("topk(10%) | values=raw | memory=residual")
    wire.init(PARAMS)
    wire.link.load(tmp_path)
    left = wire.link.state_dict()["buffers"]["w"]["residual"]
    assert left.sum() == pytest.approx(1.5 * 1200 - float(mean["w"].sum()))


@pytest.mark.parametrize("damage", ["bit", "NaN", "size", "type", "missing", "step"])
def test_one_ranks_damaged_file_is_loaded_by_nobody(damage: str, tmp_path: Path) -> None:
    """All ranks say whose it is, keep what they had, and train on."""

    def rank(comm: Communicator) -> bool:
        wire = exchange("topk(10%) | values=raw | memory=residual", comm=comm)
        state = wire.init(PARAMS)
        given = {"w": jnp.full((40, 30), 1.0 + comm.rank), "b": jnp.full(3, 1.0 + comm.rank)}
        _, state = wire.update(given, state)
        path = wire.link.save(tmp_path)
        _, state = wire.update(given, state)
        if comm.rank == 1:
            edit(path, damage)
        before = wire.link.state_dict()["buffers"]["w"]["residual"]
        with pytest.raises(InputError, match=r"rank 1: .*sparsewire-00001-of-"):
            wire.link.load(tmp_path)
        after = wire.link.state_dict()["buffers"]["w"]["residual"]
        wire.update(given, state)
        return wire.link.step == 3 and np.array_equal(before, after)

    assert run_ranks(2, rank) == [True, True]


def test_broadcast_keeps_shardings() -> None:
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    spread = jax.NamedSharding(mesh, jax.P("data"))

    def rank(comm: Communicator) -> Any:
        return broadcast({"w": jax.device_put(jnp.full(8, comm.rank + 1.0), spread), "n": None}, comm)

    for tree in run_ranks(2, rank):
        assert tree["w"].sharding == spread and (tree["w"] == 1).all() and tree["n"] is None
