"""Checkpoints of real ranks: all ranks load one or none does, a failed save leaves the last, steps may be uneven."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_pool import Pool


@pytest.mark.parametrize("damage", ["bit", "NaN", "size", "type", "missing", "step", "mean"])
@pytest.mark.parametrize("victim", [0, 2])
def test_one_ranks_damaged_state_is_loaded_by_nobody(ranks: Pool, tmp_path: Path, damage: str, victim: int) -> None:
    assert len(set(ranks.play("checkpoints.loads_nowhere", folder=str(tmp_path), damage=damage, victim=victim))) == 1


def test_a_damaged_set_is_resharded_to_nobody(ranks: Pool, tmp_path: Path) -> None:
    ranks.play("state.saves_apart", ranks=3, folder=str(tmp_path), kind="plain")
    ranks.play("checkpoints.loads_resharded_nowhere", ranks=2, folder=str(tmp_path))


def test_a_damaged_dcp_folder_is_loaded_by_nobody(ranks: Pool, tmp_path: Path) -> None:
    ranks.play("checkpoints.dcp_loads_nowhere", folder=str(tmp_path / "dcp"))


def test_a_save_that_fails_on_one_rank_fails_on_all_and_leaves_the_last_set(ranks: Pool, tmp_path: Path) -> None:
    ranks.play("checkpoints.a_failed_save_leaves_the_last_set", folder=str(tmp_path))


def test_a_detached_link_saves_without_the_others(ranks: Pool, tmp_path: Path) -> None:
    ranks.play("checkpoints.saves_alone", folder=str(tmp_path))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("stop", [3, 6])
def test_ranks_that_skip_steps_unevenly_resume_where_each_was(
    ranks: Pool, tmp_path: Path, fused: bool, stop: int
) -> None:
    steps = ranks.play("checkpoints.skips_unevenly", ranks=2, folder=str(tmp_path), fused=fused, stop=stop)[:2]
    assert steps == [[stop], [stop - 1]]
    found = ranks.play("checkpoints.takes_over_uneven_steps", ranks=3, folder=str(tmp_path))
    assert found == [[stop, stop // 4]] * 3
