"""Every communicator keeps the same laws: threads in this process, gloo processes, MPI ranks."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import warm
from host_ranks import environment, finish
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsewire.comm import Communicator, ThreadCommunicator, run_ranks
from sparsewire.errors import CommArgumentError, CommError, CommMismatch, CommTimeout, PeerFailed

SCRIPT = Path(__file__).parents[1] / "support" / "comm_ranks.py"
LAWS = runpy.run_path(str(SCRIPT))["LAWS"]
GLOO_RANKS, MPI_RANKS = 2, 4


def mpirun() -> str | None:
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun")


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
needs_mpi = pytest.mark.skipif(find_spec("mpi4py") is None or mpirun() is None, reason="mpi4py or mpirun is missing")


def read_results(folder: Path, ranks: int) -> list[dict[str, str]]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    folder = tmp_path_factory.mktemp("gloo")
    store = folder / "store"
    children = [
        warm.start_script(SCRIPT, "gloo", folder, rank, GLOO_RANKS, store, out=folder / f"{rank}.log")
        for rank in range(GLOO_RANKS)
    ]
    finish(children, folder, 60)
    return read_results(folder, GLOO_RANKS)


def run_mpi(mode: str, folder: Path) -> subprocess.CompletedProcess[str]:
    engine = ["--mca", "pml", "ob1", "--mca", "btl", "self,sm"]  # shared memory: needs no network
    start = [str(mpirun()), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", *engine]
    ranks = ["-n", str(MPI_RANKS), sys.executable, "-m", "mpi4py", str(SCRIPT), mode, str(folder)]
    return subprocess.run([*start, *ranks], env=environment(), capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def mpi(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    folder = tmp_path_factory.mktemp("mpi")
    done = run_mpi("mpi", folder)
    assert done.returncode == 0, done.stderr
    return read_results(folder, MPI_RANKS)


# --- the laws, over every engine ---


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_threads_keep_the_law(law: str, ranks: int) -> None:
    run_ranks(ranks, LAWS[law], timeout=20)


@needs_torch
@pytest.mark.parametrize("law", [*LAWS, *(f"staged {law}" for law in LAWS)])
def test_gloo_keeps_the_law(law: str, gloo: list[dict[str, str]]) -> None:
    assert [rank[law] for rank in gloo] == [""] * GLOO_RANKS


@needs_mpi
@pytest.mark.parametrize("law", LAWS)
def test_mpi_keeps_the_law(law: str, mpi: list[dict[str, str]]) -> None:
    assert [rank[law] for rank in mpi] == [""] * MPI_RANKS


# --- ranks that fail ---


@needs_torch
@pytest.mark.parametrize("law", ["timeout", "timeout of a swap", "lost rank"])
def test_gloo_names_the_collective_that_a_rank_did_not_reach(law: str, gloo: list[dict[str, str]]) -> None:
    assert gloo[0][law] == ""


@needs_mpi
@pytest.mark.parametrize("law", ["timeout", "timeout of a swap", "unusable after a timeout"])
def test_mpi_does_not_wait_for_ever(law: str, mpi: list[dict[str, str]]) -> None:
    assert [rank[law] for rank in mpi[:-1]] == [""] * (MPI_RANKS - 1)


@needs_mpi
def test_an_mpi_rank_that_raises_ends_the_others(tmp_path: Path) -> None:
    done = run_mpi("mpi-raise", tmp_path)
    assert done.returncode != 0
    assert "rank 1 is broken" in done.stderr
    assert not list(tmp_path.iterdir())


class Broken(Exception):
    pass


@pytest.mark.parametrize("wait", ["barrier", "all_gather", "all_to_all", "recv"])
def test_a_rank_that_raises_ends_the_others_and_its_error_comes_out(wait: str) -> None:
    seen: list[str] = []

    def fn(comm: Communicator) -> None:
        if comm.rank == 1:
            raise Broken("my own")
        try:
            {
                "barrier": comm.barrier,
                "all_gather": lambda: comm.all_gather(b""),
                "all_to_all": lambda: comm.all_to_all([b""] * 3),
                "recv": lambda: comm.recv(1),
            }[wait]()
        except PeerFailed as error:
            seen.append(str(error))
            raise

    begin = time.monotonic()
    with pytest.raises(Broken, match="my own") as caught:
        run_ranks(3, fn)
    assert caught.value.__notes__ == ["raised by rank 1"]
    assert len(seen) == 2
    assert all(wait in text and "rank 1 raised Broken" in text for text in seen)
    assert time.monotonic() - begin < 30


def test_a_rank_that_raises_ends_those_that_wait_in_a_part() -> None:
    """Also where it is in another part than they."""

    def fn(comm: Communicator) -> None:
        part = comm.split(comm.rank // 2)
        if comm.rank == 3:
            raise Broken("my own")
        for _ in range(1 + comm.rank):
            part.split(0).barrier()
        comm.recv(3) if comm.rank == 0 else part.recv(1 - part.rank)

    begin = time.monotonic()
    with pytest.raises(Broken, match="my own"):
        run_ranks(4, fn)
    assert time.monotonic() - begin < 30


def test_a_rank_that_returns_early_is_noticed_in_a_part() -> None:
    def fn(comm: Communicator) -> None:
        part = comm.split(comm.rank // 2)
        if comm.rank != 3:
            part.barrier()

    with pytest.raises(CommMismatch, match=r"barrier\(\): ranks \[1\] ended without it"):
        run_ranks(4, fn)


@pytest.mark.parametrize("stuck", [[1], [0, 2]])
def test_a_rank_that_never_arrives_is_named(stuck: list[int]) -> None:
    release = threading.Event()

    def fn(comm: Communicator) -> None:
        if comm.rank in stuck:
            release.wait(20)
        comm.all_gather(b"x")

    begin = time.monotonic()
    with pytest.raises(CommTimeout) as caught:
        run_ranks(4, fn, timeout=0.3)
    release.set()
    assert f"ranks {stuck} did not arrive within 0.3 s" in str(caught.value)
    assert "all_gather" in str(caught.value)
    assert isinstance(caught.value, TimeoutError)
    assert 0.3 <= time.monotonic() - begin < 15


def test_a_receive_that_nobody_answers_times_out() -> None:
    def fn(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.recv(1, tag=4)
        comm.barrier()

    with pytest.raises(CommTimeout, match=r"(recv\(tag=4\): ranks \[1\]|barrier\(\): ranks \[0\])"):
        run_ranks(2, fn, timeout=0.2)


def test_a_rank_that_returns_early_is_noticed_at_once() -> None:
    begin = time.monotonic()
    with pytest.raises(CommMismatch, match=r"barrier\(\): ranks \[2\] ended without it"):
        run_ranks(3, lambda comm: comm.barrier() if comm.rank != 2 else None)
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda comm: comm.all_gather(b""), lambda comm: comm.barrier()),
        (lambda comm: comm.all_gather(b""), lambda comm: comm.all_reduce(np.zeros(1))),
        (lambda comm: comm.all_gather(b""), lambda comm: comm.all_to_all([b"", b""])),
        (lambda comm: comm.all_reduce(np.zeros(2)), lambda comm: comm.all_reduce(np.zeros(1))),
        (lambda comm: comm.all_reduce(np.zeros(1)), lambda comm: comm.all_reduce(np.zeros(1), "max")),
        (lambda comm: comm.broadcast(b"", 0), lambda comm: comm.broadcast(b"", 1)),
    ],
)
def test_mismatched_collectives_are_an_error_on_threads(one, other) -> None:
    with pytest.raises(CommMismatch, match=r"rank \d called .+, ranks \[\d\] .+"):
        run_ranks(2, lambda comm: (one if comm.rank else other)(comm))


# --- threads ---


def test_results_come_in_rank_order() -> None:
    ended = [threading.Event() for _ in range(4)]
    ended[3].set()

    def fn(comm: Communicator) -> tuple[int, str]:
        """The last rank ends first."""
        assert ended[comm.rank + 1].wait(60)
        ended[comm.rank].set()
        return comm.rank, repr(comm)

    assert run_ranks(3, fn) == [(rank, f"ThreadCommunicator(rank={rank}, size=3)") for rank in range(3)]


def test_no_ranks_are_refused() -> None:
    with pytest.raises(CommArgumentError, match="at least one rank"):
        run_ranks(0, lambda comm: None)


def test_a_message_is_found_by_its_tag() -> None:
    def fn(comm: Communicator) -> list[bytes]:
        for tag in (1, 2, 1):
            if comm.rank == 0:
                comm.send(b"%d" % tag, 1, tag)
        return [comm.recv(0, tag) for tag in (2, 1, 1)] if comm.rank == 1 else []

    assert run_ranks(2, fn)[1] == [b"2", b"1", b"1"]


def test_a_sender_may_reuse_its_buffer() -> None:
    def fn(comm: Communicator) -> list[bytes]:
        buffer = bytearray(b"before")
        parts = comm.all_gather(buffer)
        buffer[:] = b"after!"
        comm.barrier()
        return [bytes(part) for part in parts]

    assert run_ranks(3, fn) == [[b"before"] * 3] * 3


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=5))
@settings(max_examples=30, deadline=None)
def test_threads_sum_in_rank_order(values: list[float]) -> None:
    arrays = [np.array([value], np.float32) for value in values]
    with np.errstate(over="ignore"):
        expected = arrays[0]
        for array in arrays[1:]:
            expected = expected + array

    def fn(comm: Communicator) -> bytes:
        with np.errstate(over="ignore"):
            return comm.all_reduce(arrays[comm.rank]).tobytes()

    assert set(run_ranks(len(values), fn)) == {expected.tobytes()}


# --- the package ---


def test_importing_comm_imports_no_engine() -> None:
    code = "import sys, sparsewire.comm; sys.exit('torch' in sys.modules or 'mpi4py' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environment(), timeout=30).returncode == 0


def test_engines_are_found_by_name_and_strangers_are_not() -> None:
    import sparsewire.comm

    assert sparsewire.comm.ThreadCommunicator is ThreadCommunicator
    with pytest.raises(AttributeError, match="CarrierPigeon"):
        sparsewire.comm.CarrierPigeon  # noqa: B018


@needs_torch
def test_torch_without_a_process_group_says_so() -> None:
    from sparsewire.comm import TorchCommunicator

    with pytest.raises(CommError, match="init_process_group"):
        TorchCommunicator()
