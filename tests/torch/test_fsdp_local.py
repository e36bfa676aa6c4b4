"""`local_steps(…, replicas=…)` on real ranks: FSDP2 inside each replica, rare meetings between them."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_pool import Pool

pytestmark = pytest.mark.timeout(300)  # six ranks to start


def test_with_everything_sent_a_meeting_gives_the_replicas_mean(two_by_two: Pool) -> None:
    two_by_two.play("fsdp_local.equals_the_mean_of_replicas", replicas=2, shards=2)


def test_the_default_recipe_trains(two_by_two: Pool) -> None:
    for found in two_by_two.play("fsdp_local.trains"):
        assert found["losses"][-1] < found["losses"][0] / 2
        assert found["stats"]["bytes_sent"] * 10 < found["stats"]["bytes_dense"]


def test_a_resumed_run_equals_one_that_never_stopped(two_by_two: Pool, tmp_path: Path) -> None:
    two_by_two.play("fsdp_local.resumes_exactly", folder=str(tmp_path))


def test_a_shard_that_is_not_finite_undoes_the_round_everywhere(two_by_two: Pool) -> None:
    assert set(two_by_two.play("fsdp_local.a_replica_diverges")) == {1}


def test_what_cannot_be_served_is_told_with_the_line_to_write(two_by_two: Pool) -> None:
    for plain, both, resumed in two_by_two.play("fsdp_local.is_refused"):
        assert 'replicas=mesh["replicate"]' in plain
        assert "leave group= out" in both
        assert "load the last checkpoint" in resumed


def test_shards_stay_as_many_from_run_to_run(two_by_three: Pool, tmp_path: Path) -> None:
    for text in two_by_three.play("fsdp_local.moves", folder=str(tmp_path)):
        assert "local_steps with 2 shards was saved, here are 3: resume it with as many shards" in text
