"""Scenes of `attach(model, "auto")`: dense steps are plain DDP's, switches lose nothing, runs resume to the bit."""

from __future__ import annotations

import io
import time
from typing import Any

import mock_streams
import pytest
import scenes_state
import torch
from scenes_attach import Ledger, backward, build, descend, step_alike
from scenes_state import Run
from torch_ranks import LIMIT, Stage, dense_kept, logged, raises, same_bits

from sparsewire.errors import CommError, InputError, SchemeError
from sparsewire.planning.cost.coded import Speeds
from sparsewire.planning.cost.step import Codecs, coding
from sparsewire.torch import Auto, attach, local_steps
from sparsewire.torch.ddp import auto_link
from sparsewire.torch.ddp.streams import step_timer

SCRIPT = {4: 1, 8: 0, 11: 2, 14: 1, 17: 0}  # from which step on which way
AUTO = "auto(ratio=5%)"
CODECS = Codecs(1e-9, 1e-9, 1.0, 0.05, Speeds(*[1e-9] * 11))


def join(model: Any, scheme: Any = AUTO, **settings: Any) -> Any:
    """`attach`, without the second that measuring the codecs takes: what they cost is made up."""
    measured = auto_link.survey
    auto_link.survey = lambda comm, plans, numel: dict.fromkeys(map(coding, plans), CODECS)
    try:
        return attach(model, scheme, **{"optimizer": None, **settings})
    finally:
        auto_link.survey = measured


def follow(link: Any, script: dict[int, int]) -> None:
    """The controller decides by a script, at checks after every step: what is measured makes no difference."""
    controller = link.controller

    def decide(step: int, agreed: Any, nbytes: int = 0) -> None:
        controller.samples = []
        if step + 1 in script and script[step + 1] != controller.choice:
            controller.predictions = [1.0] * len(controller.methods)
            controller._switch(step + 1, script[step + 1], "is what the script says")
        controller.next_check = step + 1

    controller.decide, controller.next_check = decide, 0


def dense_is_plain(stage: Stage, dtype: str = "", kind: str = "plain", **settings: Any) -> dict[str, Any]:
    """As long as it is dense, gradients are plain DDP's; all but the first step go without the communication thread."""
    plain, wired = (stage.ddp(build(kind, dtype), bucket_cap_mb=0.005) for _ in range(2))
    with join(wired, AUTO, **settings) as link:
        follow(link, {})
        queued, before = watch_queued(link), link.stats()["bytes_sent"]
        for step in range(6):
            step_alike(stage, plain, wired, step)
            assert link.step == step + 1
        stage.assert_same(wired.module)
        assert link.controller.stats()["switches"] == [] and link.stats()["auto"]["choice"] == "dense"
        found = link.stats()
        return {
            "queued": queued,
            "steps": found["steps"],
            "ratio": (found["bytes_sent"] - before) / found["bytes_dense"],
        }


def momentum_is_the_optimizers(stage: Stage, momentum: float) -> list[int]:
    """With everything sent: SGD behind gain = plain DDP, dense or compressed; the steps of the communication thread."""
    plain, wired = (stage.ddp(build(), bucket_cap_mb=0.005) for _ in range(2))
    reference = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    optimizer = torch.optim.SGD(wired.parameters(), lr=0.05, momentum=momentum, weight_decay=0.01 if momentum else 0)
    reference.param_groups[0]["weight_decay"] = optimizer.param_groups[0]["weight_decay"]
    scheme = "auto(ratio=100%) | values=raw | memory=gain(momentum=0.9)"
    with join(wired, scheme, optimizer=optimizer, dense_below=0) as link:
        follow(link, SCRIPT)
        queued = watch_queued(link)
        for step in range(20):
            for model, behind in ((plain, reference), (wired, optimizer)):
                behind.zero_grad()
                backward(stage, model, step)
                behind.step()
        assert len(link.stats()["auto"]["switches"]) == len(SCRIPT)
    for one, other in zip(wired.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)
    return sorted(set(queued))


def one_rank_is_told(stage: Stage) -> list[int]:
    """A callback on rank 0 alone: dense and compressed steps are the same on all ranks."""
    plain, wired = (stage.ddp(build(), bucket_cap_mb=0.005) for _ in range(2))
    told: list[int] = []
    with join(wired, AUTO, on_step=(lambda facts: told.append(facts["steps"])) if stage.rank == 0 else None) as link:
        follow(link, {4: 1, 7: 0})
        for step in range(4):
            step_alike(stage, plain, wired, step)
            stage.assert_same(wired.module)
        for step in range(4, 10):
            backward(stage, wired, step)
            descend(wired.module)
            stage.assert_same(wired.module)
    return told


def watch_queued(link: Any) -> list[int]:
    """The steps of which the communication thread gets a bucket."""
    seen, send = [], link._comm_thread.send

    def watch(*args: Any) -> Any:
        seen.append(link.step)
        return send(*args)

    link._comm_thread.send = watch
    return seen


def loses_nothing(stage: Stage, kind: str = "plain", scheme: str = AUTO, **settings: Any) -> list[str]:
    """Over dense and compressed steps: the gradients that went in = the means that came out + what waits."""
    unused = {"find_unused_parameters": True} if kind == "branches" else {}
    wired = stage.ddp(build(kind), bucket_cap_mb=0.005, **unused)
    ledger, methods = Ledger(stage, wired), []
    with join(wired, scheme, dense_below=0, **settings) as link:
        follow(link, SCRIPT)
        for step in range(17 + 3 * (kind == "branches")):
            ledger.step(step)
            state = link.state_dict()  # also while a check is on its way
            methods.append("dense" if state["auto"]["choice"] == 0 else "sparse")
            if step in (6, 9, 12, 16):
                ledger.balance(state)
            waits = any(kept.any() for kept in dense_kept(state).values())
            assert waits == (step in (4, 5, 6, 7, 11, 12, 13, 14, 15, 16)) or kind != "plain", step
        assert len(link.stats()["auto"]["switches"]) == len(SCRIPT)
    return methods


def resumes_exactly(stage: Stage, folder: str, stop: int, scheme: str = AUTO) -> None:
    """Stopped, saved and resumed = never stopped, whatever method it was on."""
    scenes_state.attach = join
    try:
        whole, first, second = (Run(stage, buckets="one", scheme=scheme) for _ in range(3))
    finally:
        scenes_state.attach = attach
    for run in (whole, first, second):
        follow(run.link, SCRIPT)
    whole.train(20)
    first.train(stop)
    first.save(folder)
    buffer = io.BytesIO()
    torch.save(first.link.state_dict(), buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True)["auto"]["choice"] == first.link.controller.choice
    for key, odd in (("choice", 99), ("histories", []), ("since", "x"), ("switches", [{}]), ("measured", None)):
        state = first.link.state_dict()
        raises(
            InputError, lambda state=state | {"auto": state["auto"] | {key: odd}}: second.link.load_state_dict(state)
        )
        assert (second.link.step, second.link.controller.choice) == (0, 0)
    second.load(folder)
    assert second.link.controller.choice == first.link.controller.choice
    second.train(20)
    for name, parameter in whole.model.module.state_dict().items():
        assert same_bits(parameter, second.model.module.state_dict()[name]), name
    assert whole.link.stats()["auto"]["switches"] == second.link.stats()["auto"]["switches"]
    for run in (whole, first, second):
        run.link.detach()


def chooses_alone(stage: Stage) -> tuple[str, list[dict[str, Any]], int]:
    """Its own measurements and decisions, on a clock that makes every all_reduce of a bucket slow."""
    wired = stage.ddp(build(), bucket_cap_mb=0.005)
    with logged() as lines, attach(wired, AUTO, optimizer=None) as link:
        span, late = link.times.span, [0.0]
        timer = link.times.timer
        link.times.timer = lambda: timer() + late[0]  # time passes in dense exchanges, and nowhere else

        def slow(begun: float) -> None:
            late[0] += 1.0
            span(begun)

        link.times.span = slow
        for step in range(6):
            backward(stage, wired, step)
            descend(wired.module)
        stage.assert_same(wired.module)
        stats = link.stats()["auto"]
    return stats["choice"], stats["switches"], sum("auto: from step" in line for line in lines)


def is_timed_by_events(stage: Stage) -> tuple[str, int]:
    """The same by the events of a device whose time passes in dense exchanges alone, whatever the host's clock says."""
    with pytest.MonkeyPatch.context() as patch:
        engine, wired = mock_streams.Engine(patch), stage.ddp(build(), bucket_cap_mb=0.005)
        with attach(wired, AUTO, optimizer=None) as link:
            link.times = step_timer([torch.device("cuda", 0)])
            span = link.times.span

            def slow(begun: Any) -> None:
                engine.launch(lambda: None, 1.0)
                span(begun)

            link.times.span = slow
            for step in range(6):
                backward(stage, wired, step)
                descend(wired.module)
            stats = link.stats()["auto"]
    return stats["choice"], len(stats["switches"])


def refuses(stage: Stage) -> None:
    model = stage.ddp(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for scheme, settings, reason in [
        ("auto(rato=1%)", {}, "did you mean 'ratio'"),
        ("auto", {"nodes": stage.size}, "leave nodes out"),
        ("auto", {"on_divergence": "dense"}, 'write on_divergence="warn"'),
        ("auto | transform=fft", {"select_per": "model"}, "transform"),
        (Auto(["nonzero"]), {"ratio_schedule": lambda step: 0.1}, "ratio"),
    ]:
        assert reason in raises((InputError, SchemeError), lambda: attach(model, scheme, optimizer=None, **settings))  # noqa: B023
    told = raises(InputError, lambda: local_steps(model.module, optimizer, "auto", every=2))
    assert "has no auto" in told, told
    margin = 0.05 + 0.1 * (stage.rank == 1)
    assert "auto" in raises(Exception, lambda: attach(model, Auto(["topk(1%)"], margin=margin), optimizer=None))


def says_who_failed(stage: Stage) -> str:
    """A rank leaves in a dense step: the others hear of it at once, from backward."""
    model = stage.ddp(build(), bucket_cap_mb=0.005)
    link = join(model, AUTO)
    for step in range(3):
        backward(stage, model, step)
    if stage.rank == 1:
        leave(link, "out of patience")
        return ""
    start = time.monotonic()
    text = raises(CommError, lambda: [backward(stage, model, step) for step in range(3, 6)])
    assert time.monotonic() - start < LIMIT.total_seconds() - 5  # not by the group's timeout
    for step in (6, 7):
        assert raises(CommError, lambda: backward(stage, model, step)) == text  # noqa: B023
    link.state_dict()
    leave(link, "enough")
    return text


def leave(link: Any, why: str) -> None:
    link.detach(ValueError(why))
