"""States of parameters that are sharded along dimension 0: joined, and cut again for other shards and replicas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from strategies import same_bits

import sparsewire as sw
from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import InputError
from sparsewire.training.averager import Averager
from sparsewire.training.nodes.shards import ShardGrid
from sparsewire.training.residuals.reshard import reshard
from sparsewire.training.schedule import SchemeSchedule, Settings

SHAPES = {"w": (7, 5), "v": (3, 4, 2), "bias": (4,), "scalar": ()}
SIZES = {"w": 35, "v": 24, "bias": 4, "scalar": 1}
MESHES = [(1, 1), (1, 2), (2, 1), (2, 3), (3, 4), (4, 2), (1, 8)]  # replicas, shards


def whole_state(replica: int) -> dict[str, Any]:
    """What a replica would have saved of whole parameters."""
    rng = np.random.default_rng(replica)
    buffers = {name: {"residual": rng.standard_normal(size).astype(np.float32)} for name, size in SIZES.items()}
    same = np.random.default_rng(99)
    means = {name: {"indices": np.flatnonzero(same.random(size) < 0.5).astype(np.int32), "rate": 0.1}
             for name, size in SIZES.items()}  # fmt: skip
    for mean in means.values():
        mean["values"] = same.standard_normal(mean["indices"].size).astype(np.float32)
    return {"step": 7, "scale": 1.0, "buffers": buffers, "means": means, "rates": {"w": 0.1}, "gain": {"share": 0.5}}


def shard(replicas: int, shards: int) -> tuple[ShardGrid, list[dict[str, Any]]]:
    """Every rank's state: cut by rows with NumPy alone. Empty shards save nothing."""
    grid, states = ShardGrid.chunked(replicas, shards, SHAPES), []
    for rank in range(replicas * shards):
        whole = whole_state(rank // shards)
        buffers, means = {}, {}
        for name, shape in SHAPES.items():
            rows = np.arange(SIZES[name]).reshape(shape[0] if shape else 1, -1)
            chunk = -(-rows.shape[0] // shards)
            mine = rows[rank % shards * chunk : (rank % shards + 1) * chunk].reshape(-1)
            if mine.size:
                mean = whole["means"][name]
                here = np.isin(mean["indices"], mine)
                buffers[name] = {"residual": whole["buffers"][name]["residual"][mine]}
                means[name] = {"rate": mean["rate"], "indices": mean["indices"][here] - mine[0].astype(np.int32),
                               "values": mean["values"][here]}  # fmt: skip
        states.append(grid.labelled({**whole, "buffers": buffers, "means": means}, rank))
    return grid, states


def joined(states: list[dict[str, Any]], name: str, shards: int, replica: int) -> np.ndarray:
    mine = states[replica * shards : (replica + 1) * shards]
    return np.concatenate([state["buffers"][name]["residual"] for state in mine if name in state["buffers"]])


@pytest.mark.parametrize(("replicas", "shards"), MESHES)
@pytest.mark.parametrize(("new_replicas", "new_shards"), MESHES)
def test_the_mean_over_replicas_stays(replicas: int, shards: int, new_replicas: int, new_shards: int) -> None:
    _, old = shard(replicas, shards)
    grid = ShardGrid.chunked(new_replicas, new_shards, SHAPES)
    new = reshard(old, grid.size, grid)
    assert [(state["rank"], state["world_size"]) for state in new] == [(rank, grid.size) for rank in range(grid.size)]
    for name in SHAPES:
        due = np.mean([whole_state(replica)["buffers"][name]["residual"] for replica in range(replicas)], axis=0)
        found = np.mean([joined(new, name, new_shards, replica) for replica in range(new_replicas)], axis=0)
        np.testing.assert_allclose(found, due, atol=1e-6)


@pytest.mark.parametrize(("replicas", "shards"), MESHES)
def test_the_same_mesh_gives_every_rank_its_own_state_back(replicas: int, shards: int) -> None:
    grid, old = shard(replicas, shards)
    for mine, again in zip(old, reshard(old, grid.size, grid), strict=True):
        assert again["nodes"] == mine["nodes"]
        for kind in ("buffers", "means"):
            assert again[kind].keys() == mine[kind].keys()
            for name, kept in mine[kind].items():
                same = [same_bits(x, again[kind][name][key]) for key, x in kept.items() if isinstance(x, np.ndarray)]
                assert all(same)


@pytest.mark.parametrize(("shards", "new_shards"), [(2, 3), (3, 2), (4, 1), (1, 8), (8, 3)])
def test_means_move_with_their_rows(shards: int, new_shards: int) -> None:
    _, old = shard(2, shards)
    grid = ShardGrid.chunked(2, new_shards, SHAPES)
    new = reshard(old, grid.size, grid)
    for name, mean in whole_state(0)["means"].items():
        due, found = np.zeros(SIZES[name], np.float32), np.zeros(SIZES[name], np.float32)
        due[mean["indices"]] = mean["values"]
        for rank in range(new_shards):
            if name in new[rank]["means"]:
                part = new[rank]["means"][name]
                found[part["indices"] + grid.bounds_of[name][rank]] = part["values"]
                assert part["rate"] == 0.1
        assert same_bits(found, due)


def test_shards_of_any_sizes_can_be_told() -> None:
    grid = ShardGrid(((0, 1, 2),), bounds_of={"w": (0, 5, 5, 35)})
    whole = {**whole_state(0), "rank": 0, "world_size": 1}
    whole = {**whole, "buffers": {"w": whole["buffers"]["w"]}, "means": {"w": whole["means"]["w"]}}
    parts = reshard([whole], 3, grid)
    assert [part["buffers"]["w"]["residual"].size if part["buffers"] else 0 for part in parts] == [5, 0, 30]
    (again,) = reshard(parts, 1, ShardGrid.chunked(1, 1, {"w": (7, 5)}))
    assert same_bits(again["buffers"]["w"]["residual"], whole["buffers"]["w"]["residual"])
    assert same_bits(again["means"]["w"]["indices"], whole["means"]["w"]["indices"])


def test_rows_of_a_table_are_cut_between_rows() -> None:
    rows = {"indices": np.array([0, 3, 6]), "values": np.arange(15, dtype=np.float32), "width": 5, "dtype": "float32",
            "shape": [7, 5]}  # fmt: skip
    state = {"step": 1, "scale": 1.0, "rank": 0, "world_size": 1, "buffers": {"w": {"residual": rows}}}
    grid = ShardGrid.chunked(1, 2, {"w": (7, 5)})
    first, second = reshard([state], 2, grid)
    assert first["buffers"]["w"]["residual"]["indices"].tolist() == [0, 3]
    assert second["buffers"]["w"]["residual"]["indices"].tolist() == [2]
    (again,) = reshard([first, second], 1, ShardGrid.chunked(1, 1, {"w": (7, 5)}))
    assert again["buffers"]["w"]["residual"]["indices"].tolist() == [0, 3, 6]
    with pytest.raises(InputError, match="cut within its rows of 5"):
        reshard([state], 2, ShardGrid(((0, 1),), bounds_of={"w": (0, 17, 35)}))


def test_what_does_not_fit_is_refused() -> None:
    _, old = shard(1, 2)
    with pytest.raises(InputError, match="the state has 35 numbers for 'w', the model 40"):
        reshard(old, 2, ShardGrid.chunked(1, 2, {**SHAPES, "w": (8, 5)}))
    with pytest.raises(InputError, match="the state has 'v', which the model has not"):
        reshard(old, 2, ShardGrid.chunked(1, 2, {name: SHAPES[name] for name in ("w", "bias", "scalar")}))
    old[1]["buffers"].pop("w")
    with pytest.raises(InputError, match="not all have 'w'"):
        reshard(old, 2, ShardGrid.chunked(1, 2, SHAPES))
    with pytest.raises(InputError, match="2 shards need 3 bounds"):
        ShardGrid(((0, 1),), bounds_of={"w": (0, 5)})


@pytest.mark.parametrize("memory", ["residual", "dgc", "gmc", "gain"])
def test_averagers_of_shards_save_what_other_meshes_load(memory: str) -> None:
    """2 replicas of 2 shards train; 1 replica of 3 shards goes on from what they saved."""
    settings = Settings(SchemeSchedule(sw.scheme(f"topk(20%) | memory={memory}")), dense_below=3)
    grid, new = ShardGrid.chunked(2, 2, SHAPES), ShardGrid.chunked(1, 3, SHAPES)

    def averager(comm: Communicator, mesh: ShardGrid) -> tuple[Averager, dict[str, int], Communicator]:
        replicas = comm.split(mesh.place(comm.rank)[1])
        spans = {name: mesh.part_of(name, size, comm.rank) for name, size in SIZES.items()}
        sizes = {name: stop - start for name, (start, stop) in spans.items() if stop > start}
        return Averager(replicas, settings, sizes), sizes, replicas

    def train(comm: Communicator) -> dict[str, Any]:
        one, sizes, _ = averager(comm, grid)
        for step in range(3):
            rng = np.random.default_rng([comm.rank, step])
            one.put({name: rng.standard_normal(size).astype(np.float32) for name, size in sizes.items()})
            assert one.finish()
        return grid.labelled(one.state_dict(), comm.rank)

    saved = run_ranks(4, train)

    def go_on(comm: Communicator) -> Any:
        one, sizes, _ = averager(comm, new)
        one.load_state_dict(new.unlabelled(reshard(saved, 3, new)[comm.rank]))
        assert one.step == 3
        assert set(one.states.by_name) <= set(sizes)
        return {name: kept["residual"].copy() for name, kept in one.states.by_name.items()}

    loaded = run_ranks(3, go_on)
    for name in ("w", "v"):
        due = np.mean([joined(saved, name, 2, replica) for replica in range(2)], axis=0)
        found = np.concatenate([part[name] for part in loaded if name in part])
        np.testing.assert_allclose(found, due, atol=1e-6)


def test_a_mean_that_one_shard_has_already_handed_out_stays_with_the_others() -> None:
    _, old = shard(1, 2)
    mean = old[1]["means"]["w"]
    old[0]["means"].pop("w")
    (whole,) = reshard(old, 1, ShardGrid.chunked(1, 1, SHAPES))
    assert (whole["means"]["w"]["indices"] == mean["indices"] + 20).all()
    assert same_bits(whole["means"]["w"]["values"], mean["values"])
