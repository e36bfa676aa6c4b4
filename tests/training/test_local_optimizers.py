"""Local steps: the optimizer's momentum, buffers and number types, and rounds in which a rank is not finite."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from local_runs import EXACT, SIZE, SPARSE, Run, batch, build, descend, on_ranks
from torch.nn.utils import prune

from sparsewire.comm import Communicator
from sparsewire.torch import local_steps

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
