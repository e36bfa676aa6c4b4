"""`attach(…, on_divergence="dense")` on real ranks."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from torch_pool import Pool

if find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_link_that_runs_away_goes_dense_on_all_ranks_and_comes_back(ranks: Pool, dtype: str) -> None:
    found = ranks.play("guard.goes_dense", ranks=3, dtype=dtype)[:3]
    alarms, until, (line,) = found[0]
    assert [alarm["step"] for alarm in alarms] == [31] and until == 36
    assert line.startswith("step 31: the training seems to diverge: the residual is ")
    assert found[1:] == [[alarms, until, []]] * 2


def test_a_loss_scale_that_collapses_in_a_training_is_told_once(ranks: Pool) -> None:
    """Gradients that float16 holds only at a scale below 1, as a real GradScaler finds it."""
    scale, *first = ranks.play("guard.scaled_training", ranks=2, loss_factor=1e6, steps=40)[0]
    reasons, (line,) = first
    assert scale < 1 and reasons == ["the loss scale has fallen below 1"]
    assert line.startswith("step 15: the training seems to diverge: the loss scale has fallen below 1. Compare with")
    assert ranks.play("guard.scaled_training", ranks=2, loss_factor=1e6, steps=40)[1] == [scale, reasons, []]


def test_a_loss_that_is_no_number_ends_no_training_without_a_word(ranks: Pool) -> None:
    scale, reasons, lines = ranks.play("guard.scaled_training", ranks=2, loss_factor=float("nan"), steps=25)[0]
    assert scale < 1e-5 and reasons == []
    assert lines == ["step 19: 20 steps in a row were not finite: the loss, or its scale, has diverged"]


def test_a_loss_scale_that_settles_is_no_alarm(ranks: Pool) -> None:
    scale, *told = ranks.play("guard.scaled_training", ranks=2, loss_factor=1e3, steps=40)[0]
    assert 1 <= scale < 64 and told == [[], []]
