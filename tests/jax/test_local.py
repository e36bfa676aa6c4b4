"""Rounds of local steps in JAX, with ranks that are threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import edit

from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import CommMismatch, InputError

jax = pytest.importorskip("jax", reason="jax is not installed")
optax = pytest.importorskip("optax", reason="optax is not installed")

import jax.numpy as jnp  # noqa: E402

from sparsewire.jax import local  # noqa: E402

STEPS = 11
PRESETS = ["diloco(every=3)", "sparseloco(every=3)", "sbc(delay=4, ratio=1%)", "topk(5%) | memory=residual"]


def gradient(rank: int, step: int) -> np.ndarray[Any, Any]:
    """Multiples of 1/64: a step of SGD with the rate 1 has no rounding in any framework."""
    return np.random.default_rng([rank, step]).integers(-64, 65, (40, 30)).astype(np.float32) / 64


def start(rank: int) -> np.ndarray[Any, Any]:
    return np.full((40, 30), 1.0 + rank, np.float32)


def in_jax(comm: Communicator, scheme: str, **settings: Any) -> list[Any]:
    """The weights after every step, and after the last meeting."""
    rounds = local({"w": jnp.asarray(start(comm.rank))}, scheme, comm=comm, **settings)
    params, tx = rounds.params, optax.sgd(1.0)
    state, seen = tx.init(params), []
    for step in range(STEPS):
        updates, state = tx.update({"w": jnp.asarray(gradient(comm.rank, step))}, state)
        params, state = rounds(optax.apply_updates(params, updates), state)
        seen.append(np.asarray(params["w"]))
    return [*seen, np.asarray(rounds.finish(params)["w"])]


def in_torch(comm: Communicator, scheme: str, **settings: Any) -> list[Any]:
    import torch

    from sparsewire.torch import local_steps

    model = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.from_numpy(start(comm.rank)))})
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    link, seen = local_steps(model, optimizer, scheme, group=comm, **settings), []
    for step in range(STEPS):
        model["w"].grad = torch.from_numpy(gradient(comm.rank, step))
        optimizer.step()
        seen.append(model["w"].detach().numpy().copy())
    link.detach()
    return [*seen, model["w"].detach().numpy()]


@pytest.mark.parametrize("scheme", PRESETS)
def test_rounds_are_those_of_local_steps(scheme: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    settings = (
        {}
        if "(" in scheme.split(" | ")[0] and "topk" not in scheme
        else {"every": 4, "outer": "sgd(rate=0.5, momentum=0.5)"}
    )
    ours, theirs = (run_ranks(2, lambda comm, run=run: run(comm, scheme, **settings)) for run in (in_jax, in_torch))
    for rank in range(2):
        assert all(np.array_equal(one, two) for one, two in zip(ours[rank], theirs[rank], strict=True))
    assert np.array_equal(ours[0][-1], ours[1][-1])


def test_fragments_and_plain_tensors() -> None:
    def rank(comm: Communicator) -> Any:
        params = {"a": jnp.ones((20, 20)), "b": jnp.ones((20, 20)), "stats": jnp.full(4, float(comm.rank))}
        rounds = local(params, "topk(50%) | memory=residual", every=4, fragments=2, plain="stats", comm=comm)
        own = {**rounds.params, "stats": jnp.full(4, float(comm.rank))}
        params = rounds({**own, "a": own["a"] + comm.rank, "b": own["b"] + comm.rank}, steps=2)
        return jax.tree.map(np.asarray, params), rounds.stats()["meetings"]

    (first, meetings), (second, _) = run_ranks(2, rank)
    assert meetings == 1 and (first["stats"] == 0.5).all()
    assert (first["a"] == second["a"]).all() and not (first["b"] == second["b"]).all()


def test_momentum_is_zeroed_where_something_was_sent() -> None:
    def rank(comm: Communicator) -> Any:
        rounds = local({"w": jnp.zeros((40, 30))}, "topk(10%) | values=raw | memory=residual", every=1,
                       mask_momentum=True, comm=comm)  # fmt: skip
        tx = optax.chain(optax.trace(0.9), optax.scale(-1.0))
        state = tx.init(rounds.params)
        updates, state = tx.update({"w": jnp.asarray(gradient(comm.rank, 0)) + 2}, state)
        with pytest.raises(InputError, match=r"params, state = rounds\(params, state\)"):
            rounds(updates)
        _, state = rounds(updates, state)
        return int((state[0].trace["w"] == 0).sum())

    assert run_ranks(2, rank) == [120, 120]


def test_weights_that_are_not_finite_go_back() -> None:
    def rank(comm: Communicator) -> Any:
        rounds = local({"w": jnp.ones(2000)}, "topk(10%) | memory=residual", every=1, comm=comm)
        state = {"mu": jnp.full(3, jnp.nan if comm.rank else 1.0)}
        params, state = rounds({"w": jnp.full(2000, jnp.nan if comm.rank else 2.0)}, state)
        return bool((params["w"] == 1).all()), float(state["mu"].sum()), rounds.stats()["nonfinite"]

    assert run_ranks(2, rank) == [(True, 3.0, 1), (True, 0.0, 1)]


def test_resumed_in_mid_round_is_exact(tmp_path: Path) -> None:
    def rank(comm: Communicator, resumed: bool) -> Any:
        rounds = local({"w": jnp.zeros((40, 30))}, "sparseloco(every=4)", mask_momentum=False, comm=comm)
        params = rounds.params
        for step in range(10):
            if step == 6:
                rounds.save(tmp_path, params)
                if resumed:
                    rounds = local({"w": jnp.ones((40, 30))}, "sparseloco(every=4)", mask_momentum=False, comm=comm)
                    params = rounds.load(tmp_path)
            params = rounds({"w": params["w"] - gradient(comm.rank, step)})
        return np.asarray(rounds.finish(params)["w"])

    whole, again = (run_ranks(2, lambda comm, resumed=resumed: rank(comm, resumed)) for resumed in (False, True))
    assert np.array_equal(whole[0], again[0]) and np.array_equal(again[0], again[1])


@pytest.mark.parametrize("damage", ["bit", "NaN", "missing", "common"])
def test_one_ranks_damaged_file_is_loaded_by_nobody(damage: str, tmp_path: Path) -> None:
    """All ranks say whose it is, and meet again as if nobody had tried to load."""

    def rank(comm: Communicator, load: bool) -> Any:
        rounds = local({"w": jnp.zeros((40, 30))}, "topk(5%) | memory=residual", every=2, comm=comm)
        params = rounds.params
        for step in range(8):
            if step == 5 and load:
                path = rounds.save(tmp_path, params)
                if comm.rank == 1:
                    edit(path, damage)
                with pytest.raises(InputError, match=r"rank 1: .*sparsewire-00001-of-"):
                    rounds.load(tmp_path)
            params = rounds({"w": params["w"] - gradient(comm.rank, step)})
        return np.asarray(rounds.finish(params)["w"])

    whole, again = (run_ranks(2, lambda comm, load=load: rank(comm, load)) for load in (False, True))
    assert np.array_equal(whole[0], again[0]) and np.array_equal(again[0], again[1])


@pytest.mark.parametrize("settings, words", [
    ({}, "every is missing"),
    ({"every": 2, "fragments": 3}, "fragments=3"),
    ({"every": 2, "scheme": "auto"}, "no auto"),
    ({"every": 2, "plain": "nothing*"}, "matches no parameter"),
    ({"every": 2, "mask_momentum": True, "scheme": "topk(1%) | transform=fft"}, "transform=identity"),
])  # fmt: skip
def test_a_refusal_names_what_to_write(settings: dict[str, Any], words: str) -> None:
    given = {"scheme": "topk(1%) | memory=residual", **settings}
    with pytest.raises(InputError, match=words):
        local({"w": jnp.zeros((40, 30))}, **given)


def test_ranks_that_differ_are_refused() -> None:
    with pytest.raises(CommMismatch, match="every"):
        run_ranks(2, lambda comm: local({"w": jnp.zeros(2000)}, "topk(1%) | memory=residual", every=2 + comm.rank,
                                        comm=comm))  # fmt: skip
