"""`CompressedManager`: a torchft Manager whose `allreduce` is compressed, for its DDP, LocalSGD and DiLoCo.

A step:
1. `start_quorum`. A replica that must heal gets model and optimizer from another, and begins without residuals.
2. `allreduce`, once for each tensor. The first one after the ranks have changed makes a new communicator, over which
   the replicas compare their settings. Means take the tensors' places; no residual moves. An error of the network is
   reported to torchft, which then does not count the step here.
3. `should_commit`. If the step counts here, residuals move; else they stay as they were. A replica whose peers counted
   the step while it did not is behind them, heals in the next step, and loses its residuals: they would be sent twice.

LocalSGD averages weights, of which a sparse part says nothing. What is sent of them is their change since the weights
that all replicas agreed on last, the reference; the first average is dense.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torchft.manager import Manager, _ManagedWork
from torchft.process_group import ProcessGroupWrapper
from torchft.work import _DummyWork

from sparsewire.codecs.scheme import Spec
from sparsewire.comm.base import Traffic
from sparsewire.comm.torch import TorchCommunicator
from sparsewire.core.statefile import reading
from sparsewire.errors import CommArgumentError, CommError, CommMismatch, FrameError, InputError
from sparsewire.training.agree import agree
from sparsewire.training.recipe import COVERAGE, Recipe
from sparsewire.training.schedule import Ratios, Settings
from sparsewire.training.settings import read_settings

from ..tensors import to_arrays, to_tensors
from .calls import Calls, check_calls

KEY = "sparsewire"
FRAGMENT = "StreamingDiLoCoFragment_"  # torchft's DiLoCo registers one state by this name for each of its fragments
VERSION = 1


class CompressedManager(Manager):  # type: ignore[misc]
    """A `torchft.Manager` that compresses what it averages; all further arguments are torchft's.

    scheme: a string, dict or `Scheme`, as `attach` takes it, with memory=residual or none. None: top-k by coverage.
    total_steps: steps of the manager in the whole run, for LocalSGD and DiLoCo the number of their synchronisations;
        where the scheme gives no ratio, that is coverage / total_steps, or 5 % where the steps are not known.
    dense_below: tensors with fewer elements travel dense. warmup_steps, ratio_schedule: as for `attach`, by the
        manager's steps.
    weights: whether weights are averaged, as LocalSGD does, and not gradients. None: found out.
    """

    def __init__(
        self, scheme: Spec | None = None, *, total_steps: int | None = None, coverage: float = COVERAGE,
        dense_below: int = 1024, warmup_steps: int = 0, ratio_schedule: Ratios | None = None, seed: int = 0,
        weights: bool | None = None, **torchft: Any,
    ) -> None:  # fmt: skip
        self.settings = _settings(scheme, total_steps, coverage, dense_below, warmup_steps, ratio_schedule, seed)
        _check_group(torchft.get("pg"))
        self._calls, self._weights, self._fragments = Calls(self.settings), weights, 0
        self._count, self._bytes_dense, self._traffic = 0, 0, Traffic(0, 0, 0)
        self._comm: TorchCommunicator | None = None
        self._of_quorum: int | None = None
        self._references: dict[str, torch.Tensor] = {}  # never written to: another thread may be sending them
        self._next: dict[str, torch.Tensor] = {}
        super().__init__(**torchft)
        self.register_state_dict_fn(KEY, self._heal, lambda: {"references": self._references})

    # --- what torchft calls ---

    def register_state_dict_fn(
        self, key: str, load_state_dict: Callable[..., Any], state_dict: Callable[..., Any]
    ) -> None:
        self._fragments += key.startswith(FRAGMENT)
        super().register_state_dict_fn(key, load_state_dict, state_dict)

    def disallow_state_dict_read(self) -> None:
        """LocalSGD and DiLoCo call it before each local step; DiLoCo has registered its fragments by then."""
        if self._weights is None:
            self._weights = not self._fragments
        super().disallow_state_dict_read()

    def start_quorum(self, *args: Any, **settings: Any) -> None:
        self._count = 0
        self._settle(False)  # of a step that was never decided
        super().start_quorum(*args, **settings)

    def allreduce(
        self, tensor: torch.Tensor, should_quantize: bool = False, reduce_op: Any = ReduceOp.AVG
    ) -> dist.Work:
        """Averages compressed, before it returns; other reductions are torchft's own."""
        if reduce_op != ReduceOp.AVG:
            return super().allreduce(tensor, should_quantize, reduce_op)
        _check_tensor(tensor, should_quantize)
        if not self.errored():
            self.wait_quorum()  # which may report an error as well
        if not self.errored():
            self._average_or_report(tensor)
        return _ManagedWork(self, _DummyWork(tensor), tensor)  # torchft's DDP looks into this kind's future

    def should_commit(self, timeout: timedelta | None = None) -> bool:
        counted = False
        try:
            counted = super().should_commit(timeout)
        finally:
            self._settle(counted)
        return counted

    def shutdown(self, wait: bool = True) -> None:
        self._disconnect()
        super().shutdown(wait)

    # --- what users call ---

    def stats(self) -> dict[str, Any]:
        """Totals: steps, bytes to and from the engine, bytes of dense steps, seconds by stage, the scheme."""
        traffic = self._total_traffic()
        return {
            "steps": self.current_step(),
            "bytes_sent": traffic.bytes_sent,
            "bytes_received": traffic.bytes_received,
            "bytes_dense": self._bytes_dense,
            "seconds": self._calls.seconds(),
            "scheme": str(self.settings.schedule.scheme),
        }

    def compression_state_dict(self) -> dict[str, Any]:
        """This replica's residuals, for its own checkpoint; `state_dict()` is torchft's, which other replicas get."""
        calls = {name: to_tensors(state) for name, state in self._calls.state_dict().items()}
        scheme = str(self.settings.schedule.scheme)
        return {"version": VERSION, "scheme": scheme, "calls": calls, "references": dict(self._references)}

    def load_compression_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from this replica's residuals. Load torchft's `state_dict()` of the same step as well.

        A state that is damaged is refused as a whole; the sizes of its tensors are checked when those come.
        """
        with reading():
            _check_state(state, str(self.settings.schedule.scheme))
            calls = {name: to_arrays(saved) for name, saved in state["calls"].items()}
            check_calls(calls)
            references = _read_references(state["references"])
        self._calls.load_state_dict(calls)
        self._references = references

    # --- a step ---

    def _average_or_report(self, tensor: torch.Tensor) -> None:
        name = self._name()
        self._calls.check(name, tensor)
        try:
            self._average(name, tensor, self._connected())
        except (CommMismatch, CommArgumentError):
            raise
        except (CommError, FrameError, RuntimeError) as error:
            self._logger.exception(f"compressed allreduce, {name}: {error}")
            self.report_error(error)

    def _name(self) -> str:
        place, self._count = self._count, self._count + 1
        return f"fragment {self.current_step() % self._fragments}, call {place}" if self._fragments else f"call {place}"

    def _average(self, name: str, tensor: torch.Tensor, comm: TorchCommunicator) -> None:
        taking_part = self.is_participating()
        self._bytes_dense += tensor.numel() * tensor.element_size()
        reference = self._reference(name)
        flat = _flat(tensor, reference) if taking_part else torch.zeros_like(_flat(tensor, reference))
        if self._weights and reference is None:
            _average_dense(flat, comm)
        else:
            self._calls.mean(name, flat, comm, self.current_step(), taking_part)
        flat *= comm.size / self.num_participants()
        mean = flat if reference is None else flat + reference.to(flat)
        tensor.detach().copy_(mean.view(tensor.shape))
        if self._weights:
            self._next[name] = tensor.detach().clone().reshape(-1)

    def _reference(self, name: str) -> torch.Tensor | None:
        """The weights that all agreed on last. A replica that heals meanwhile has been sent them already."""
        if not self._weights:
            return None
        pending = self._pending_state_dict
        if self._healing and pending is not None:
            return dict(pending["user"][KEY]["references"]).get(name)
        return self._references.get(name)

    def _settle(self, counted: bool) -> None:
        new, self._next = self._next, {}
        self._calls.settle(counted)
        if counted:
            self._references = {**self._references, **new}

    def _heal(self, state: Mapping[str, Any]) -> None:
        """Another replica's model takes the place of this one's: nothing is unsent any more."""
        self._calls.clear()
        self._references = dict(state["references"])

    # --- the ranks of a quorum ---

    def _connected(self) -> TorchCommunicator:
        """The quorum's ranks. What channels have learned of their peers is void when the ranks change."""
        if self._comm is None or self._of_quorum != self._quorum_id:
            self._disconnect()
            self._comm, self._of_quorum = TorchCommunicator(self._pg), self._quorum_id
            facts = {"weights": bool(self._weights), "fragments": self._fragments}
            agree(self._comm, self.settings, {}, facts)
        return self._comm

    def _disconnect(self) -> None:
        self._traffic, comm, self._comm = self._total_traffic(), self._comm, None
        if comm is not None:
            comm.close()

    def _total_traffic(self) -> Traffic:
        parts = [self._traffic] + ([] if self._comm is None else [self._comm.traffic()])
        return Traffic(*map(sum, zip(*parts, strict=True)))


def _settings(
    scheme: Spec | None, total_steps: int | None, coverage: float, dense_below: int, warmup_steps: int,
    ratio_schedule: Ratios | None, seed: int,
) -> Settings:  # fmt: skip
    recipe = Recipe.of((), scheme, total_steps=total_steps, coverage=coverage, ratio_schedule=ratio_schedule)
    settings = read_settings(
        {},
        recipe.scheme,
        "parameter",
        dense_below,
        (),
        warmup_steps,
        recipe.ratio_schedule,
        None,
        seed,
        None,
        None,
        None,
    )
    memory = settings.schedule.scheme.memory
    if memory.held_momentum is not None:
        raise InputError(
            f"memory={memory} holds a momentum, which a replica that joins cannot know: write memory=residual in the "
            "scheme and leave the momentum to the optimizer"
        )
    # A replica that joins knows nothing of what a guard has seen, and all must exchange the same.
    return replace(settings, decides_late=True, on_divergence=None)


def _check_group(group: Any) -> None:
    if group is not None and not isinstance(group, ProcessGroupWrapper):
        raise InputError(f"{type(group).__name__} does not tell a replica's rank: write pg=torchft.ProcessGroupGloo()")


def _check_tensor(tensor: torch.Tensor, should_quantize: bool) -> None:
    if should_quantize:
        raise InputError("the scheme says how values are coded: leave should_quantize out, or write values=half in it")
    if not tensor.is_floating_point() or tensor.layout != torch.strided:
        raise InputError(
            f"only dense floating-point tensors are averaged, not {tensor.dtype}, {tensor.layout}: "
            "write reduce_op=ReduceOp.SUM for counts, and sparse=False for embeddings"
        )


def _check_state(state: Mapping[str, Any], scheme: str) -> None:
    if not isinstance(state, Mapping) or state.get("version") != VERSION:
        raise InputError("a state as compression_state_dict() gives it is needed")
    if state["scheme"] != scheme:
        raise InputError(f"the state is of the scheme {state['scheme']!r}, the manager has {scheme!r}: use the same")


def _read_references(references: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    for name, reference in references.items():
        if not bool(torch.isfinite(reference).all()):
            raise InputError(f"the weights that {name!r} is measured from are not finite")
    return dict(references)


def _flat(tensor: torch.Tensor, reference: torch.Tensor | None) -> torch.Tensor:
    """The numbers to send, apart from the tensor, so that a step that fails leaves that as it was."""
    numbers = tensor.detach().reshape(-1)
    if reference is None:
        return numbers.clone()
    wide = torch.float64 if numbers.dtype == torch.float64 else torch.float32
    return numbers.to(wide) - reference.to(numbers.device, wide)


def _average_dense(flat: torch.Tensor, comm: TorchCommunicator) -> None:
    wide = torch.float64 if flat.dtype == torch.float64 else torch.float32
    total = flat.to("cpu", wide, copy=True)
    comm.all_reduce_in_place(total.numpy())
    flat.copy_(total / comm.size)
