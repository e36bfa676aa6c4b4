"""What goes wrong goes wrong on every rank, soon, and with a name."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_pool import Pool

TIMEOUT = 6.0


@pytest.fixture
def mortals(ranks: Pool, tmp_path: Path) -> Iterator[Pool]:
    """Ranks of which one will die; `ranks` says whether there is torch at all."""
    pool = Pool(tmp_path)
    yield pool
    pool.close()


@pytest.mark.timeout(240)  # two groups of ranks to start
def test_a_killed_rank_ends_the_others_and_its_files_are_enough_to_go_on(
    ranks: Pool, mortals: Pool, tmp_path: Path
) -> None:
    victim, at = 1, 13
    told = mortals.play(
        "failures.is_killed", folder=str(tmp_path), victim=victim, at=at, timeout=TIMEOUT, lost=[victim]
    )
    for rank in (0, 2):
        assert told[rank]["step"] == at
        assert told[rank]["seconds"] < TIMEOUT + 4
        assert any(name in told[rank]["text"] for name in ("CommError: all_gather", "CommTimeout: all_gather"))
    assert [mortals.children[rank].leave(timeout=30) for rank in (0, 2)] == [0, 0]
    assert mortals.children[victim].process.wait(5) == -signal.SIGKILL

    assert ranks.play("failures.goes_on_from", folder=str(tmp_path), end=18) == [10] * 3


@pytest.mark.parametrize("what", ["scheme", "seed", "dense_below", "warmup_steps"])
def test_ranks_that_attach_differently_all_hear_of_it(ranks: Pool, what: str) -> None:
    for text in ranks.play("failures.differ_in", what=what):
        assert "rank 1 attached with topk" in text
        assert "rank 0 with topk(ratio=0.05)" in text


def test_bad_bytes_are_an_error_on_every_rank_that_names_the_peer(ranks: Pool) -> None:
    for texts in ranks.play("failures.sends_noise"):
        assert all("PeerError: rank 1: " in text for text in texts), texts


def test_a_rank_that_cannot_encode_keeps_nobody_waiting(ranks: Pool) -> None:
    told = ranks.play("failures.cannot_encode")
    assert "MemoryError: no room" in told[2]
    assert all("PeerError: rank 2: it failed before it could send" in text for text in told[:2]), told


def test_a_callback_that_raises_fails_the_step(ranks: Pool) -> None:
    assert all("MemoryError: no room" in text for text in ranks.play("failures.a_callback_that_raises"))


def test_after_a_failure_a_model_can_be_attached_again(ranks: Pool) -> None:
    ranks.play("failures.failed_models_can_be_attached_again")


def test_misuse_is_named_and_leaves_the_model_as_it_was(ranks: Pool) -> None:
    ranks.play("failures.misuse")


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("kind", ["plain", "words"])
def test_links_come_and_go(ranks: Pool, count: int, kind: str) -> None:
    ranks.play("failures.comes_and_goes", ranks=count, kind=kind)


def test_two_models_with_a_link_each_do_not_mix(ranks: Pool) -> None:
    ranks.play("failures.two_links_at_once")
