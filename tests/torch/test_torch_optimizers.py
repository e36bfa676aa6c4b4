"""The optimizer stays the user's: one of memory and optimizer holds the momentum, and attach sees to it."""

from __future__ import annotations

import pytest
from torch_pool import Pool


@pytest.mark.parametrize("memory", ["dgc(momentum=0.9, mask=false)", "gmc(momentum=0.9)", "gain(momentum=0.9)"])
@pytest.mark.parametrize("warmup", [0, 6])
def test_with_everything_sent_sgd_trains_as_without(ranks: Pool, memory: str, warmup: int) -> None:
    ranks.play("optimizers.sgd_trains_as_without", ranks=2, memory=memory, warmup=warmup)


@pytest.mark.parametrize("warmup", [0, 6])
def test_nesterov_does_too(ranks: Pool, warmup: int) -> None:
    memory = "dgc(momentum=0.9, nesterov=true, mask=false)"
    ranks.play("optimizers.sgd_trains_as_without", ranks=2, memory=memory, warmup=warmup, nesterov=True)


@pytest.mark.parametrize("memory", ["dgc", "dgc(mask=false)", "gmc", "gain"])
def test_tables_with_sparse_gradients_do_too(ranks: Pool, memory: str) -> None:
    ranks.play("optimizers.tables_train_as_without", ranks=2, memory=memory)


@pytest.mark.parametrize("memory", ["dgc(nesterov=true)", "gain(nesterov=true)"])
def test_tables_keep_their_look_ahead(ranks: Pool, memory: str) -> None:
    ranks.play("optimizers.tables_train_as_without", ranks=2, memory=memory, nesterov=True)


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_behind_gain_sgd_trains_as_without_whatever_comes_between(ranks: Pool, nesterov: bool, loaded: bool) -> None:
    ranks.play("optimizers.gain_trains_as_without", ranks=2, nesterov=nesterov, loaded=loaded)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_gmc_follows_the_learning_rate(ranks: Pool, momentum: float) -> None:
    ranks.play("optimizers.gmc_follows_the_rate", ranks=2, momentum=momentum)


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_adam_has_no_first_moment_where_gradients_are_sparse(ranks: Pool, kind: str, closure: bool) -> None:
    ranks.play("optimizers.adam_has_no_first_moment_where_sparse", ranks=2, kind=kind, closure=closure)


def test_what_does_not_fit_is_named_with_the_line_to_write(ranks: Pool) -> None:
    for texts in ranks.play("optimizers.says_what_does_not_fit"):
        momentum, dampening, nesterov, other, ahead, groups, never, adam, kind, *strange, warned = texts
        assert "momentum of 0.8, SGD has 0.9" in momentum
        assert "dampening=0" in dampening
        assert "write memory=dgc(momentum=0.9, nesterov=true)" in nesterov
        assert "write memory=dgc(momentum=0.9, nesterov=true)" in other
        assert "write memory=gain(momentum=0.9, nesterov=false)" in ahead
        assert "momentum of 0.5, SGD has 0.9" in groups
        assert "with AdamW write memory=residual" in never and "with AdamW write memory=residual" in adam
        for text, name in zip(strange, ["NAdam", "RMSprop"], strict=True):
            assert f"is for SGD with momentum; with {name} write memory=residual" in text
        assert "torch.optim.Optimizer" in kind
        assert "write memory=gain(momentum=0.9)" in warned


def test_a_momentum_is_read_from_sgd_alone(ranks: Pool) -> None:
    ranks.play("optimizers.only_sgd_has_a_momentum", ranks=2)


def test_what_waits_follows_the_rate_only_where_that_is_asked_for(ranks: Pool) -> None:
    ranks.play("optimizers.follows_when_asked", ranks=2)


def test_following_the_rate_is_refused_where_it_means_nothing(ranks: Pool) -> None:
    for adam, unknown, none, kind in ranks.play("optimizers.refuses_to_follow", ranks=2)[:2]:
        assert "is for SGD" in adam and "with AdamW leave it out" in adam
        assert "with RMSprop leave it out" in unknown
        assert "give optimizer=, or leave follow_rate out" in none
        assert "follow_rate is True or False, not 1" in kind
