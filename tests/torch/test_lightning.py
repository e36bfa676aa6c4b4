"""Lightning: one callback compresses, logs, and resumes bit-equal from Lightning's own checkpoints."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lightning_ranks
import pytest
import warm
from host_ranks import RANKS, missing, run_script
from lightning_ranks import WITHOUT

warm.needs("lightning.pytorch")
pytestmark = pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lightning")


@pytest.fixture(scope="module")
def facts(folder: Path) -> list[dict[str, Any]]:
    return run_script(lightning_ranks.__file__, folder)


def test_a_resumed_run_is_bit_equal_to_one_that_never_stopped(facts: list[dict[str, Any]]) -> None:
    assert [rank["resumed"] for rank in facts] == [True] * RANKS


def test_without_its_residuals_a_run_goes_elsewhere_and_says_so(facts: list[dict[str, Any]]) -> None:
    assert [rank[WITHOUT] for rank in facts] == [False] * RANKS
    assert "no sparsewire state" in facts[0]["warnings"]


def test_the_checkpoint_loads_under_weights_only_and_holds_all_ranks(facts: list[dict[str, Any]]) -> None:
    assert [rank["ranks in checkpoint"] for rank in facts] == [[0, 1]] * RANKS
    assert not facts[0]["ranks are equal"]


def test_a_checkpoint_that_is_saved_after_the_end_holds_them_too(facts: list[dict[str, Any]]) -> None:
    assert [rank["steps in the last checkpoint"] for rank in facts] == [[8, 8]] * RANKS


def test_another_number_of_ranks_shares_what_was_left(facts: list[dict[str, Any]]) -> None:
    assert [rank["resharded"] for rank in facts] == [True] * RANKS


def test_one_ranks_damaged_state_is_loaded_by_nobody(facts: list[dict[str, Any]]) -> None:
    """The checkpoint holds NaN in rank 1's residuals: no rank begins to train."""
    assert all("rank 1: InputError: the checkpoint" in rank["damaged"] for rank in facts)
    assert all("non-finite" in rank["damaged"] for rank in facts)


def test_gradients_are_accumulated_before_they_are_sent(facts: list[dict[str, Any]]) -> None:
    assert [rank["steps"] for rank in facts] == [8] * RANKS


def test_bytes_and_ratio_are_logged(facts: list[dict[str, Any]], folder: Path) -> None:
    heading, *lines = (folder / "logs" / "metrics.csv").read_text().splitlines()
    rows = [dict(zip(heading.split(","), line.split(","), strict=True)) for line in lines]
    assert float(rows[-1]["sparsewire/ratio"]) > 3
    assert 0 < float(rows[0]["sparsewire/bytes_sent"]) < float(rows[-1]["sparsewire/bytes_sent"])


def test_the_link_is_detached_at_the_end(facts: list[dict[str, Any]]) -> None:
    assert [rank["comm_threads"] for rank in facts] == [0] * RANKS


def test_a_strategy_without_ddp_is_refused(facts: list[dict[str, Any]]) -> None:
    assert all('strategy="ddp"' in rank["refused"] and "SingleDeviceStrategy" in rank["refused"] for rank in facts)


def test_residuals_follow_the_trainers_scaler(facts: list[dict[str, Any]]) -> None:
    """A loss scale that doubles in every step leaves no trace, bit for bit."""
    assert [rank["scaled equals unscaled"] for rank in facts] == [True] * RANKS
    assert [rank["last scale"] for rank in facts] == [2.0**8] * RANKS


def test_a_scaler_of_the_users_own_comes_first(facts: list[dict[str, Any]]) -> None:
    assert [rank["own scaler"] for rank in facts] == [True] * RANKS


def test_the_trainers_optimizer_is_fitted(facts: list[dict[str, Any]]) -> None:
    """The default; `optimizer=None` switches it off."""
    assert [rank["fitted"] for rank in facts] == [[True, False]] * RANKS


def test_adams_first_moment_is_off_within_every_sparse_step(facts: list[dict[str, Any]]) -> None:
    """From the first one on, though Lightning runs backward in a closure, after the step has begun."""
    assert [rank["betas"] for rank in facts] == [[[0.9], *[[0.0, 0.9]] * 7]] * RANKS


def test_with_adam_a_resumed_run_is_bit_equal_too(facts: list[dict[str, Any]]) -> None:
    assert [rank["resumed with Adam"] for rank in facts] == [True] * RANKS


def test_the_trainer_tells_everything_that_the_recipe_needs(facts: list[dict[str, Any]]) -> None:
    assert [rank["recipe"] for rank in facts] == [
        'attach(model, "topk(ratio=0.25) | memory=gain(momentum=0.9)", optimizer=optimizer)'
    ] * RANKS


def test_the_trainers_clipping_is_done_before_what_waits_is_added(facts: list[dict[str, Any]]) -> None:
    """During `fit` by the link alone; afterwards the trainer is as it was. What the link cannot do is refused."""
    assert [rank["clipped"] for rank in facts] == [[0.5, [None] * 2, 0.5]] * RANKS
    for rank in facts:
        by_value, twice = rank["clipping refused"]
        assert "gradient_clip_algorithm='value'" in by_value and "SparsewireCallback(clip_norm=…)" in by_value
        assert "leave gradient_clip_val out" in twice


def test_without_lightning_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing(monkeypatch, "sparsewire.torch.lightning", "lightning", "pytorch_lightning") == (
        "sparsewire.torch.lightning needs Lightning: pip install lightning"
    )
