"""What goes wrong goes wrong on every rank, soon, and with a name."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_pool import Pool

TIMEOUT = 6.0
EXACT = "topk(1.0) | indices=raw | values=raw | memory=none"
SOON = 15.0  # seconds: less than the timeout of the groups, 20


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
        assert told[rank]["seconds"] < TIMEOUT + SOON
        assert any(name in told[rank]["text"] for name in ("CommError: all_gather", "CommTimeout: all_gather"))
        assert f"on rank {rank}, at step {at}" in told[rank]["text"]
    assert [mortals.children[rank].leave(timeout=30) for rank in (0, 2)] == [0, 0]
    mortals.children[victim].process.join(5)
    assert mortals.children[victim].process.exitcode == -signal.SIGKILL

    assert ranks.play("failures.goes_on_from", folder=str(tmp_path), end=18) == [10] * 3


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


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("kind", ["plain", "words"])
def test_links_come_and_go(ranks: Pool, count: int, kind: str) -> None:
    ranks.play("links.comes_and_goes", ranks=count, kind=kind)


def test_two_models_with_a_link_each_do_not_mix(ranks: Pool) -> None:
    ranks.play("links.two_links_at_once")


def test_a_rank_that_does_not_come_in_time_is_a_timeout(ranks: Pool) -> None:
    told = ranks.play("failures.waits_in_vain", timeout=2.0)
    assert any(text.startswith("CommTimeout: all_gather") for text in (told[0], told[2]))
    assert all(f"on rank {rank}, at step 2" in text for rank, text in enumerate(told)), told


RAISED = {
    "loop": "ValueError: no such file",
    "with": "ValueError: no such file",
    "detach": "ValueError: no such file",
    "backward": "MemoryError: no room",
    "on_step": "MemoryError: no room",
    "ratio_schedule": "SchemeError: ratio_schedule(3) raised ZeroDivisionError: division by zero",
    "a bad ratio": "SchemeError: ratio_schedule(3) gave 7; a ratio lies in 0 < ratio ≤ 1",
}


@pytest.mark.parametrize("where", RAISED)
def test_when_one_rank_raises_all_end_at_once_and_know_why(ranks: Pool, where: str) -> None:
    told = ranks.play("failures.one_raises", where=where)
    assert max(rank["seconds"] for rank in told) < SOON
    assert told[1]["text"].startswith(RAISED[where])
    for rank in (0, 2):
        assert told[rank]["text"].startswith(f"PeerFailed: another rank failed first: rank 1: {RAISED[where]}")


def test_a_rank_that_raises_does_not_wait_for_those_that_are_late(ranks: Pool, tmp_path: Path) -> None:
    told = ranks.play("failures.one_raises_while_others_are_late", folder=str(tmp_path))
    assert [rank["came late"] for rank in told] == [True, False, True]
    assert told[0]["text"].startswith("PeerFailed: another rank failed first: rank 1: MemoryError: no room")


def test_a_link_may_be_detached_in_its_own_callback(ranks: Pool) -> None:
    ranks.play("links.detaches_in_on_step")


@pytest.mark.parametrize("fails", [False, True], ids=["in order", "after a failure"])
def test_a_link_leaves_nothing_behind(ranks: Pool, fails: bool) -> None:
    ranks.play("failures.leaves_nothing_behind", fails=fails)


def test_attaching_on_one_rank_only_says_what_is_missing(mortals: Pool) -> None:
    assert "every rank of the model must call attach" in mortals.play("failures.attaches_alone")[0]


def test_a_peers_failure_is_told_in_a_short_traceback_whose_last_lines_say_it(ranks: Pool) -> None:
    told = ranks.play("failures.tells_what_matters")
    for rank in (0, 2):
        lines = told[rank].splitlines()
        assert lines[-2].endswith("PeerFailed: another rank failed first: rank 1: ValueError: no such file")
        assert sum(line.startswith("  File ") for line in lines) < 15, told[rank]
        assert "direct cause" not in told[rank] and "pair.cc" not in told[rank]


@pytest.mark.parametrize("exchange", ["allgather", "shared(support=pool)", "sketch"])
def test_a_group_without_a_backend_for_the_cpu_is_no_obstacle(ranks: Pool, exchange: str) -> None:
    scheme = EXACT if exchange == "allgather" else f"topk(30%) | memory=residual | exchange={exchange}"
    ranks.play("failures.only_has_accelerators", scheme=scheme)


def test_bits_are_joined_without_a_bitwise_collective_on_a_device(ranks: Pool) -> None:
    ranks.play("failures.joins_bits_on_a_device")
