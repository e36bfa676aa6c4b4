"""Local steps: what the ranks come to, against brute force."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from local_runs import EXACT, MAKES, SIZE, SPARSE, Run, batch, bits, build, descend, on_ranks, trained, weights

from sparsewire.comm import Communicator
from sparsewire.errors import InputError
from sparsewire.torch import local_steps

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "every step, AdamW": {"every": 1, "optimizer": "adamw"},
    "senders, masked": {"mean": "senders", "mask_momentum": True},
    "square root, decayed": {"mean": "sqrt", "scheme": "topk(10%) | memory=residual(decay=0.95)"},
    "DiLoCo": {"scheme": EXACT, "outer": "sgd(rate=0.7, momentum=0.9, nesterov=true)"},
    "dense first": {"dense_rounds": 2, "ratio_schedule": [(2, 0.5)]},
    "lengths": {"every": [(2, 2), (4, 5)]},
    "a function": {"every": lambda round_: 1 + round_ % 3},
    "small ones dense": {"dense_below": 20, "exclude": ["0.*"]},
    "fragments": {"every": 6, "fragments": 3},
    "overlap": {"every": 4, "overlap": 2},
    "both": {"every": 7, "fragments": 2, "overlap": 2, "mix": 0.5},
    "momentum correction": {"scheme": "topk(10%) | memory=dgc"},
    "a gain": {"scheme": "topk(10%) | memory=gain", "dense_rounds": 1},
    "a transform": {"scheme": "topk(20%) | transform=rows(width=8)"},
}
every_setting = pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))


@every_setting
def test_after_a_meeting_all_ranks_hold_the_same_bits(settings: dict[str, Any]) -> None:
    runs = trained(17, **{"every": 4, **settings})
    assert len({run.bits() for run in runs}) == 1
    first = build()
    assert not torch.equal(weights(first), weights(runs[0].model))
    assert runs[0].link.stats()["steps"] == 17


def test_models_that_start_unequal_are_made_equal() -> None:
    def fn(comm: Communicator) -> bytes:
        run = Run(comm, every=5, seed=comm.rank)
        with_bits = run.bits()
        run.link.detach()
        return with_bits

    assert set(on_ranks(fn)) == {bits(build(0))}


def test_a_scheme_that_is_left_out_is_chosen_by_the_rounds() -> None:
    def fn(comm: Communicator) -> bytes:
        run = Run(comm, None, every=2, total_steps=100)
        assert run.link._settings.schedule.scheme.brief == (
            "topk(ratio=0.1) | memory=residual(decay=0.95) | exchange=allgather(mean=sqrt)"
        )
        run.train(6)
        run.link.detach()
        return run.bits()

    assert len(set(on_ranks(fn))) == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"coverage": -1}, "coverage is a number above 0"), ({"total_steps": 0}, "total_steps is the number"),
     ({"every": None}, "every is missing")],
)  # fmt: skip
def test_what_a_scheme_is_chosen_by_is_checked(settings: dict[str, Any], said: str) -> None:
    def fn(comm: Communicator) -> None:
        with pytest.raises(InputError, match=said):
            Run(comm, None, **{"every": 2, **settings})

    on_ranks(fn)


def test_what_is_not_trained_is_made_equal_too() -> None:
    def fn(comm: Communicator) -> bytes:
        model = build(comm.rank)
        model.register_buffer("order", torch.arange(3) + comm.rank)
        model.register_buffer("table", torch.full((2,), comm.rank / 3), persistent=False)
        model[0].weight.requires_grad_(False)
        optimizer = torch.optim.SGD(model[3].parameters(), lr=0.1)
        with local_steps(model, optimizer, SPARSE, every=2, group=comm) as link:
            descend(model, optimizer, batch(comm.rank, 0))
        assert set(link.rounds.common) == {"3.weight", "3.bias", "1.running_mean", "1.running_var"}
        return bits(model) + model.order.numpy().tobytes() + model.table.numpy().tobytes()

    (end,) = set(on_ranks(fn))
    assert bits(build(0))[:400] == end[:400]


# --- against brute force ---


def averaged_gradients(steps: int) -> torch.Tensor:
    """Plain data-parallel SGD."""
    model = build(norm=False)
    optimizer = MAKES["sgd"](model.parameters())
    for step in range(steps):
        copies = [copy.deepcopy(model) for _ in range(SIZE)]
        for rank, one in enumerate(copies):
            x = batch(rank, step)
            (one(x) - x[:, :3]).square().mean().backward()
        for parameter, *found in zip(model.parameters(), *(one.parameters() for one in copies), strict=True):
            parameter.grad = torch.stack([one.grad for one in found]).mean(0)
        optimizer.step()
    return weights(model)


def test_with_everything_sent_in_every_step_it_is_plain_data_parallel_training() -> None:
    runs = trained(12, scheme=EXACT, optimizer="sgd", norm=False, every=1)
    torch.testing.assert_close(weights(runs[0].model), averaged_gradients(12), rtol=1e-5, atol=1e-6)


def federated(optimizer: str, steps: int, every: int, outer: dict[str, Any]) -> torch.Tensor:
    """The ranks' models averaged by hand; the outer rule is torch's own optimizer."""
    common = build(norm=False)
    rule = torch.optim.SGD(common.parameters(), **outer)
    ranks = [copy.deepcopy(common) for _ in range(SIZE)]
    own = [MAKES[optimizer](model.parameters()) for model in ranks]
    for step in range(steps):
        for rank, model in enumerate(ranks):
            descend(model, own[rank], batch(rank, step))
        if (step + 1) % every == 0:
            for parameter, *found in zip(common.parameters(), *(one.parameters() for one in ranks), strict=True):
                parameter.grad = torch.stack([parameter.detach() - one.detach() for one in found]).mean(0)
            rule.step()
            for model in ranks:
                model.load_state_dict(common.state_dict())
    return weights(common)


@pytest.mark.parametrize("optimizer", MAKES)
@pytest.mark.parametrize(
    "outer", [{"lr": 1.0}, {"lr": 0.7, "momentum": 0.9, "nesterov": True}, {"lr": 0.5, "momentum": 0.5}], ids=str
)
def test_with_everything_sent_it_is_federated_averaging(optimizer: str, outer: dict[str, Any]) -> None:
    rule = {"id": "sgd", "rate": outer["lr"], **{key: value for key, value in outer.items() if key != "lr"}}
    runs = trained(12, scheme=EXACT, optimizer=optimizer, norm=False, every=4, outer=rule)
    expected = federated(optimizer, 12, 4, outer)
    torch.testing.assert_close(weights(runs[0].model), expected, rtol=1e-4, atol=1e-6)


def test_what_the_outer_rule_sees_is_what_the_ranks_sent() -> None:
    def fn(comm: Communicator) -> tuple[Any, ...]:
        run = Run(comm, every=4, mask_momentum=True, norm=False)
        before = {name: array.copy() for name, array in run.link.rounds.common.items()}
        run.train(4)
        after, sent = run.link.rounds.common, {name: part.flat() for name, part in run.link.rounds.sent.items()}
        result = before, {name: array.copy() for name, array in after.items()}, sent
        run.link.detach()
        return result

    ranks = on_ranks(fn)
    for name, before in ranks[0][0].items():
        total = np.sum([sent[name] for *_, sent in ranks], axis=0)
        assert total.any()
        np.testing.assert_allclose(before - ranks[0][1][name], total / SIZE, rtol=1e-5, atol=1e-7)


def test_what_was_not_sent_is_kept() -> None:
    """Over two rounds: the change of the weights is what was sent and what is left."""

    def fn(comm: Communicator) -> None:
        run = Run(comm, every=3, mask_momentum=True, norm=False)
        kept = {name: np.zeros_like(array) for name, array in run.link.rounds.common.items()}
        for round_ in range(2):
            run.train(3 * round_ + 2)
            common = {name: array.copy() for name, array in run.link.rounds.common.items()}
            seen: dict[str, np.ndarray] = {}
            visit = run.link.rounds.visit

            def spy(local: Any, kind: int, seen: Any = seen, visit: Any = visit) -> Any:
                seen.update({name: array.copy() for name, array in local.items()})
                return visit(local, kind)

            run.link.rounds.visit = spy
            run.train(3 * round_ + 3)
            run.link.rounds.visit = visit
            for name, buffers in run.link.rounds.averager.states.by_name.items():
                kept[name] = kept[name] + (common[name] - seen[name]) - run.link.rounds.sent[name].flat()
                np.testing.assert_allclose(buffers["residual"], kept[name], rtol=1e-4, atol=1e-7)
        run.link.detach()

    on_ranks(fn)


@pytest.mark.parametrize("fragments", [1, 2])
def test_progress_made_during_an_exchange_is_kept_and_counted_once(fragments: int) -> None:
    """Each rank's weights drift at a constant speed: with everything sent, the common ones do so at the mean speed."""

    def fn(comm: Communicator) -> torch.Tensor:
        model = torch.nn.ParameterDict({name: torch.zeros(3) for name in "ab"})
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        link = local_steps(model, optimizer, EXACT, group=comm, every=4, overlap=1, fragments=fragments)
        for _ in range(24):
            for parameter in model.parameters():
                parameter.grad = torch.full((3,), float(comm.rank))
            optimizer.step()
        link.detach()
        return torch.cat(list(model.values()))

    for end in on_ranks(fn):
        torch.testing.assert_close(end, torch.full((6,), -24.0))


def test_every_fragment_meets_once_in_a_round_and_all_are_about_as_large() -> None:
    def fn(comm: Communicator) -> None:
        run = Run(comm, every=6, fragments=3)
        rounds, met = run.link.rounds, []
        for step in range(6):
            met += [rounds.names()] if rounds.counts.steps == 1 else []
            run.train(step + 1)
        parameters = {name for name, _ in run.model.named_parameters()}
        assert [name for part in met for name in part if name in parameters] == list(rounds.common)[: len(parameters)]
        assert all({"1.running_mean", "1.running_var"} <= set(part) for part in met)
        run.link.detach()

    on_ranks(fn, 2)


def test_numbers_count_from_the_beginning() -> None:
    def fn(comm: Communicator) -> None:
        comm.all_gather(b"before")
        told: list[dict[str, Any]] = []
        run = Run(comm, every=5, on_round=told.append)
        assert run.link.stats()["bytes_sent"] == 0
        run.train(12)
        stats = run.link.stats()
        numbers = weights(run.model).numel()
        assert (stats["rounds"], stats["steps"], stats["bytes_dense"]) == (2, 12, 12 * 4 * numbers)
        assert 0 < stats["bytes_sent"] < stats["bytes_dense"] / 10
        assert stats["bytes_received"] > stats["bytes_sent"]
        assert [one["steps"] for one in told] == [5, 10] and all(one["finite"] for one in told)
        assert stats["seconds"]["select"] > 0
        run.link.detach()

    on_ranks(fn)
