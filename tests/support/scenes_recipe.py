"""Scenes of `attach` where it chooses: by the optimizer, and by the length of the run."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from scenes_attach import backward, build
from scenes_optimizers import Strange, assert_close, step
from torch import nn
from torch_ranks import Stage, raises

from sparsewire.codecs.scheme import scheme
from sparsewire.errors import AccuracyWarning, InputError
from sparsewire.torch import Auto, attach, local_steps
from sparsewire.training import notices

SETTINGS: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9}, "RMSprop": {"momentum": 0.0}}


class Lion(Strange):
    """An optimizer that torch does not have, by its usual name."""


def said(call: Any) -> tuple[Any, list[str]]:
    """What a call returns, and the lines that it logs."""
    lines: list[str] = []
    handler, logger = logging.Handler(), logging.getLogger("sparsewire")
    handler.emit = lambda record: lines.append(record.getMessage())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        return call(), lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def one_line(stage: Stage) -> None:
    """Nothing but the optimizer and the steps: everything is chosen, and said on rank 0, once."""
    model = stage.ddp(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    link, lines = said(lambda: attach(model, optimizer=optimizer, total_steps=400))
    call = 'attach(model, "topk(ratio=0.05) | memory=gain(momentum=0.9, nesterov=true)", optimizer=optimizer)'
    assert repr(link) == f"<Link at step 0: {call}>" and repr(link.recipe) == call
    assert [line for line in lines if "attach(" in line] == ([link.recipe.text()] if stage.rank == 0 else [])
    assert str(link.settings.schedule.scheme.memory) == "gain(momentum=0.9, nesterov=true)"
    for number in range(4):
        step(stage, model, optimizer, number)
    stage.assert_same(model.module)
    assert link.stats()["recipe"] == call and 0 < link.stats()["bytes_sent"] < link.stats()["bytes_dense"]
    link.detach()
    assert repr(link) == f"<Link detached: {call}>"


def local_steps_say_what_they_chose(stage: Stage) -> None:
    """As `attach` does: the link's repr, its statistics, and one line on rank 0."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    link, lines = said(lambda: local_steps(model, optimizer, every=2, total_steps=400, group=stage.group))
    scheme = "topk(ratio=0.025) | memory=residual(decay=0.95) | exchange=allgather(mean=sqrt)"
    call = f'local_steps(model, optimizer, "{scheme}", every=2)'
    assert repr(link) == f"<LocalLink at step 0: {call}>" and link.stats()["recipe"] == repr(link.recipe) == call
    assert [line for line in lines if "local_steps(" in line] == ([link.recipe.text()] if stage.rank == 0 else [])
    for number in range(3):
        stage.seed(number)
        optimizer.zero_grad()
        model(torch.randn(6, 20)).square().mean().backward()
        optimizer.step()
    link.detach()
    assert repr(link) == f"<LocalLink detached: {call}>"
    stage.assert_same(model)


def adam_goes_on_beyond_its_steps(stage: Stage) -> None:
    """One threshold, a ratio that falls, and a run that is longer than announced, also after a resume."""

    def make() -> Any:
        model = stage.ddp(build())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return model, optimizer, attach(model, optimizer=optimizer, total_steps=5, coverage=0.5, dense_below=10)

    model, optimizer, link = make()
    assert link.settings.select_per == "model" and link.recipe.ratio == 0.1
    ratios = []
    for number in range(9):
        ratios.append(link.settings.schedule.at(link.step).select.ratio)
        step(stage, model, optimizer, number)
        if number == 6:
            state = link.state_dict()
            link.detach()
            link = attach(model, optimizer=optimizer, total_steps=5, coverage=0.5, dense_below=10)
            link.load_state_dict(state)
    assert ratios[0] > ratios[3] > ratios[5] == ratios[6] == ratios[7] == ratios[8]
    stage.assert_same(model.module)
    link.detach()


def the_optimizer_is_asked_for(stage: Stage) -> list[str]:
    """No memory is guessed; a scheme that names one, a preset, and optimizer=None are answers."""
    model = stage.ddp(build())
    texts = [
        raises(InputError, lambda one=one: attach(model, one))
        for one in (None, "topk(1%)", "auto", {"select": "topk(1%)"}, Auto(["topk(1%)"]))
    ]
    for answer in (
        "topk(1%) | memory=residual",
        scheme("topk(1%)"),
        "deepreduce",
        {"select": "topk", "memory": "none"},
    ):
        attach(model, answer).detach()
    attach(model, memory="residual").detach()
    with attach(model, optimizer=None) as link:
        assert repr(link.recipe) == 'attach(model, "topk(ratio=0.05) | memory=residual", optimizer=None)'
    other = torch.optim.SGD(build().parameters(), lr=0.1)
    return [*texts, raises(InputError, lambda: attach(model, optimizer=other))]


def candidates_get_the_memory(stage: Stage) -> None:
    """The candidates of auto are completed as any scheme."""
    model = stage.ddp(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8)
    for given, ratio in (("auto", 0.02), ("auto(ratio=3%)", 0.03), (Auto(["topk", "topk(3%) | values=raw"]), 0.02)):
        with attach(model, given, optimizer=optimizer, total_steps=1000) as link:
            plans = [method for method in link.controller.methods if method is not None]
            assert {str(plan.memory) for plan in plans} == {"gain(momentum=0.8, nesterov=false)"}
            assert plans[0].select.ratio == ratio


def muon_beside_adam(stage: Stage) -> str:
    """Muon keeps its momentum, AdamW goes without its first moment; with everything sent both train as they would."""

    def make(model: nn.Module, betas: tuple[float, float]) -> list[torch.optim.Optimizer]:
        matrices = [one for one in model.parameters() if one.ndim == 2]
        others = [one for one in model.parameters() if one.ndim != 2]
        return [torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW(others, lr=0.01, betas=betas)]

    plain, wired = stage.ddp(build()), stage.ddp(build())
    references, optimizers = make(plain.module, (0.0, 0.99)), make(wired.module, (0.9, 0.99))
    text = raises(InputError, lambda: attach(wired, optimizer=optimizers, ratio=0.01))
    with attach(wired, "nonzero | values=raw", optimizer=optimizers, dense_below=0) as link:
        assert str(link.settings.schedule.scheme.memory) == "residual(decay=1.0)"
        assert set(link.settings.momenta().values()) == {0.0} and len(link.settings.momenta()) == 8
        for number in range(6):
            for model, behind in ((plain, references), (wired, optimizers)):
                model.zero_grad()
                backward(stage, model, number)
                for one in behind:
                    one.step()
    assert_close(wired.module, plain.module)
    with attach(wired, optimizer=optimizers, total_steps=10_000) as link:
        assert link.recipe.ratio == 0.1 and link.settings.select_per == "parameter"
    return text


def sharded_optimizers_are_looked_into(stage: Stage, kind: str) -> str:
    """Behind ZeroRedundancyOptimizer the same happens as without it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of its functional optimizers
        from torch.distributed.optim import ZeroRedundancyOptimizer

    settings: dict[str, Any] = {"lr": 0.02, **({"momentum": 0.9} if kind == "SGD" else {"betas": (0.9, 0.99)})}
    one, other = stage.ddp(build()), stage.ddp(build())
    plain = getattr(torch.optim, kind)(one.parameters(), **settings)
    sharded = ZeroRedundancyOptimizer(
        other.parameters(), optimizer_class=getattr(torch.optim, kind), process_group=stage.group, **settings
    )
    links = [attach(model, optimizer=behind, ratio=0.2, dense_below=10)
             for model, behind in ((one, plain), (other, sharded))]  # fmt: skip
    assert repr(links[0].recipe) == repr(links[1].recipe)
    assert links[0].settings.momenta() == links[1].settings.momenta()
    for number in range(6):
        for model, behind in ((one, plain), (other, sharded)):
            step(stage, model, behind, number)
    assert_close(other.module, one.module)
    for link in links:
        link.detach()
    overlapping = ZeroRedundancyOptimizer(
        other.parameters(), torch.optim.SGD, process_group=stage.group, overlap_with_ddp=True, lr=0.1
    )
    return raises(InputError, lambda: attach(other, optimizer=overlapping))


def says_that_clipping_comes_too_late(stage: Stage, kind: str, scaled: bool, clip: str, view: bool) -> list[str]:
    """The warnings of three steps, of which the second and third are clipped."""
    notices._said.clear()
    model = stage.ddp(build(), gradient_as_bucket_view=view)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=scaled)
    told: list[str] = []
    with attach(model, optimizer=optimizer, scaler=scaler if scaled else None, dense_below=10):
        for number in range(3):
            optimizer.zero_grad()
            stage.seed(number)
            scaler.scale(model(torch.randn(6, 20)).square().mean()).backward()
            scaler.unscale_(optimizer)
            if number and clip:
                getattr(nn.utils, clip)(model.parameters(), 1.0)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                scaler.step(optimizer)
            scaler.update()
            told += [f"{number}: {one.message}" for one in caught if one.category is AccuracyWarning]
    return told


def made(kind: str, model: nn.Module) -> list[torch.optim.Optimizer]:
    """An optimizer of a class for what it can move, and plain SGD for the rest."""
    parameters = list(model.parameters())
    if kind == "SparseAdam":
        mine = [model.words.weight]
    else:
        mine = [one for one in parameters if one.ndim == 2] if kind == "Muon" else parameters
    cls = {"Strange": Strange, "Lion": Lion}.get(kind) or getattr(torch.optim, kind)
    ours = {id(one) for one in mine}
    rest = [one for one in parameters if id(one) not in ours]
    return [cls(mine, **SETTINGS.get(kind, {})), *([torch.optim.SGD(rest, lr=0.1)] if rest else [])]


def serves_or_refuses(stage: Stage, kind: str, memories: list[str]) -> list[str]:
    """For each memory "served", after steps that leave the ranks alike, or the refusal; "" is the recipe's own."""
    return [_serve(stage, kind, memory) for memory in memories]


def _serve(stage: Stage, kind: str, memory: str) -> str:
    model = stage.ddp(build("words" if kind == "SparseAdam" else "plain"))
    optimizers = made(kind, model.module)
    spec = f"topk(20%) | memory={memory}" if memory else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AccuracyWarning)
            link = attach(model, spec, optimizer=optimizers, dense_below=10)
    except InputError as error:
        return str(error)
    with link:
        for number in range(3):
            for one in optimizers:
                one.zero_grad()
            backward(stage, model, number)
            for one in optimizers:
                one.step(lambda: torch.zeros(()))
        stage.assert_same(model.module)
        assert all(torch.isfinite(one).all() for one in model.parameters())
    return "served"
