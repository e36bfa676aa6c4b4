"""Local steps: what the ranks come to, against brute force."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from local_runs import EXACT, MAKES, SIZE, SPARSE, Run, batch, bits, build, descend, on_ranks, trained, weights
from torch.nn.utils import prune

from sparsewire.comm import Communicator
from sparsewire.errors import CommMismatch, InputError, PeerFailed, SchemeError
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


# --- momentum, buffers, scalers ---


@pytest.mark.parametrize(("optimizer", "key"), [("momentum", "momentum_buffer"), ("adamw", "exp_avg")])
@pytest.mark.parametrize("mask", [False, True])
def test_momentum_is_zeroed_where_something_was_sent(optimizer: str, key: str, mask: bool) -> None:
    def fn(comm: Communicator) -> None:
        run = Run(comm, every=4, optimizer=optimizer, mask_momentum=mask)
        run.train(4)
        for name, parameter in run.model.named_parameters():
            momentum = run.optimizer.state[parameter][key].flatten()
            zeros = torch.zeros(momentum.numel(), dtype=torch.bool)
            if mask:
                zeros[torch.from_numpy(run.link.rounds.sent[name].indices).long()] = True
                assert zeros.any() and not zeros.all()
                assert not momentum[zeros].any()
            dead = name == "0.bias"  # BatchNorm takes it out again
            assert dead or momentum[~zeros].all()
        run.link.detach()

    on_ranks(fn)


@pytest.mark.parametrize("buffers", ["mean", "keep"])
def test_batch_norms_statistics_are_averaged_or_left_alone(buffers: str) -> None:
    def fn(comm: Communicator) -> tuple[torch.Tensor, torch.Tensor, int]:
        run = Run(comm, every=4, buffers=buffers)
        mean = run.model[1].running_mean
        run.train(3)
        seen = []
        run.model.register_forward_hook(lambda *_: seen.append(mean.clone()))
        run.train(4)
        run.link.detach()
        return seen[0], mean.clone(), int(run.model[1].num_batches_tracked)

    ranks = on_ranks(fn)
    expected = torch.stack([before for before, _, _ in ranks]).mean(0)
    for before, after, count in ranks:
        torch.testing.assert_close(after, expected if buffers == "mean" else before)
        assert count == 4


def test_buffers_that_are_no_statistics_stay_as_they_are() -> None:
    def fn(comm: Communicator) -> None:
        model = build(norm=False)
        model.register_buffer("mask", torch.full((3,), -torch.inf))
        model.register_buffer("table", torch.full((3,), 0.1), persistent=False)
        model.register_buffer("third", torch.full((7,), 0.1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        link = local_steps(model, optimizer, SPARSE, every=1, group=comm)
        for step in range(3):
            descend(model, optimizer, batch(comm.rank, step))
        link.detach()
        assert link.stats()["nonfinite"] == 0
        assert model.mask.isinf().all() and (model.table == 0.1).all() and (model.third == 0.1).all()

    on_ranks(fn)


def test_masks_of_pruning_are_not_sent() -> None:
    def fn(comm: Communicator) -> set[str]:
        model = build()
        prune.random_unstructured(model[0], "weight", 0.5)
        model.register_buffer("own_mask", torch.full((3,), 0.5))
        link = local_steps(model, torch.optim.SGD(model.parameters(), lr=0.1), SPARSE, every=1, group=comm)
        link.detach()
        return {name for name in link.rounds.common if name.endswith("_mask")}

    assert on_ranks(fn) == [{"own_mask"}] * SIZE, "the user's own buffer takes part"


@pytest.mark.parametrize("optimizer", ["momentum", "fused"])
def test_steps_that_a_scaler_skips_do_not_count(optimizer: str) -> None:
    def fn(comm: Communicator) -> None:
        run = Run(comm, every=4, optimizer=optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for step in range(6):
            x = batch(comm.rank, step)
            run.optimizer.zero_grad()
            scaler.scale((run.model(x) - x[:, :3]).square().mean()).backward()
            if step in (1, 2):
                run.model[0].weight.grad[0, 0] = torch.inf
            scaler.step(run.optimizer)
            scaler.update()
            assert run.link.round == (step == 5)
        run.link.detach()
        assert run.link.step == 4

    on_ranks(fn)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_other_number_types_meet_as_well(dtype: torch.dtype) -> None:
    def fn(comm: Communicator) -> torch.Tensor:
        model = torch.nn.ParameterDict({"w": torch.linspace(1, 2, 40).to(dtype)})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        link = local_steps(model, optimizer, EXACT, every=2, group=comm)
        for _ in range(4):
            model["w"].grad = torch.full_like(model["w"], 0.25 * comm.rank)
            optimizer.step()
        link.detach()
        return model["w"].detach().clone()

    ends = on_ranks(fn)
    assert all(torch.equal(end, ends[0]) and end.dtype == dtype for end in ends)
    torch.testing.assert_close(ends[0], torch.linspace(0.5, 1.5, 40).to(dtype), rtol=0.01, atol=0.01)


# --- rounds in which a rank is not finite ---


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("settings", [{}, {"overlap": 2}, {"every": 8, "fragments": 2}], ids=str)
def test_one_ranks_nan_sends_all_back_to_the_common_weights(
    optimizer: str, bad: float, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def fn(comm: Communicator) -> bytes:
        rule = "sgd(rate=0.9, momentum=0.5)"
        run = Run(comm, optimizer=optimizer, outer=rule, **{"every": 4, **settings})
        run.train(9)
        run.link.meet()
        run.train(10)
        before = run.link.state_dict()
        if comm.rank == 1:
            run.model[0].weight.register_hook(lambda grad: grad * bad if run.step == 11 else grad)
        run.train(12)
        run.link.meet()
        after = run.link.state_dict()
        assert run.link.stats()["nonfinite"] >= 1
        for key in ("buffers", "outer", "common"):
            assert str(before[key]) == str(after[key])
        assert all(tensor.isfinite().all() for tensor in run.model.state_dict().values())
        for state in run.optimizer.state.values():
            assert all(kept.isfinite().all() for kept in state.values())
        run.train(30)
        assert run.link.stats()["nonfinite"] <= 2
        run.link.detach()
        return run.bits()

    assert len(set(on_ranks(fn))) == 1
    assert len([record for record in caplog.records if "not finite" in record.message]) == SIZE  # once a rank


# --- meetings that do not fit ---


def test_ranks_that_come_to_different_meetings_hear_so() -> None:
    def fn(comm: Communicator) -> str:
        run = Run(comm, every=4)
        run.train(2)
        with pytest.raises(CommMismatch, match=r"rank [01] is at meeting 0, which (is due|was called)") as told:
            run.link.meet() if comm.rank else run.train(4)
        run.link.detach()
        return str(told.value)

    assert len(set(on_ranks(fn, 2))) == 1


def test_the_last_meeting_waits_for_steps_of_any_rank() -> None:
    def fn(comm: Communicator) -> tuple[bytes, int]:
        run = Run(comm, every=9)
        run.train(3 if comm.rank == 1 else 0)
        run.link.detach()
        run.link.detach()
        run.train(5)
        return run.link.stats()["meetings"], bits(run.model) == bits(build())

    assert on_ranks(fn) == [(1, False)] * SIZE
    assert [meetings for meetings, _ in on_ranks(lambda comm: idle(comm))] == [0] * SIZE


def idle(comm: Communicator) -> tuple[int, int]:
    run = Run(comm, every=9)
    run.link.detach()
    return run.link.stats()["meetings"], run.link.stats()["bytes_sent"]


def test_while_an_exception_is_handled_a_rank_leaves_at_once() -> None:
    def fn(comm: Communicator) -> None:
        with Run(comm, every=4).link as link:
            if comm.rank == 1:
                raise KeyError("no such file")
            link.meet()

    with pytest.raises(KeyError, match="no such file"):
        on_ranks(fn)


# --- settings ---

REFUSED: dict[str, dict[str, Any]] = {
    "every is missing": {},
    "every is 0": {"every": 0},
    "every is a number": {"every": []},
    "ascend": {"every": [(4, 2), (3, 2)]},
    r"every\(0\) raised ZeroDivisionError": {"every": lambda round_: 1 // round_},
    r"every\(0\) gave 0.5": {"every": lambda round_: 0.5},
    "no outer rule 'sgdd'; did you mean 'sgd'": {"every": 2, "outer": "sgdd"},
    "rate is above 0": {"every": 2, "outer": "sgd(rate=0)"},
    "sgd has no setting 'lr'": {"every": 2, "outer": "sgd(lr=1)"},
    "nesterov needs a momentum": {"every": 2, "outer": "sgd(nesterov=true)"},
    "outer is a string": {"every": 2, "outer": 3},
    "mean is one of all, senders, sqrt": {"every": 2, "mean": "some"},
    "mask_momentum is True or False": {"every": 2, "mask_momentum": "yes"},
    "mask_momentum needs transform=identity": {
        "every": 2, "mask_momentum": True, "scheme": "topk(10%) | transform=rows(width=2)",
    },
    "dense_rounds is a whole number": {"every": 2, "dense_rounds": -1},
    "buffers is 'mean' or 'keep'": {"every": 2, "buffers": "sum"},
    "fragments is a whole number": {"every": 2, "fragments": 0},
    "1 … 6 fragments": {"every": 20, "fragments": 7},
    "less than fragments": {"every": 2, "fragments": 3},
    "overlap=2: it must be below 2": {"every": 4, "overlap": 2, "fragments": 2},
    r"overlap=1: it must be below 1.*every\(0\)=1": {"every": lambda round_: 1, "overlap": 1},
    r"every\(0\)=2 is less than fragments=3": {"every": lambda round_: 2, "fragments": 3},
    "overlap=4: it must be below 3": {"every": [(2, 9), (4, 3)], "overlap": 4},
    "overlap is a whole number": {"every": 4, "overlap": 0.5},
    "mix lies in 0 … 1": {"every": 4, "mix": 1.5},
    "on_round is a function": {"every": 4, "on_round": 1},
    "a communicator has a timeout of its own": {"every": 4, "timeout": 3.0},
    "matches no parameter": {"every": 4, "exclude": ["*.nothing"]},
    "dense_below is a number": {"every": 4, "dense_below": -1},
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_a_setting_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises((InputError, SchemeError), match=text):
        on_ranks(lambda comm: Run(comm, **REFUSED[text]), 1)


SHRINKS = {
    r"overlap=2: it must be below 2, when the next exchange begins \(every\(2\)=2, fragments=1\)": {"overlap": 2},
    r"overlap=1: it must be below 1, .* \(every\(2\)=2, fragments=2\)": {"overlap": 1, "fragments": 2},
    r"every\(2\)=2 is less than fragments=3": {"fragments": 3},
}


@pytest.mark.parametrize("text", SHRINKS)
def test_a_round_that_turns_out_too_short_is_refused_by_all(text: str) -> None:
    """At the same step: the first after which no exchange is on its way."""
    settings = SHRINKS[text]

    def fn(comm: Communicator) -> int:
        run = Run(comm, every=lambda round_: 6 if round_ < 2 else 2, **settings)
        for _ in range(2):  # an error stays
            with pytest.raises(InputError, match=text):
                run.train(17)
        assert run.link.round == 2
        return int(run.link.step)

    assert set(on_ranks(fn)) == {12 + settings.get("overlap", 1)}


def test_a_rank_that_refuses_is_heard_by_all() -> None:
    def fn(comm: Communicator) -> None:
        with pytest.raises((InputError, PeerFailed), match="buffers is 'mean' or 'keep'"):
            Run(comm, every=2, buffers="mean" if comm.rank else "sum")

    on_ranks(fn)


@pytest.mark.parametrize(
    ("name", "values"),
    [("every", (2, 3)), ("outer", ("sgd", "sgd(rate=0.5)")), ("dense_rounds", (0, 1)), ("mean", ("all", "sqrt"))],
)
def test_ranks_that_differ_are_told_in_what(name: str, values: tuple[Any, Any]) -> None:
    def fn(comm: Communicator) -> None:
        with pytest.raises(CommMismatch, match=f"{'scheme' if name == 'mean' else name}: "):
            Run(comm, **{"every": 2, name: values[comm.rank == 1]})

    on_ranks(fn)


def test_strange_models_and_optimizers_are_refused() -> None:
    def fn(comm: Communicator) -> None:
        model, other = build(), build()
        for optimizer, text in ((MAKES["sgd"](other.parameters()), "not the model's"), (None, "torch.optim.Optimizer")):
            with pytest.raises(InputError, match=text):
                local_steps(model, optimizer, SPARSE, every=2, group=comm)

    on_ranks(fn, 1)


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
