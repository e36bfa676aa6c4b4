"""Scenes of optimizers behind a memory: the user's own, which stay as they are."""

from __future__ import annotations

import io
import warnings
from typing import Any

import torch
from scenes_attach import backward, build
from torch import nn
from torch_ranks import Stage, raises

from sparsewire.errors import AccuracyWarning, InputError
from sparsewire.torch import attach
from sparsewire.training import notices

ALL = "nonzero | values=raw | memory="


def groups(model: nn.Module) -> list[dict[str, Any]]:
    named = dict(model.named_parameters())
    first = [one for name, one in named.items() if name.startswith("first")]
    others = [one for name, one in named.items() if not name.startswith("first")]
    return [{"params": first, "weight_decay": 0.1, "lr": 0.02}, {"params": others, "weight_decay": 0.01}]


def assert_close(one: nn.Module, other: nn.Module) -> None:
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)


def step(stage: Stage, model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.zero_grad()
    backward(stage, model, number)
    optimizer.step()


def step_with_closure(stage: Stage, model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    """Backward within `step()`, as Lightning does it."""

    def closure() -> float:
        optimizer.zero_grad()
        backward(stage, model, number)
        return 0.5

    assert optimizer.step(closure) == 0.5


def resumed(stage: Stage, model: nn.Module, optimizer: torch.optim.Optimizer, link: Any, make: Any) -> Any:
    """Everything saved and taken up again in new objects."""
    packed = io.BytesIO()
    torch.save([model.module.state_dict(), optimizer.state_dict(), link.state_dict()], packed)
    link.detach()
    packed.seek(0)
    weights, moments, state = torch.load(packed, weights_only=True)
    again, behind, linked = make()
    again.module.load_state_dict(weights)
    behind.load_state_dict(moments)
    linked.load_state_dict(state)
    return again, behind, linked


def sgd_trains_as_without(stage: Stage, memory: str, warmup: int = 0, **settings: Any) -> None:
    """With everything sent: the user's SGD behind dgc or gmc = plain DDP, through a resume and a detach."""

    def make() -> Any:
        model = stage.ddp(build())
        optimizer = torch.optim.SGD(groups(model.module), lr=0.05, momentum=0.9, **settings)
        return model, optimizer, attach(model, ALL + memory, optimizer=optimizer, dense_below=100, warmup_steps=warmup)

    plain = stage.ddp(build())
    if settings.get("nesterov"):  # weight decay gets no look-ahead
        changed = [{**group, "weight_decay": 0} for group in groups(plain.module)]
    else:
        changed = groups(plain.module)
    reference = torch.optim.SGD(changed, lr=0.05, momentum=0.9, **settings)
    wired, optimizer, link = make()
    for number in range(50):
        if settings.get("nesterov"):
            for group in optimizer.param_groups:
                group["weight_decay"] = 0
        if number == 20:
            wired, optimizer, link = resumed(stage, wired, optimizer, link, make)
        if number == 40 and not settings.get("nesterov"):  # whose buffer holds another thing while attached
            link.detach()
        for model, behind in ((plain, reference), (wired, optimizer)):
            step(stage, model, behind, number)
        assert [g["nesterov"] for g in optimizer.param_groups] == [settings.get("nesterov", False)] * 2
    link.detach()
    assert_close(wired.module, plain.module)


def gain_trains_as_without(stage: Stage, nesterov: bool, loaded: bool) -> None:
    """With everything sent: SGD behind gain = plain DDP, through dense steps, a resume, a detach, and a new link.

    Rates change, weight decay has its own momentum and look-ahead, and the new link may go on from the old one's state.
    """
    settings = {"lr": 0.05, "momentum": 0.9, "nesterov": nesterov}
    memory = f"gain(momentum=0.9, nesterov={str(nesterov).lower()})"

    def make() -> Any:
        model = stage.ddp(build())
        optimizer = torch.optim.SGD(groups(model.module), **settings)
        return model, optimizer, attach(model, ALL + memory, optimizer=optimizer, dense_below=100, warmup_steps=4)

    plain = stage.ddp(build())
    reference = torch.optim.SGD(groups(plain.module), **settings)
    wired, optimizer, link = make()
    for number in range(50):
        if number == 15:
            wired, optimizer, link = resumed(stage, wired, optimizer, link, make)
        if number == 25:
            state = link.state_dict()
            link.detach()
        if number == 33:
            link = attach(wired, ALL + memory, optimizer=optimizer, dense_below=100, warmup_steps=36 if loaded else 3)
            if loaded:
                link.load_state_dict(state)
        for model, behind in ((plain, reference), (wired, optimizer)):
            for group in behind.param_groups:
                group["lr"] *= 0.98
            step(stage, model, behind, number)
        assert [group["nesterov"] for group in optimizer.param_groups] == [nesterov] * 2
    link.detach()
    assert_close(wired.module, plain.module)


def tables_train_as_without(stage: Stage, memory: str, nesterov: bool = False) -> None:
    """Sparse (COO) gradients are sent whole: torch's SGD has their momentum, as in plain DDP, whatever is masked."""

    def make() -> Any:
        model = stage.ddp(build("words"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=nesterov)
        return model, optimizer, attach(model, ALL + memory, optimizer=optimizer, warmup_steps=3, exclude=["dense.*"])

    plain = stage.ddp(build("words"))
    reference = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9, nesterov=nesterov)
    wired, optimizer, link = make()
    for number in range(30):
        if number == 12:
            wired, optimizer, link = resumed(stage, wired, optimizer, link, make)
        if number == 25:
            link.detach()
        for model, behind in ((plain, reference), (wired, optimizer)):
            step(stage, model, behind, number)
    buffer = optimizer.state[wired.module.words.weight]["momentum_buffer"]
    assert buffer.is_sparse and buffer.to_dense().any()
    assert_close(wired.module, plain.module)


def gmc_follows_the_rate(stage: Stage, momentum: float) -> None:
    """With everything sent, u = g − (β/η)(w_t − w_{t−1}) moves weights by V_t = β·V_{t−1} + η_t·g, whatever η does."""
    plain, wired = stage.ddp(build()), stage.ddp(build())
    optimizer = torch.optim.SGD(groups(wired.module), lr=0.05, momentum=momentum)
    rates = [group["lr"] for group in optimizer.param_groups]
    link = attach(wired, ALL + "gmc(momentum=0.9)", optimizer=optimizer, dense_below=0, warmup_steps=4)
    moves: dict[str, torch.Tensor] = {}
    for number in range(20):
        factor = min(number, 6) / 6 * 0.9**number  # a warm-up from zero, then a rate that falls
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"], group["weight_decay"] = rate * factor, 0.0
        plain.zero_grad()
        backward(stage, plain, number)
        with torch.no_grad():
            for name, parameter in plain.module.named_parameters():
                rate = rates[0 if name.startswith("first") else 1] * factor
                moves[name] = 0.9 * moves.get(name, torch.zeros(())) + rate * parameter.grad
                parameter -= moves[name]
        step(stage, wired, optimizer, number)
    link.detach()
    assert_close(wired.module, plain.module)


def adam_has_no_first_moment_where_sparse(stage: Stage, kind: str, closure: bool) -> None:
    """AdamW with β1 = 0 for what travels sparse, as it is for the rest; groups, scheduler and state look untouched."""
    make = getattr(torch.optim, kind)
    plain, wired = stage.ddp(build()), stage.ddp(build())
    sparse = [one for one in plain.parameters() if one.numel() >= 100]
    dense = [one for one in plain.parameters() if one.numel() < 100]
    reference = make([{"params": sparse, "betas": (0.0, 0.99)}, {"params": dense}], lr=0.01, betas=(0.9, 0.99))
    optimizer = make(wired.module.last.parameters(), lr=0.01, betas=(0.9, 0.99))
    link = attach(wired, ALL + "residual", optimizer=optimizer, dense_below=100, warmup_steps=3)
    rest = [one for one in wired.parameters() if all(one is not other for other in wired.module.last.parameters())]
    optimizer.add_param_group({"params": rest})
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 5, 0.5) for one in (reference, optimizer)]
    for number in range(20):
        reference.param_groups[0]["betas"] = (0.9 if number < 3 or number >= 15 else 0.0, 0.99)
        if number == 15:
            link.detach()
        for model, behind, scheduler in zip((plain, wired), (reference, optimizer), schedulers, strict=True):
            (step_with_closure if closure and model is wired else step)(stage, model, behind, number)
            scheduler.step()
        assert [group["betas"] for group in optimizer.param_groups] == [(0.9, 0.99)] * 2
        assert [len(group["params"]) for group in optimizer.param_groups] == [2, len(rest)]
    assert_close(wired.module, plain.module)
    assert not optimizer._optimizer_step_pre_hooks


class Strange(torch.optim.Optimizer):
    """An optimizer of somebody's own, with a momentum that is not SGD's, as Muon's is not."""

    def __init__(self, parameters: Any, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": 0.1, "momentum": momentum})

    def step(self, closure: Any = None) -> None:
        """Does nothing."""


def only_sgd_has_a_momentum(stage: Stage) -> None:
    """What other optimizers call momentum is not handed out; error feedback alone may stand in front of them."""
    model = stage.ddp(build())
    for make, momentum in ((torch.optim.SGD, 0.9), (Strange, 0.0), (torch.optim.RMSprop, 0.0)):
        with attach(model, "topk(5%) | memory=none", optimizer=make(model.parameters(), momentum=0.9)) as link:
            assert set(link.settings.momenta().values()) == {momentum}


def follows_when_asked(stage: Stage) -> None:
    """At half the rate what waits is doubled, if follow_rate says so, and stays as it is otherwise."""
    for settings, factor in (({}, 1.0), ({"follow_rate": False}, 1.0), ({"follow_rate": True}, 2.0)):
        model = stage.ddp(build())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with attach(model, "topk(k=1) | values=raw", optimizer=optimizer, dense_below=0, **settings) as link:
            step(stage, model, optimizer, 0)
            before = link.state_dict()["buffers"]["middle.weight"]["residual"].clone()
            optimizer.param_groups[0]["lr"] = 0.25
            model.zero_grad()
            (0 * model(torch.zeros(6, 20))).sum().backward()  # no gradient: what waits stays here
            after = link.state_dict()["buffers"]["middle.weight"]["residual"]
            assert before.any() and torch.equal(after, factor * before)


def refuses_to_follow(stage: Stage) -> list[str]:
    model = stage.ddp(build())
    sgd = torch.optim.SGD(model.parameters())
    wrong = [
        {"optimizer": torch.optim.AdamW(model.parameters()), "follow_rate": True},
        {"optimizer": torch.optim.RMSprop(model.parameters()), "follow_rate": True},
        {"follow_rate": True},
        {"optimizer": sgd, "follow_rate": 1},
    ]
    return [raises(InputError, lambda told=told: attach(model, "topk(5%) | memory=residual", **told)) for told in wrong]


def says_what_does_not_fit(stage: Stage) -> list[str]:
    model = stage.ddp(build())
    parameters = list(model.parameters())
    sgd, texts = torch.optim.SGD, []
    wrong = [
        ("memory=dgc(momentum=0.8)", sgd(parameters, momentum=0.9)),
        ("memory=dgc", sgd(parameters, momentum=0.9, dampening=0.1)),
        ("memory=dgc", sgd(parameters, momentum=0.9, nesterov=True)),
        ("memory=gmc", sgd(parameters, momentum=0.9, nesterov=True)),
        ("memory=gain(nesterov=true)", sgd(parameters, momentum=0.9)),
        (
            "memory=gain(momentum=0.5)",
            sgd([{"params": parameters[:2], "momentum": 0.5}, {"params": parameters[2:]}], momentum=0.9),
        ),
        ("memory=gain", torch.optim.AdamW(parameters)),
        ("memory=dgc", torch.optim.AdamW(parameters)),
        ("memory=dgc", "sgd"),
        ("memory=gmc", torch.optim.NAdam(parameters)),
        ("memory=dgc", torch.optim.RMSprop(parameters)),
    ]
    for memory, optimizer in wrong:
        scheme = f"topk(5%) | {memory}"
        texts.append(raises(InputError, lambda: attach(model, scheme, optimizer=optimizer)))  # noqa: B023
    notices._said.clear()  # an earlier scene may have heard it
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            attach(model, "topk(5%) | memory=residual", optimizer=sgd(parameters, momentum=0.9)).detach()
    texts += [str(one.message) for one in caught if one.category is AccuracyWarning]
    with attach(model, "topk(5%) | memory=dgc", optimizer=sgd(parameters)):  # without momentum it gets the means
        backward(stage, model, 0)
    return texts
