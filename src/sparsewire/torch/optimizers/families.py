"""A row for every optimizer of torch.optim: how error feedback serves it, or why it is refused and what to write.

Error feedback delivers a coordinate late and as a sum, which acts like a momentum. An optimizer is served where one
such sum counts as its gradients would have done, and where no second momentum stands behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparsewire.training.recipe import OptimizerFacts

Group = dict[str, Any]
ALONE = 'write attach(model, "topk(5%) | memory=residual", optimizer=None)'
INSTEAD = "train with SGD or AdamW, or send everything: "
INSTEAD += 'attach(model, "nonzero | memory=none", optimizer=optimizer)'


def as_it_is(group: Group) -> Group:
    """No setting changes."""
    return {}


def _no_first_moment(group: Group) -> Group:
    return {"betas": (0.0, group["betas"][1])}


def _no_reason(group: Group) -> str:
    return ""


def _dampened(group: Group) -> str:
    if group["momentum"] and group["dampening"]:
        return f"no memory goes with dampening={group['dampening']:g}; write SGD(…, dampening=0)"
    return ""


def _moved(group: Group) -> str:
    momentum = group.get("momentum", 0)
    if not momentum:
        return ""
    return (
        f"its momentum {momentum:g} behind error feedback is a second one; write RMSprop(…, momentum=0) with a rate of "
        f"1/(1 − {momentum:g}) times as much, or AdamW"
    )


@dataclass(frozen=True)
class Row:
    """One kind of optimizer.

    family: as the recipe knows it; None: refused. why: how it is served, or why not. change: the settings that
    parameters which travel sparse get within `step()`. reason: why a group's settings are refused, or nothing.
    """

    family: str | None
    why: str
    change: Callable[[Group], Group] = as_it_is
    reason: Callable[[Group], str] = _no_reason


_FIRST = "without its first moment for parameters that travel sparse"
ROWS = {
    "SGD": Row("sgd", "gain holds its momentum", reason=_dampened),
    "ASGD": Row("sgd", "has no momentum; it averages weights, which are the same on every rank"),
    "Adam": Row("adaptive", _FIRST, _no_first_moment),
    "AdamW": Row("adaptive", _FIRST, _no_first_moment),
    "Adamax": Row("adaptive", _FIRST, _no_first_moment),
    "NAdam": Row("adaptive", _FIRST, _no_first_moment),
    "RAdam": Row("adaptive", _FIRST, _no_first_moment),
    "RMSprop": Row("adaptive", "without a momentum", reason=_moved),
    "Adagrad": Row("adaptive", "has no first moment"),
    "Adadelta": Row("adaptive", "has no first moment"),
    "Adafactor": Row("adaptive", "has no first moment"),
    "SparseAdam": Row("tables", "takes sparse gradients alone, which are sent whole"),
    "Muon": Row("muon", "with its momentum, where 10 % or more is sent"),
    "LBFGS": Row(None, f"it compares the gradients of two points, and a late sum is of neither; {INSTEAD}"),
    "Rprop": Row(None, f"it steps by a gradient's sign, however much waited for it; {INSTEAD}"),
}
OTHERS = {  # optimizers that torch does not have, by their usual names
    "Muon": ROWS["Muon"],
    "Lion": Row(None, f"its steps are the signs of a momentum, however much waited; {INSTEAD}"),
    "LARS": Row(None, f"its rate goes by the norm of a gradient, and a late sum has another; {INSTEAD}"),
    "LAMB": Row(None, f"its rate goes by the norm of an update, and late sums have another; {INSTEAD}"),
    "SGDScheduleFree": Row(None, f"it averages weights as a momentum would, behind error feedback; {INSTEAD}"),
    "AdamWScheduleFree": Row(None, f"it averages weights as a momentum would, behind error feedback; {INSTEAD}"),
    "RAdamScheduleFree": Row(None, f"it averages weights as a momentum would, behind error feedback; {INSTEAD}"),
}
UNKNOWN = Row(
    None,
    "sparsewire does not know this optimizer, nor whether a momentum of its own would stand behind error feedback; if "
    f"it has none (momentum and β1 are 0), {ALONE}",
)


def row_of(kind: type) -> Row:
    """The row of a class, or of the nearest class that it is derived from."""
    for base in kind.__mro__:
        if base.__module__.startswith("torch.optim") and base.__name__ in ROWS:
            return ROWS[base.__name__]
        if base.__name__ in OTHERS:
            return OTHERS[base.__name__]
    return UNKNOWN


def read_facts(kind: type, groups: list[Group]) -> list[OptimizerFacts]:
    """What the recipe has to know of an optimizer with these groups: one fact for each momentum that they have."""
    row, name = row_of(kind), kind.__name__
    if row.family is None:
        return [OptimizerFacts(name, refused=row.why)]
    facts = [
        OptimizerFacts(
            name,
            row.family,
            float(group.get("momentum", 0.0)) if row.family == "sgd" else 0.0,
            bool(group.get("nesterov", False)) if row.family == "sgd" else False,
            row.reason(group),
        )
        for group in groups
    ]
    return list(dict.fromkeys(facts))
