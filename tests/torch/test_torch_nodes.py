"""`attach(…, nodes=…)` on real ranks: two machines of two, all on this one."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from torch_pool import Pool

pytestmark = pytest.mark.timeout(240)  # four ranks to start
TIMEOUT = 6.0


class Path:
    """Scenes of four ranks by one path: on the host, or on devices, which are CPU tensors here."""

    def __init__(self, pool: Pool, forced: bool) -> None:
        self._pool, self._forced = pool, forced

    def play(self, scene: str, **settings: Any) -> list[Any]:
        if self._forced:
            return self._pool.play("device.forced", played=scene, **settings)
        return self._pool.play(scene, **settings)

    def close(self) -> None:
        self._pool.close()


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    made = Pool(tmp_path_factory.mktemp("four"), 4)
    yield made
    made.close()


@pytest.fixture(params=["host", "device"])
def four(pool: Pool, request: pytest.FixtureRequest) -> Path:
    return Path(pool, request.param == "device")


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "words", "ddp": {"bucket_cap_mb": 0.005}, "buckets": 2},
        {"kind": "mixed", "tolerance": 0.02},
        {"kind": "branches", "ddp": {"find_unused_parameters": True}},
        {"kind": "plain", "warmup_steps": 2},
    ],
)
def test_with_everything_sent_gradients_are_those_of_plain_ddp(four: Path, settings: dict[str, Any]) -> None:
    four.play("attach.equals_plain_ddp", nodes=2, **settings)


def test_ranks_stay_in_step(four: Path) -> None:
    scheme = "topk(5%) | values=qsgd(bits=5) | memory=dgc(momentum=0.9)"
    for settings in ({"nodes": 2, "select_per": "model"}, {"nodes": "auto", "clip_norm": 1.0}):
        four.play("attach.stays_in_step", scheme=scheme, steps=20, **settings)


@pytest.mark.parametrize("per", ["parameter", "model"])
def test_a_resumed_run_equals_one_that_never_stopped(four: Path, tmp_path: pathlib.Path, per: str) -> None:
    settings = {"kind": "words", "select_per": per, "nodes": 2, "stop": 4, "end": 8}
    four.play("state.resumes_exactly", folder=str(tmp_path), **settings)


@pytest.mark.parametrize(("where", "kind"), [("middle.weight", "plain"), ("words.weight", "words")])
def test_one_ranks_overflow_is_skipped_by_all_and_forgotten(four: Path, where: str, kind: str) -> None:
    scheme = "topk(5%) | values=qsgd(bits=5) | memory=residual"
    four.play("state.recovers_from_overflow", scheme=scheme, where=where, kind=kind, nodes=2)


def test_machines_come_and_go_between_runs(four: Path, tmp_path: pathlib.Path) -> None:
    four.play("nodes.moves_between_machines", folder=str(tmp_path))
    assert four.play("state.loads_dealt", ranks=3, folder=str(tmp_path / "0"), step=3)[:3]


def test_machines_come_and_go_through_dcp(four: Path, tmp_path: pathlib.Path) -> None:
    four.play("nodes.moves_through_dcp", folder=str(tmp_path / "state"))


def test_what_makes_no_machines_is_refused_on_every_rank(four: Path) -> None:
    for uneven, word, differ in four.play("nodes.refuses_what_makes_no_machines"):
        assert "4 ranks are no multiple of 3" in uneven
        assert "'auto' or a number of ranks" in word
        assert "nodes: 2 where rank 0 has 4" in differ


def test_a_rank_that_cannot_encode_keeps_nobody_waiting(four: Path) -> None:
    told = four.play("nodes.one_cannot_encode")
    assert "MemoryError: no room" in told[2]
    assert "PeerError: rank 1: it failed before it could send" in told[0]
    assert "a rank is its place in [0, 2]" in told[0]
    assert all("failed" in told[rank] for rank in (1, 3)), told


def test_a_killed_rank_ends_the_others(four: Path) -> None:
    told = four.play("nodes.is_killed", victim=1, timeout=TIMEOUT, lost=[1])
    four.close()
    assert all(told[rank] < TIMEOUT + 15 for rank in (0, 2, 3))


@pytest.mark.parametrize("fails", [False, True])
def test_a_link_leaves_nothing_behind(four: Path, fails: bool) -> None:
    four.play("failures.leaves_nothing_behind", fails=fails, nodes=2)
