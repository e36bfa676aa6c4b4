"""Local steps: meetings that do not fit, and settings that are refused, on every rank."""

from __future__ import annotations

from typing import Any

import pytest
from local_runs import MAKES, SIZE, SPARSE, Run, bits, build, on_ranks

from sparsewire.comm import Communicator
from sparsewire.errors import CommMismatch, InputError, PeerFailed, SchemeError
from sparsewire.torch import local_steps

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
