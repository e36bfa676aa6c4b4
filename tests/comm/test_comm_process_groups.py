"""`TorchCommunicator` takes process groups that torch's registry does not know."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from comm_laws import LAWS

from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import CommError, CommTimeout

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from sparsewire.comm import TorchCommunicator, process_group  # noqa: E402


def gloo(store: dist.Store, rank: int, size: int, timeout: float = 20) -> Any:
    """A gloo engine made by hand, over the loopback."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=timeout)
    return dist.ProcessGroupGloo(store, rank, size, options)


class Wrapper(dist.ProcessGroup):
    """A group that passes on to another what torchft's groups do; to torch it is rank 0 of 1."""

    def __init__(self, parent: Any) -> None:
        super().__init__(0, 1)
        self.parent = parent

    def size(self) -> int:
        return self.parent.size()

    def allgather(self, outputs: Any, inputs: Any, options: Any) -> Any:
        return self.parent.allgather(outputs, inputs, options)

    def allreduce(self, tensors: Any, options: Any) -> Any:
        return self.parent.allreduce(tensors, options)

    def alltoall_base(self, output: Any, given: Any, output_sizes: Any, input_sizes: Any, options: Any) -> Any:
        return self.parent.alltoall_base(output, given, output_sizes, input_sizes, options)

    def broadcast(self, tensors: Any, options: Any) -> Any:
        return self.parent.broadcast(tensors, options)

    def send(self, tensors: Any, peer: int, tag: int) -> Any:
        return self.parent.send(tensors, peer, tag)

    def recv(self, tensors: Any, peer: int, tag: int) -> Any:
        return self.parent.recv(tensors, peer, tag)


def registered_nowhere(store: dist.Store, rank: int, size: int) -> Any:
    """Torch's own class of groups around an engine, which torch did not make."""
    group = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo(store, rank, size))
    return group


GROUPS: dict[str, Callable[[dist.Store, int, int], Any]] = {
    "backend": gloo,
    "group": registered_nowhere,
    "wrapper": lambda store, rank, size: Wrapper(gloo(store, rank, size)),
    "wrapper of a wrapper": lambda store, rank, size: Wrapper(Wrapper(gloo(store, rank, size))),
}


def run(ranks: int, fn: Callable[[Communicator], Any], make: Callable[[dist.Store, int, int], Any] = gloo) -> list[Any]:
    """Of `fn` on ranks that are threads of this process and talk by gloo."""
    store = dist.HashStore()

    def work(thread: Communicator) -> Any:
        group = make(dist.PrefixStore("group", store), thread.rank, ranks)
        try:
            return fn(TorchCommunicator(group))
        finally:
            thread.barrier()  # a rank that ends closes sockets that others may still read

    return run_ranks(ranks, work)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_backend_made_by_hand_keeps_the_law(law: str, ranks: int) -> None:
    run(ranks, LAWS[law])


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("kind", ["group", "wrapper"])
def test_a_group_that_torch_does_not_know_keeps_the_law(kind: str, law: str) -> None:
    if kind == "group" and not _makes_groups():
        pytest.skip("this torch has other arguments of ProcessGroup")
    run(2, LAWS[law], GROUPS[kind])


def _makes_groups() -> bool:
    try:
        dist.ProcessGroup(dist.HashStore(), 0, 1)
    except TypeError:
        return False
    return True


def test_the_rank_of_a_wrapper_is_that_of_the_group_inside() -> None:
    assert run(3, lambda comm: (comm.rank, comm.size), GROUPS["wrapper of a wrapper"]) == [(0, 3), (1, 3), (2, 3)]


def test_a_wrapper_that_cannot_tell_its_rank_is_refused_or_told() -> None:
    class Opaque(dist.ProcessGroup):
        def size(self) -> int:
            return 5

    group = Opaque(0, 1)
    with pytest.raises(CommError, match=r"Opaque does not know its rank: pass TorchCommunicator\(group, rank=…\)"):
        TorchCommunicator(group)
    assert repr(TorchCommunicator(group, rank=3)) == "TorchCommunicator(rank=3, size=5)"


def test_a_rank_that_never_comes_is_a_timeout() -> None:
    def fn(comm: Communicator) -> None:
        if comm.rank == 0:
            with pytest.raises(CommTimeout, match="all_gather"):
                comm.all_gather(b"is anyone there?")

    run(2, fn, lambda store, rank, size: gloo(store, rank, size, timeout=0.5))


def test_parts_of_such_a_group_talk_by_its_messages() -> None:
    def fn(comm: Communicator) -> tuple[str, list[bytes], list[int]]:
        part = comm.split(comm.rank % 2)
        parts = [bytes(payload) for payload in part.all_gather(b"%d" % comm.rank * 5_000, "digits")]
        return repr(part), [payload[:1] for payload in parts], part.all_reduce(np.array([comm.rank])).tolist()

    assert run(4, fn) == [
        (f"Subgroup(rank={rank // 2}, size=2)", *([[b"0", b"2"], [2]], [[b"1", b"3"], [4]])[rank % 2])
        for rank in range(4)
    ]


def test_where_an_accelerators_engine_wants_its_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nccl(Wrapper):
        def getBackendName(self) -> str:
            return "torchft-nccl"

    device = type("Module", (), {"current_device": staticmethod(lambda: 3)})
    monkeypatch.setattr(process_group.torch, "get_device_module", lambda name: device)
    assert process_group.default_device(Nccl(None)) == torch.device("cuda", 3)
    assert process_group.default_device(Wrapper(None)) == torch.device("cpu")


def test_a_process_outside_of_the_group_is_told() -> None:
    with pytest.raises(CommError, match="not a member of the group"):
        TorchCommunicator(dist.GroupMember.NON_GROUP_MEMBER)
