"""Gradients of several processes of JAX: what a training with an exchange in its chain comes to."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax_ranks
import pytest

NEEDED = ("jax", "optax", "flax", "orbax")
MISSING = [name for name in NEEDED if find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
SCRIPT = Path(jax_ranks.__file__).with_name("jax_scenes.py")
SCENES = {2: "lossless,recipe,same_bits,accumulated,flax,resumed,differing,failing", 3: "lossless,recipe,failing"}

Seen = list[dict[str, Any]]


def run(scenes: str, ranks: int, folder: Path) -> Seen:
    jax_ranks.finish(jax_ranks.start(SCRIPT, scenes, folder, ranks), folder, limit=250)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Seen]:
    """What so many ranks have seen, who play once."""
    return cache(lambda ranks: run(SCENES[ranks], ranks, tmp_path_factory.mktemp("scenes")))


@pytest.fixture(params=[2, 3])
def seen(request: pytest.FixtureRequest, played: Callable[[int], Seen]) -> Seen:
    return played(request.param)


@pytest.fixture
def pair(played: Callable[[int], Seen]) -> Seen:
    return played(2)


def scene(seen: Seen, name: str) -> Seen:
    for rank in seen:
        assert isinstance(rank[name], dict), rank[name]
    return [rank[name] for rank in seen]


@pytest.mark.timeout(270)
def test_lossless_is_dense(seen: Seen) -> None:
    for rank in scene(seen, "lossless"):
        assert len(rank) == 6
        assert max(rank.values()) <= 2e-7, rank


@pytest.mark.parametrize("given, memory", [("sgd(momentum=0.9)", "gain"), ("adam(b1=0)", "residual")])
def test_the_recipe_trains(given: str, memory: str, seen: Seen) -> None:
    ranks = [rank[given] for rank in scene(seen, "recipe")]
    assert len({rank["digest"] for rank in ranks}) == 1, "all ranks have the same weights"
    for rank in ranks:
        assert rank["last"] < 0.4 * rank["first"] and rank["steps"] == 100
        assert f"memory={memory}" in rank["recipe"] and f'optimizer="{given}"' in rank["recipe"]
        assert rank["saved"] > 2


def test_in_jit_and_in_a_scan_are_the_bits_of_outside(pair: Seen) -> None:
    ranks = scene(pair, "same_bits")
    for rank in ranks:
        assert rank["outside"] == rank["jit"] == rank["scan"] == ranks[0]["outside"]
        assert len(set(rank["outside"])) == 6


def test_trees_keep_structure_and_dtypes(pair: Seen) -> None:
    for rank in scene(pair, "same_bits"):
        assert rank["kept structure"] and rank["step"] == 6
        assert sorted(rank["kept dtypes"]) == ["bfloat16", "complex64", "float32", "float32", "float32"]


def test_every_exchanges_the_mean_of_micro_steps(pair: Seen) -> None:
    for rank in scene(pair, "accumulated"):
        for way in ("every", "every in jit"):
            assert rank[way]["moved"] == [False, False, True] * 2 and rank[way]["steps"] == 2
        assert rank["mean"]["moved"] == [True, True] and rank["mean"]["distance"] <= 2e-7
        assert rank["every in jit"]["distance"] <= 2e-7


def test_flax_trains(pair: Seen) -> None:
    ranks = scene(pair, "flax")
    assert len({rank["digest"] for rank in ranks}) == 1
    for rank in ranks:
        assert rank["last"] < 0.5 * rank["first"] and rank["steps"] == 60
        assert len(rank["names"]) == 4 and all("kernel" in name or "bias" in name for name in rank["names"])


def test_resumed_from_orbax_and_link_is_exact(pair: Seen) -> None:
    for rank in scene(pair, "resumed"):
        assert rank["whole"] == rank["again"]
        assert rank["without load"].startswith("InputError") and "wire.link.load" in rank["without load"]


def test_ranks_that_differ_are_refused_and_broadcast_helps(pair: Seen) -> None:
    for rank in scene(pair, "differing"):
        assert "sparsewire.jax.broadcast(params)" in rank["weights"] and "CommMismatch" in rank["weights"]
        assert rank["scheme"].startswith("CommMismatch: rank 1 attached with other settings, scheme")
        assert rank["gradients"].startswith("InputError: rank 1 and rank 0 have gradients of other parameters: half")
        assert rank["shared"] == [0.0, 0, "x", "bfloat16"]
        assert "[2]" in rank["trees"] and "[3]" in rank["trees"]


def test_an_error_in_jit_keeps_its_class_and_is_told(seen: Seen) -> None:
    *others, last = scene(seen, "failing")
    assert last["error"].startswith("ZeroDivisionError: out of luck")
    for rank in others:
        assert rank["error"].startswith("PeerFailed") and "ZeroDivisionError: out of luck" in rank["error"]
    assert all(rank["later"] == rank["error"] for rank in [*others, last])


def test_a_killed_rank_ends_the_others(tmp_path: Path) -> None:
    children = jax_ranks.start(SCRIPT, "killed", tmp_path, 3)
    try:
        assert children[2].wait(60) == -9
        for rank in (0, 1):
            assert children[rank].wait(60) == 0, (tmp_path / f"{rank}.log").read_text()
            told = json.loads((tmp_path / f"{rank}.json").read_text())["killed"]
            assert told["error"].startswith(("CommTimeout: ", "PeerFailed: ")), told["error"]
            assert "rank 2 did not arrive" in told["error"]
    finally:
        for child in children:
            child.kill()
            child.wait()
