"""What a link remembers: saved per rank, resumed exactly, resharded, untouched by steps that overflow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from torch_pool import Pool


@pytest.mark.parametrize("buckets", ["one", "two"])
@pytest.mark.parametrize("count", [2, 3])
def test_a_resumed_run_equals_one_that_never_stopped(ranks: Pool, tmp_path: Path, buckets: str, count: int) -> None:
    ranks.play("state.resumes_exactly", ranks=count, folder=str(tmp_path), buckets=buckets, stop=7, end=15)


@pytest.mark.parametrize("count", [2, 3])
def test_a_resumed_run_with_a_sparse_embedding_does_too(ranks: Pool, tmp_path: Path, count: int) -> None:
    kept = ranks.play("state.resumes_exactly", ranks=count, folder=str(tmp_path), kind="words", stop=7, end=15)
    assert kept[:count] == [1] * count


@pytest.mark.parametrize("kind", ["plain", "words"])
def test_a_resumed_run_with_one_threshold_does_too(ranks: Pool, tmp_path: Path, kind: str) -> None:
    """DDP's first step after a restart has other buckets: they make no difference."""
    settings = {"select_per": "model", "kind": kind, "stop": 7, "end": 15}
    ranks.play("state.resumes_exactly", ranks=2, folder=str(tmp_path), **settings)


@pytest.mark.parametrize("stop", [2, 7])
def test_warm_up_and_schedule_go_on_where_they_were(ranks: Pool, tmp_path: Path, stop: int) -> None:
    settings = {"warmup_steps": 4, "ratio_schedule": [[3, 0.5], [6, 0.25]], "stop": stop, "end": 12}
    ranks.play("state.resumes_exactly", ranks=2, folder=str(tmp_path), **settings)


@pytest.mark.parametrize("memory", ["residual", "dgc(0.9)", "gmc(0.9)"])
@pytest.mark.parametrize("change", [{"dense_below": 100}, {"exclude": ["middle.bias"]}], ids=str)
def test_what_waited_is_sent_once_where_a_parameter_becomes_dense(
    ranks: Pool, tmp_path: Path, memory: str, change: dict[str, Any]
) -> None:
    ranks.play("state.sends_what_waited_once", ranks=2, folder=str(tmp_path), memory=memory, **change)


def test_the_state_is_tensors_and_plain_types_and_a_copy(ranks: Pool) -> None:
    ranks.play("state.state_is_plain")


@pytest.mark.parametrize(
    ("scheme", "where", "kind"),
    [
        ("topk(5%) | values=qsgd(bits=5)", "middle.weight", "plain"),
        ("topk(5%) | values=half", "middle.bias", "plain"),
        ("randomk(5%)", "first.weight", "plain"),
        ("threshold(ratio=5%)", "last.weight", "plain"),
        ("topk(5%) | values=qsgd(bits=5)", "words.weight", "words"),
        ("topk(5%) | values=qsgd(bits=5)", "dense.norm.weight", "words"),
    ],
)
def test_one_ranks_overflow_is_skipped_by_all_and_forgotten(ranks: Pool, scheme: str, where: str, kind: str) -> None:
    ranks.play("state.recovers_from_overflow", scheme=f"{scheme} | memory=residual", where=where, kind=kind)


@pytest.mark.parametrize(("where", "kind"), [("middle.weight", "plain"), ("words.weight", "words")])
def test_one_ranks_overflow_is_forgotten_with_one_threshold(ranks: Pool, where: str, kind: str) -> None:
    scheme = "topk(5%) | values=qsgd(bits=5) | memory=residual"
    ranks.play("state.recovers_from_overflow", scheme=scheme, where=where, kind=kind, select_per="model")


def test_an_overflow_in_a_dense_step_is_told(ranks: Pool) -> None:
    scheme = "topk(5%) | memory=residual"
    ranks.play("state.recovers_from_overflow", scheme=scheme, where="middle.weight", warmup_steps=20)


def test_two_small_buckets_do_not_hang(ranks: Pool) -> None:
    assert ranks.play("state.trains_long", steps=200) == [200] * 3


def test_every_rank_has_its_own_file_and_no_other_is_left(ranks: Pool, tmp_path: Path) -> None:
    for _ in range(2):
        ranks.play("state.saves_apart", folder=str(tmp_path))
    names = sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("model"))
    assert [name[: -len("-0123456789abcdef.sws")] for name in names] == [
        f"sparsewire-0000{rank}-of-00003-step5" for rank in range(3)
    ]


@pytest.mark.parametrize(("old", "new"), [(3, 2), (2, 3), (3, 1), (1, 2)])
def test_another_number_of_ranks_takes_over_the_mean_of_the_residuals(
    ranks: Pool, tmp_path: Path, old: int, new: int
) -> None:
    saved = ranks.play("state.saves_apart", ranks=old, folder=str(tmp_path))
    loaded = ranks.play("state.loads_dealt", ranks=new, folder=str(tmp_path))
    assert sum(saved[:old]) != 0
    assert sum(loaded[:new]) / new == pytest.approx(sum(saved[:old]) / old, rel=1e-4)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_dealing_keeps_the_mean_of_every_entry(ranks: Pool, tmp_path: Path, size: int) -> None:
    ranks.play("state.resharding_keeps_every_mean", folder=str(tmp_path), size=size)


def test_a_state_that_is_not_this_ranks_is_refused_and_changes_nothing(ranks: Pool, tmp_path: Path) -> None:
    ranks.play("state.refuses_what_is_not_its_own", folder=str(tmp_path))


@pytest.mark.parametrize("missing", [0, 1])
def test_an_incomplete_set_is_refused_by_every_rank(ranks: Pool, tmp_path: Path, missing: int) -> None:
    ranks.play("checkpoints.refuses_incomplete_sets", folder=str(tmp_path), missing=missing)


def test_files_of_different_steps_are_refused_by_every_rank(ranks: Pool, tmp_path: Path) -> None:
    ranks.play("checkpoints.refuses_mixed_steps", folder=str(tmp_path))


def test_the_set_of_the_latest_step_is_loaded_whatever_the_files_times_say(ranks: Pool, tmp_path: Path) -> None:
    ranks.play("state.saves_apart", ranks=2, folder=str(tmp_path), steps=5)
    ranks.play("state.saves_apart", ranks=3, folder=str(tmp_path), steps=2)  # written later, but of an earlier step
    for path in tmp_path.glob("*-of-00002-*.sws"):
        os.utime(path, (1, 1))
    ranks.play("state.loads_dealt", ranks=3, folder=str(tmp_path))


def test_two_links_in_one_folder_need_two_names(ranks: Pool, tmp_path: Path) -> None:
    ranks.play("links.two_links_in_one_folder", folder=str(tmp_path))


def test_detaching_says_what_is_not_sent_yet_and_keeps_it(ranks: Pool) -> None:
    for told in ranks.play("links.detaches_with_unsent_gradients"):
        assert "not sent yet" in told and "state_dict" in told


def test_residuals_follow_the_loss_scale(ranks: Pool) -> None:
    ranks.play("state.follows_the_scale")
