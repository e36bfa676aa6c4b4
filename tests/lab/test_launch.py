"""Functions on real ranks: how ranks fail and end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import warm

from sparsewire.cli import main
from sparsewire.lab import measure
from sparsewire.lab.net import launch, ranks

warm.needs("sklearn.datasets")
pytestmark = pytest.mark.skipif(not measure.has("torch"), reason="torch is not installed")


@pytest.fixture
def started(monkeypatch):
    """The processes of all ranks that a test starts."""
    processes = []

    def spy(*words, **settings):
        processes.append(warm.start_worker(*words, **settings))
        return processes[-1]

    monkeypatch.setattr(
        ranks, "subprocess", SimpleNamespace(Popen=spy, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    )
    return processes


def test_a_failing_rank_is_an_error_and_leaves_nothing_running(started):
    with pytest.raises(launch.RankError, match=r"rank \d failed: AttributeError.*'nothing'"):
        launch.launch_ranks("sparsewire.lab:nothing", {}, [launch.Endpoint()] * 2)
    assert len(started) == 2 and all(process.poll() is not None for process in started)


def test_a_mistake_in_the_scheme_is_told_before_ranks_start(started, capsys):
    for words in (["demo", "--scheme"], ["lab", "train", "--workload", "synthetic-10k", "--method"]):
        assert main([*words, "topq(1%)"]) == 2
        assert "topk" in capsys.readouterr().err
    assert not started


def test_ranks_that_take_too_long_are_ended(started):
    with pytest.raises(launch.RankError, match=r"did not finish in 0\.1 s"):
        launch.launch_ranks("rank_jobs:wait", {}, [launch.Endpoint()] * 2, limit=0.1)
    assert len(started) == 2 and all(process.poll() is not None for process in started)


def test_ranks_that_tell_something_without_pause_are_ended_in_time_too(started):
    with pytest.raises(launch.RankError, match=r"did not finish in 2 s"):
        launch.launch_ranks("rank_jobs:chatter", {}, [launch.Endpoint()], lambda event: time.sleep(0.01), limit=2)
    assert len(started) == 1 and started[0].poll() is not None


def test_a_collective_may_take_as_long_as_the_whole(started):
    assert launch.launch_ranks("rank_jobs:group_limit", {}, [launch.Endpoint()], limit=4321) == [4321.0]


LOST = "RuntimeError: [../pair.cc:534] Connection closed by peer [127.0.0.1]:3321"
LATE = "RuntimeError: [../buffer.cc:71] Timed out waiting 300000ms for recv operation to complete"


@pytest.mark.parametrize(
    ("failures", "finished", "told"),
    [
        ([LOST, LATE], [], f"rank 1 failed: {LATE}"),
        ([LATE, LOST], [], f"rank 0 failed: {LATE}"),
        ([LOST, LOST, "exit status -9"], [], "rank 2 failed: exit status -9"),
        ([LOST, LOST], [], f"rank 0 failed: {LOST}"),
        ([LOST, "a warning"], [1], f"rank 0 failed: {LOST}"),
    ],
)
def test_of_several_failures_the_one_that_says_most_is_told(failures, finished, told):
    ended = {rank: said for rank, said in enumerate(failures) if rank not in finished}
    assert str(launch.choose_error(ended, awaited=False)) == told
    lost = {rank: said for rank, said in ended.items() if said == LOST}
    assert launch.choose_error(lost, awaited=True) is None, "others may say more"


def test_an_error_is_told_with_its_notes(started):
    with pytest.raises(launch.RankError, match=r"rank 0 failed: ValueError: no gradient; at step 3; try again$"):
        launch.launch_ranks("rank_jobs:fail", {}, [launch.Endpoint()])


def test_a_rank_that_crashes_is_told_by_its_status(started):
    with pytest.raises(launch.RankError, match=r"rank 0 failed: exit status 7$"):
        launch.launch_ranks("rank_jobs:crash", {}, [launch.Endpoint()])


def test_a_launcher_that_is_killed_leaves_no_folder(tmp_path):
    code = "from sparsewire.lab.net.launch import *; launch_ranks('rank_jobs:wait', {}, [Endpoint()])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as launcher:
        _wait_for(lambda: any(tmp_path.glob("sparsewire-*/store")))
        launcher.kill()
    _wait_for(lambda: not any(tmp_path.iterdir()))


def _wait_for(true):
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ctrl_c_ends_the_ranks(started, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "_collect", interrupt)
    assert main(["demo", "--rate", "unlimited"]) == 130
    assert len(started) == 2 and all(process.poll() is not None for process in started)
