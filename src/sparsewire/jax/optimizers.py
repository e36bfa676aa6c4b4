"""What stands behind the exchange in the chain: optax's optimizers by their names, and whether a memory goes with them.

An optax transformation does not tell its settings, so the user writes them: `optimizer="sgd(momentum=0.9)"`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparsewire.codecs.contract import Memory
from sparsewire.codecs.registry import nearest
from sparsewire.codecs.scheme import parse_call
from sparsewire.errors import InputError, SchemeError
from sparsewire.training.fit import check_momentum
from sparsewire.training.notices import say_once
from sparsewire.training.recipe import OptimizerFacts

INSTEAD = 'train with sgd, or with adamw and b1=0.0, or send everything: exchange("nonzero | memory=none")'
LATE_SIGN = f"it steps by a sign, however much waited for it; {INSTEAD}"
LATE_NORM = f"its rate goes by a norm, and a late sum has another; {INSTEAD}"


@dataclass(frozen=True)
class Row:
    """One kind of optimizer: its family as the recipe knows it, its settings that matter with optax's defaults, and
    why it is refused."""

    family: str
    settings: dict[str, Any]
    refused: str = ""


SGD, ADAM, PLAIN = {"momentum": 0.0, "nesterov": False}, {"b1": 0.9}, dict[str, Any]()
ROWS = {
    **{name: Row("sgd", SGD) for name in ("sgd", "noisy_sgd")},
    **{name: Row("adaptive", ADAM) for name in ("adam", "adamw", "adamax", "adamaxw", "nadam", "nadamw", "radam",
                                                "amsgrad", "adabelief", "adan", "yogi", "novograd")},
    **{name: Row("adaptive", PLAIN) for name in ("adagrad", "adadelta", "adafactor", "sm3")},
    "rmsprop": Row("adaptive", {"momentum": 0.0}),
    "muon": Row("muon", PLAIN),
    **{name: Row("adaptive", PLAIN, LATE_SIGN) for name in ("lion", "sign_sgd", "signum", "rprop")},
    **{name: Row("adaptive", PLAIN, LATE_NORM) for name in ("lars", "lamb", "fromage", "polyak_sgd")},
    "lbfgs": Row("adaptive", PLAIN, f"it compares gradients of two points, and a late sum is of neither; {INSTEAD}"),
}  # fmt: skip


class NotGiven:
    """What `optimizer=` is where nothing was written."""

    def __repr__(self) -> str:
        return "not given"


NOT_GIVEN = NotGiven()
Given = str | NotGiven | None


@dataclass(frozen=True)
class Behind:
    """The optimizer that the user names; without one nothing is known."""

    name: str
    row: Row
    settings: dict[str, Any]

    @property
    def momentum(self) -> float:
        """SGD's; what others call so is another thing."""
        return float(self.settings["momentum"]) if self.row.family == "sgd" else 0.0

    @property
    def facts(self) -> OptimizerFacts:
        nesterov = bool(self.settings.get("nesterov", False))
        return OptimizerFacts(self.name, self.row.family, self.momentum, nesterov, self.row.refused)


def read_optimizer(given: Given) -> Behind | None:
    """The optimizer of a text such as "sgd(momentum=0.9)", with optax's default for each setting that it leaves out."""
    if given is None or isinstance(given, NotGiven):
        return None
    if not isinstance(given, str):
        raise InputError(
            f'optimizer is a text such as "sgd(momentum=0.9)" or "adam(b1=0)", or None, not {given!r}: an optax '
            "transformation does not tell its settings"
        )
    try:
        name, positional, named = parse_call(given.strip(), given)
    except SchemeError as error:
        raise InputError(f"optimizer={given!r}: {error}") from None
    if name not in ROWS:
        raise InputError(
            f"optimizer={given!r}: optax's {name!r} is not known here{nearest(name, ROWS)}; if it has no momentum "
            'of its own, write optimizer=None and name the memory, "topk(5%) | memory=residual"'
        )
    row = ROWS[name]
    strange = [key for key in named if key not in row.settings]
    if positional or strange:
        known = ", ".join(row.settings) or "none"
        raise InputError(f"optimizer={given!r}: of {name}, these settings count, by name: {known}")
    return Behind(name, row, {**row.settings, **_checked(named, given)})


def _checked(named: dict[str, Any], given: str) -> dict[str, Any]:
    for key, value in named.items():
        fits = isinstance(value, bool) if key == "nesterov" else _is_share(value)
        if not fits:
            due = "true or false" if key == "nesterov" else "a number, 0 or more and below 1"
            raise InputError(f"optimizer={given!r}: {key} is {due}")
    return named


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


def check_fit(behind: Behind | None, memory: Memory) -> None:
    """Whether exactly one of optimizer and memory holds the momentum; asked where something travels sparse."""
    if behind is None:
        return _without_optimizer(memory)
    if behind.row.family == "sgd":
        return _check_sgd(behind, memory)
    if memory.held_momentum is not None:
        raise InputError(f"memory={memory} is for SGD with momentum; with {behind.name} write memory=residual")
    if not memory.buffers:
        return None
    if b1 := behind.settings.get("b1"):
        raise InputError(
            f"{behind.name}'s b1={b1:g} behind error feedback is a second momentum: write optax.{behind.name}(…, "
            f'b1=0.0) and exchange(…, optimizer="{behind.name}(b1=0)"), or send everything: "nonzero | memory=none"'
        )
    if momentum := behind.settings.get("momentum"):
        raise InputError(
            f"{behind.name}'s momentum={momentum:g} behind error feedback is a second one: leave it out, with a rate "
            f"of 1/(1 − {momentum:g}) times as much"
        )
    return None


def _check_sgd(behind: Behind, memory: Memory) -> None:
    """Nesterov's look-ahead is made once: optax's SGD stays as it is, so it cannot be both in the memory and there."""
    check_momentum(memory, momentum := behind.momentum)
    ahead = memory.look_ahead > 0
    if memory.held_momentum is not None and momentum and bool(behind.settings["nesterov"]) != ahead:
        why = "leaves the look-ahead to the optimizer" if ahead else "needs none behind it"
        raise InputError(
            f"memory={memory} {why}: write optax.sgd(…, nesterov={ahead}) and "
            f'optimizer="sgd(momentum={momentum:g}, nesterov={str(ahead).lower()})"'
        )


def _without_optimizer(memory: Memory) -> None:
    """What is not checked is said, once."""
    if memory.held_momentum is not None:
        what = f"assumes optax.sgd(momentum={memory.held_momentum:g}) behind it"
    elif memory.buffers:
        what = "loses accuracy behind SGD's momentum and Adam's b1"
    else:
        return
    say_once(f'memory={memory} {what}; that is not checked: write exchange(…, optimizer="sgd(momentum=…)")')
