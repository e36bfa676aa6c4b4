"""Local steps between real processes: the same bits, and what goes wrong goes wrong on every rank, with a name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch_pool import Pool


@pytest.fixture
def mortals(ranks: Pool, tmp_path: Path) -> Iterator[Pool]:
    """Ranks that a scene may leave in any state."""
    pool = Pool(tmp_path)
    yield pool
    pool.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"every": 4},
        {"every": 6, "fragments": 2, "overlap": 2},
        {"every": 5, "scheme": "topk(10%) | exchange=root(rank=1, mean=sqrt)"},
        {"every": 1, "optimizer": "adamw", "mean": "senders"},
    ],
    ids=str,
)
def test_all_ranks_end_with_the_same_bits(ranks: Pool, settings: dict[str, Any]) -> None:
    for stats in ranks.play("local.trains", **settings):
        assert stats["steps"] == 17 and stats["bytes_sent"] > 0


def test_with_everything_sent_in_every_step_it_is_ddp(ranks: Pool) -> None:
    ranks.play("local.equals_ddp")


def test_a_model_inside_ddp_is_refused(ranks: Pool) -> None:
    for text in ranks.play("local.refuses_ddp"):
        assert "give the plain module to local_steps" in text


def test_an_exception_that_is_handled_meanwhile_does_not_cost_the_last_meeting(ranks: Pool) -> None:
    ranks.play("local.ends_while_an_exception_is_handled", steps=6)


@pytest.mark.parametrize("where", ["with", "except"])
@pytest.mark.parametrize("overlap", [0, 2])
def test_when_one_rank_raises_the_others_hear_why_at_once(ranks: Pool, where: str, overlap: int) -> None:
    told = ranks.play("local.one_raises", where=where, overlap=overlap)
    assert max(rank["seconds"] for rank in told) < 15
    assert told[1]["text"].startswith("ValueError: no such file")
    for rank in (0, 2):
        assert told[rank]["text"].startswith("PeerFailed: another rank failed first: rank 1: ValueError: no such file")
        assert f"on rank {rank}, at meeting 1" in told[rank]["text"]


def test_a_rank_whose_rounds_turn_out_too_short_is_heard(ranks: Pool) -> None:
    first, *others = (told for told in sorted(ranks.play("local.one_has_short_rounds")))
    assert first.startswith("InputError: overlap=2: it must be below 2")
    assert all(text.startswith("PeerFailed: another rank failed first: rank 1: InputError: over") for text in others)


def test_a_rank_that_does_not_come_in_time_is_a_timeout(ranks: Pool) -> None:
    told = ranks.play("local.comes_late", timeout=2.0)
    assert any(text.startswith("CommTimeout: all_gather") for text in (told[0], told[2])), told


def test_ranks_that_come_for_different_reasons_hear_so(ranks: Pool) -> None:
    for text in ranks.play("local.disagrees"):
        assert "rank 1 is at meeting 0, which is due; rank 0 is at meeting 0, which is the last one" in text


def test_a_rank_alone_is_told_what_is_missing(mortals: Pool) -> None:
    assert "every rank of the model must call local_steps" in mortals.play("local.starts_alone")[0]


def test_some_ranks_go_on_as_a_smaller_group(mortals: Pool) -> None:
    assert mortals.play("local.resumes_smaller") == [2, 2, 0]


@pytest.mark.timeout(240)
def test_a_second_loss_while_ranks_connect_anew_ends_in_time(mortals: Pool, tmp_path: Path) -> None:
    scene, timeout = "local.goes_on_after_a_rank_dies_in_the_rejoin", 4.0
    told = mortals.play(scene, folder=str(tmp_path), timeout=timeout, lost=[1], limit=60)
    alive = [told[0], told[2]]
    assert all("call it again among those that are left" in rank["text"] for rank in alive)
    assert all(rank["seconds"] < timeout + 3 for rank in alive), alive  # gloo alone waits five times as long
    assert alive[0]["sum"] == alive[1]["sum"]


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_link_leaves_nothing_behind(ranks: Pool, overlap: int) -> None:
    ranks.play("local.leaves_nothing_behind", overlap=overlap)
