"""Whether the optimizer and the scheme's memory fit: exactly one of them may hold the momentum.

Error feedback delivers a coordinate late and as a sum, which acts like a momentum. One behind it (SGD's, Adam's β1)
costs accuracy in every task that was measured. Nothing is patched: SGD is handed means from which its own momentum is
taken out, and Adam's β1 is 0 for parameters that travel sparse, within `optimizer.step()` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from sparsewire.codecs.contract import Memory
from sparsewire.errors import InputError
from sparsewire.training.fit import check_sgd
from sparsewire.training.notices import say_once, warn_once
from sparsewire.training.schedule import Settings

from .families import Group
from .owners import Behind


class Fit:
    """The optimizers behind a memory, one or several."""

    def __init__(
        self, optimizers: Sequence[Behind], memory: Memory, names: Mapping[torch.Tensor, str],
        is_sparse: Callable[[torch.Tensor], bool],
    ) -> None:  # fmt: skip
        self._fits = [OneFit(optimizer, memory, names, is_sparse) for optimizer in optimizers]

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those whose `step()` moves the weights."""
        return [fit.optimizer for fit in self._fits]

    @property
    def not_sgd(self) -> str:
        """The name of an optimizer that is another one; nothing where all are SGD."""
        return next((fit.behind.name for fit in self._fits if not fit.is_sgd), "")

    def momenta(self) -> dict[str, float]:
        """SGD's momentum by parameter name. What other optimizers call so is another thing: 0."""
        return {name: momentum for fit in self._fits for name, momentum in fit.momenta().items()}

    def rates(self) -> dict[str, float]:
        """The learning rates by parameter name."""
        return {name: rate for fit in self._fits for name, rate in fit.by_name("lr").items()}

    def attach(self, sparse_step: Callable[[], bool], clipped: Callable[[], str]) -> None:
        """From now on `step()` sees the groups as they have to be, whenever the last exchange was a sparse one; what
        `clipped` says before a step is warned of, once."""
        for fit in self._fits:
            fit.attach(sparse_step, clipped)

    def detach(self) -> None:
        for fit in self._fits:
            fit.detach()


class OneFit:
    """One optimizer behind a memory."""

    def __init__(
        self, behind: Behind, memory: Memory, names: Mapping[torch.Tensor, str],
        is_sparse: Callable[[torch.Tensor], bool],
    ) -> None:  # fmt: skip
        self.behind, self.optimizer = behind, behind.inner
        self._memory, self._names, self._is_sparse = memory, names, is_sparse
        self._groups: list[Group] | None = None
        self._hooks: list[Any] = []
        self._check()

    @property
    def is_sgd(self) -> bool:
        return isinstance(self.optimizer, torch.optim.SGD)

    def momenta(self) -> dict[str, float]:
        """SGD's momentum by parameter name."""
        return self.by_name("momentum" if self.is_sgd else "")

    def by_name(self, setting: str) -> dict[str, float]:
        """A setting by parameter name; 0 where the groups have none."""
        return {
            self._names[parameter]: float(group.get(setting, 0.0))
            for group in self._outer()
            for parameter in group["params"]
            if parameter in self._names
        }

    def _outer(self) -> list[Group]:
        """All parameters' groups, as the user sees them."""
        return self._whole() if self.behind.outer is self.optimizer else self.behind.groups

    def attach(self, sparse_step: Callable[[], bool], clipped: Callable[[], str]) -> None:
        self._sparse_step, self._clipped = sparse_step, clipped
        self._hooks = [
            self.optimizer.register_step_pre_hook(self._before),
            self.optimizer.register_step_post_hook(self._after),
        ]

    def detach(self) -> None:
        self._after()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    # --- within step() ---

    def _before(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        """Divides the groups; where `step()` is given a closure, as by Lightning, only after that has run backward."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # the first is the optimizer
        if closure is None:
            self._divide()
            return None

        def run() -> Any:
            loss = closure()
            self._divide()
            return loss

        return args[:1], {**kwargs, "closure": run}

    def _divide(self) -> None:
        self._after()  # a step that raised left its groups behind
        self._check()
        held = self._memory.held_momentum is not None  # in dense steps too
        late = self._sparse_step() and self._memory.buffers
        if late and (text := self._clipped()):
            warn_once(text)
        needed = held or late
        if needed and any(not self._change(group).items() <= group.items() for group in self._whole()):
            self._groups = self.optimizer.param_groups
            self.optimizer.param_groups = [part for group in self._groups for part in self._parts(group)]

    def _after(self, *_: Any) -> None:
        if self._groups is not None:
            self.optimizer.param_groups, self._groups = self._groups, None

    def _whole(self) -> list[Group]:
        return self._groups if self._groups is not None else self.optimizer.param_groups

    def _parts(self, group: Group) -> list[Group]:
        """Parameters that travel sparse with the settings that suit them, and the others as they are."""
        sparse = [parameter for parameter in group["params"] if self._travels_sparse(parameter)]
        others = [parameter for parameter in group["params"] if not self._travels_sparse(parameter)]
        parts = [{**group, **self._change(group), "params": sparse}, {**group, "params": others}]
        return [part for part in parts if part["params"]]

    def _change(self, group: Group) -> Group:
        """No first moment; no look-ahead, unless the memory leaves that to the optimizer."""
        if self.is_sgd:
            return {"nesterov": group["nesterov"] and self._memory.look_ahead > 0}
        return self.behind.row.change(group)

    def _travels_sparse(self, parameter: torch.Tensor) -> bool:
        """A sparse (COO) gradient is sent whole, so its momentum is the optimizer's."""
        whole = parameter.grad is not None and parameter.grad.is_sparse
        return parameter in self._names and self._is_sparse(parameter) and not whole

    # --- do they fit? ---

    def _check(self) -> None:
        groups = [g for g in self._outer() if any(self._travels_sparse(parameter) for parameter in g["params"])]
        if self.is_sgd:
            for group in groups:
                momentum, nesterov = float(group["momentum"]), bool(group["nesterov"])
                check_sgd(self._memory, momentum, nesterov, float(group["dampening"]))
        elif groups and self._memory.held_momentum is not None and self.behind.row.family != "tables":
            name = self.behind.name
            raise InputError(f"memory={self._memory} is for SGD with momentum; with {name} write memory=residual")


def fit_optimizers(
    optimizers: Sequence[Behind], settings: Settings, named: Mapping[str, torch.nn.Parameter]
) -> Fit | None:
    """The optimizers' fit with the scheme's memory; where none is given, what is not checked is said."""
    memory = settings.schedule.scheme.memory
    if not optimizers:
        without_optimizer(memory)
        return None
    sparse = {parameter for name, parameter in named.items() if settings.is_sparse(name, _size(parameter))}
    return Fit(optimizers, memory, {parameter: name for name, parameter in named.items()}, sparse.__contains__)


def check_follow_rate(follow_rate: bool, fit: Fit | None) -> None:
    """Whether what waits can follow the learning rate: only SGD moves by η times what it is handed."""
    if not isinstance(follow_rate, bool):
        raise InputError(f"follow_rate is True or False, not {follow_rate!r}")
    if follow_rate and fit is None:
        raise InputError("follow_rate=True needs to know the learning rate: give optimizer=, or leave follow_rate out")
    if follow_rate and fit is not None and fit.not_sgd:
        raise InputError(
            f"follow_rate=True is for SGD, which moves by η times the gradient; with {fit.not_sgd} leave it out"
        )


def _size(parameter: torch.Tensor) -> int:
    return parameter.numel() * (1 + parameter.is_complex())


def without_optimizer(memory: Memory) -> None:
    """What is said where `attach` is not given the optimizer."""
    if memory.held_momentum is not None:
        what = f"assumes SGD(momentum={memory.held_momentum:g}) behind it, without dampening"
    elif memory.buffers:
        what = "loses accuracy behind SGD's momentum and Adam's β1"
    else:
        return
    say_once(f"memory={memory} {what}; that is not checked: write attach(…, optimizer=optimizer)")
