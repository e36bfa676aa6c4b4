"""Every communicator keeps the same laws: threads in this process, gloo processes, MPI ranks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import warm
from comm_laws import LAWS
from host_ranks import environment, finish

from sparsewire.comm import ThreadCommunicator, run_ranks
from sparsewire.errors import CommError

SCRIPT = Path(__file__).parents[1] / "support" / "comm_ranks.py"
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
