"""`sparsewire lab net`: what ranks are told, what the status says, and that nothing is left, whatever ends it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from command_line import fails, run

from sparsewire.errors import InputError
from sparsewire.lab.network import Network, obstacle, remove_leftovers

LIMIT = 30.0
SAY = "import json, os; print(json.dumps(dict(os.environ)))"
WAIT = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"


def until(true: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        if found := true():
            return found
        time.sleep(0.005)
    raise AssertionError(f"not within {LIMIT:g} s: {what}")


def namespaces(lab: int) -> list[str]:
    """Those of a process."""
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.split()
    return [name for name in names if name.startswith(f"sparsewire-{lab}-")]


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def started(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sparsewire", "lab", "net", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes, env=environment, preexec_fn=_hears_signals)  # type: ignore[call-overload]


def _hears_signals() -> None:
    """Whatever the tests were started with: shells ignore SIGINT for jobs in the background, nohup SIGHUP."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def ended(lab: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = lab.communicate(timeout=LIMIT)
    finally:
        lab.kill()
    return lab.returncode, out, err


def line_of(lab: subprocess.Popen[str]) -> str:
    assert lab.stdout is not None
    return lab.stdout.readline()


def pids(lab: subprocess.Popen[str], ranks: int) -> list[int]:
    """What the ranks of WAIT print."""
    return [int(line_of(lab).split()[1]) for _ in range(ranks)]


@pytest.fixture
def no_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.fixture(scope="module")
def limited():
    """Skips where links cannot be limited."""
    problem = obstacle()
    if problem is None:
        try:
            with Network(1, "1mbit"):
                return
        except Exception as error:
            problem = str(error)
    pytest.skip(problem)


# --- on 127.0.0.1 ------------------------------------------------------------------------------------------------


def test_ranks_are_told_what_launchers_tell(no_root, capfd):
    assert run("lab", "net", "--ranks", 4, "--ranks-per-node", 2, "--", sys.executable, "-c", SAY) == 0
    out, err = capfd.readouterr()
    told = {int(rank): json.loads(line) for rank, line in re.findall(r"^\[(\d)\] (.*)$", out, re.MULTILINE)}
    assert [told[rank]["LOCAL_RANK"] for rank in range(4)] == ["0", "1", "0", "1"]
    for rank, found in told.items():
        assert (found["RANK"], found["WORLD_SIZE"], found["LOCAL_WORLD_SIZE"]) == (str(rank), "4", "2")
        assert found["MASTER_ADDR"] == "127.0.0.1" and found["GLOO_SOCKET_IFNAME"] == "lo"
    assert len({found["MASTER_PORT"] for found in told.values()}) == 1
    assert "need root" in err and "127.0.0.1" in err


def test_a_failing_rank_ends_the_others_and_its_status_is_told(no_root, capfd):
    fail = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit(7); time.sleep(100)"
    assert run("lab", "net", "--ranks", 3, "--", sys.executable, "-c", fail) == 7
    assert "rank 1 ended with status 7" in capfd.readouterr().err


def test_a_rank_that_a_signal_ends_has_failed(no_root, capfd):
    assert run("lab", "net", "--ranks", 1, "--", "sh", "-c", "kill -9 $$") == 128 + 9


def test_both_outputs_are_passed_on_to_their_last_line(no_root, capfd):
    assert run("lab", "net", "--ranks", 2, "--", "sh", "-c", "seq 500; printf end; echo oh >&2") == 0
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == sorted(f"[{rank}] {n}" for rank in (0, 1) for n in [*range(1, 501), "end"])
    assert "[0] oh" in err and "[1] oh" in err


@pytest.mark.parametrize("words", [["--rate", "1mbit"], ["--rates", "1mbit", "unlimited"], ["--change", "1s:1mbit"]])
def test_without_root_limits_are_refused_and_the_way_out_is_said(no_root, capsys, words):
    said = fails(capsys, "lab", "net", *words, "--", "true")
    assert "need root" in said and "--rate unlimited" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks", 3, "--ranks-per-node", 2, "--", "true"], "multiple"),
        (["--ranks", 3], "no command"),
        (["--", "/no/such/program"], "/no/such/program"),
    ],
)
def test_mistakes_are_said(no_root, capsys, words, said):
    capsys.readouterr()
    assert run("lab", "net", *words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("word", ["soon:1mbit", "5s", "5s:fast"])
def test_a_change_that_is_none_is_refused(capsys, word):
    with pytest.raises(SystemExit):
        run("lab", "net", "--change", word, "--", "true")
    assert "is not a" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_whatever_ends_it_nothing_is_left(number):
    lab = started("--ranks", 2, "--", sys.executable, "-c", WAIT)
    ranks = pids(lab, 2)
    lab.send_signal(number)
    status, _, _ = ended(lab)
    assert status == (-9 if number == signal.SIGKILL else 128 + number)
    for pid in ranks:
        until(lambda pid=pid: not alive(pid), f"rank {pid} has ended")
    if obstacle() is None:
        until(lambda: not namespaces(lab.pid), "namespaces are removed")


# --- in namespaces -----------------------------------------------------------------------------------------------


@pytest.mark.root
@pytest.mark.parametrize("made", [0, 3])
def test_killed_at_any_moment_it_leaves_no_namespace(limited, made):
    """While it makes namespaces, of which there are `made` when it is killed, or some more."""
    lab = started("--ranks", 6, "--rate", "10mbit", "--", "sleep", 100)
    until(lambda: len(namespaces(lab.pid)) >= made or lab.poll() is not None, f"{made} namespaces")
    lab.kill()
    assert ended(lab)[0] == -9
    until(lambda: not namespaces(lab.pid), "namespaces are removed")


@pytest.mark.root
def test_what_was_killed_together_with_its_guard_is_removed_by_the_next(limited):
    lab = started("--ranks", 2, "--rate", "10mbit", "--", sys.executable, "-c", WAIT)
    ranks = pids(lab, 2)
    guards = subprocess.run(["pgrep", "-P", str(lab.pid), "-x", "sh"], capture_output=True, text=True).stdout.split()
    for pid in (*map(int, guards), lab.pid):
        os.kill(pid, signal.SIGKILL)
    ended(lab)
    assert len(guards) == 1 and len(namespaces(lab.pid)) == 3
    with Network(1, "1mbit"):
        assert not namespaces(lab.pid) and not any(map(alive, ranks))


@pytest.mark.root
def test_two_labs_at_once_do_not_meet(limited):
    listen = "import socket; s = socket.create_server(('10.231.0.1', 4000)); print('up', flush=True); input()"
    with Network(1, "10mbit") as one, Network(1, "10mbit") as other:
        servers = [
            subprocess.Popen([*places[0].prefix, sys.executable, "-c", listen], stdin=-1, stdout=-1, text=True)
            for places in (one, other)
        ]
        try:
            assert [server.stdout.readline() for server in servers] == ["up\n"] * 2  # type: ignore[union-attr]
            remove_leftovers()
            assert len(namespaces(os.getpid())) == 4, "those of the living stay"
        finally:
            for server in servers:
                server.communicate("\n", timeout=LIMIT)
    assert not namespaces(os.getpid())


def qdiscs(prefix: tuple[str, ...]) -> str:
    return subprocess.run([*prefix, "tc", "qdisc", "show", "dev", "eth0"], capture_output=True, text=True).stdout


@pytest.mark.root
def test_rates_are_each_nodes_own_and_can_change(limited):
    with Network(2, ["10mbit", "unlimited"], per_node=2) as places:
        assert len(places) == 4 and places[0] == places[1] != places[2]
        assert "rate 10Mbit" in qdiscs(places[0].prefix) and "tbf" not in qdiscs(places[2].prefix)
        places.set_rate("20mbit")
        assert all("rate 20Mbit" in qdiscs(place.prefix) for place in places)
        places.set_rate("unlimited", node=0)
        assert "tbf" not in qdiscs(places[0].prefix) and "tbf" in qdiscs(places[2].prefix)
    with pytest.raises(InputError, match="3 rates for 2 nodes"):
        Network(2, ["1mbit"] * 3)


@pytest.mark.root
def test_a_rate_changes_while_ranks_run(limited):
    wait = "until tc qdisc show dev eth0 | grep -q 7Mbit; do sleep 0.01; done"
    lab = started("--ranks", 1, "--change", "0.1s:7mbit", "--", "sh", "-c", wait)
    status, _, err = ended(lab)
    assert status == 0 and "after 0.1 s: links of 7mbit" in err
