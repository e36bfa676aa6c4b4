"""`sparsewire lab net`: what ranks are told, what the status says, and that nothing is left, whatever ends it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from command_line import fails, run

from sparsewire.errors import InputError, SparsewireError
from sparsewire.lab.net import command as net
from sparsewire.lab.net import commands
from sparsewire.lab.net.commands import Commands, rank_environment
from sparsewire.lab.net.network import Network, obstacle, remove_leftovers
from sparsewire.lab.net.ranks import Place, _ended

LIMIT = 30.0
SAY = "import json, os; print(json.dumps(dict(os.environ)))"
WAIT = "import os, time; print(os.getpid()); time.sleep(100)"
NO_ROOT = "import os, sys; os.geteuid = lambda: 1000; from sparsewire.cli import main; sys.exit(main(sys.argv[1:]))"


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


def started(*words: object, prefix: tuple[str, ...] = (), root: bool = True) -> subprocess.Popen[str]:
    program = ["-m", "sparsewire"] if root else ["-c", NO_ROOT]
    command = [*prefix, sys.executable, *program, "lab", "net", *map(str, words)]
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


def test_ranks_that_fail_together_are_one_failure(capfd):
    with Commands(["sh", "-c", "exit 3"], [Place()] * 3) as ranks:
        until(lambda: all(map(_ended, ranks._processes.values())), "all have ended")
        assert ranks.run() == 3
    assert capfd.readouterr().err.count("ended with status 3") == 1


def test_a_rank_that_a_signal_ends_has_failed(no_root, capfd):
    assert run("lab", "net", "--ranks", 1, "--", "sh", "-c", "kill -9 $$") == 128 + 9


def test_both_outputs_are_passed_on_to_their_last_line(no_root, capfd):
    assert run("lab", "net", "--ranks", 2, "--", "sh", "-c", "seq 500; printf end; echo oh >&2") == 0
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == sorted(f"[{rank}] {n}" for rank in (0, 1) for n in [*range(1, 501), "end"])
    assert "[0] oh" in err and "[1] oh" in err


def test_lines_of_any_end_and_length_are_passed_on(capfd):
    bar = r"printf '\r10%%'; sleep 0.1; printf '\r20%%\r'; sleep 0.1; printf '\nend\r\n\n'"
    with Commands(["sh", "-c", rf"{bar}; head -c 500000 /dev/zero | tr '\0' x"], [Place()]) as ranks:
        assert ranks.run() == 0
    first, second, third, blank, *pieces = capfd.readouterr().out.splitlines()
    assert [first, second, third, blank] == ["[0] 10%", "[0] 20%", "[0] end", "[0] "]
    assert "".join(piece.removeprefix("[0] ") for piece in pieces) == "x" * 500_000
    assert max(map(len, pieces)) < 200_000


def test_ranks_wait_where_their_output_cannot_be_written_as_fast(tmp_path):
    count = "import sys\nwhile print('x' * 999) is None: open(sys.argv[1], 'a').write('1')"
    lines = tmp_path / "lines"
    lab = started("--ranks", 1, "--", sys.executable, "-c", count, lines, root=False)
    until(lambda: lines.exists() and lines.stat().st_size > 50, "the first lines")
    before = -1
    while before != (before := lines.stat().st_size):
        time.sleep(0.5)
    lab.kill()
    ended(lab)
    assert before < 1000, "some hundred kilobytes are on the way"


def test_it_can_be_stopped_while_nobody_reads_its_output(monkeypatch):
    monkeypatch.setattr(commands, "GRACE", 0.3)
    theirs, ours = os.pipe()
    with open(theirs), open(ours, "w") as full:
        os.write(ours, bytes(65_536))
        monkeypatch.setattr(sys, "stdout", full)
        start = time.monotonic()
        Commands(["yes"], [Place()] * 2).close()
        assert time.monotonic() - start < 20


def test_what_ranks_print_while_they_are_stopped_is_passed_on():
    last = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit('x' * 200_000)); print('up'); time.sleep(100)"
    )
    lab = started("--ranks", 2, "--", sys.executable, "-c", last, root=False)
    assert [line_of(lab)[4:] for _ in range(2)] == ["up\n"] * 2
    lab.terminate()
    status, _, err = ended(lab)
    assert status == 128 + 15 and err.count("x") >= 400_000


def test_output_of_python_is_not_held_back_unless_the_user_wants_so(monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    assert rank_environment(0, [Place()], 1, 1)["PYTHONUNBUFFERED"] == "1"
    monkeypatch.setenv("PYTHONUNBUFFERED", "")
    assert rank_environment(0, [Place()], 1, 1)["PYTHONUNBUFFERED"] == ""


def test_a_process_that_has_hidden_and_holds_the_outputs_is_waited_for_once(monkeypatch, capfd):
    drain, held = Commands.drain, []

    def count(ranks, until):
        held.append(len(ranks._pipes.get_map()))
        drain(ranks, until)

    monkeypatch.setattr(commands, "GRACE", 0.5)
    monkeypatch.setattr(Commands, "drain", count)
    with Commands(["sh", "-c", "setsid env -i sleep 15 & echo up"], [Place()] * 2) as ranks:
        assert ranks.run() == 0
    assert held[0] > 0 and not any(held[1:]), "one wait, for all pipes together"
    assert capfd.readouterr().out.count("up") == 2


@pytest.mark.parametrize("words", [["--rate", "1mbit"], ["--rates", "1mbit", "unlimited"], ["--change", "1s:1mbit"]])
def test_without_root_limits_are_refused_and_the_way_out_is_said(no_root, capsys, words):
    said = fails(capsys, "lab", "net", *words, "--", "true")
    assert "need root" in said and "--rate unlimited" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks", 3, "--ranks-per-node", 2, "--", "true"], "multiple"),
        (["--ranks", 3], "no command"),
        (["--rates", "unlimited", "--", "true"], "1 rates for 2 nodes"),
        (["--", "/no/such/program"], "/no/such/program"),
    ],
)
def test_mistakes_are_said(no_root, capsys, words, said):
    capsys.readouterr()
    assert run("lab", "net", *words) == 2
    assert said in capsys.readouterr().err


def test_a_program_that_is_not_there_is_refused_in_namespaces_too(capsys):
    assert "no-such-program is not found" in fails(capsys, "lab", "net", "--", "no-such-program")


@pytest.mark.parametrize(("rate", "status", "said"), [("unlimited", 0, "127.0.0.1"), ("1mbit", 2, "--rate unlimited")])
def test_where_namespaces_turn_out_to_be_forbidden_ranks_run_without(monkeypatch, capfd, rate, status, said):
    def forbidden(*_: object) -> None:
        raise SparsewireError("mount: Permission denied")

    monkeypatch.setattr(net, "obstacle", lambda: None)
    monkeypatch.setattr(Network, "__init__", forbidden)
    assert run("lab", "net", "--rate", rate, "--", "echo", "hi") == status
    out, err = capfd.readouterr()
    assert "mount: Permission denied" in err and said in err and ("[1] hi" in out) == (status == 0)


@pytest.mark.parametrize("word", ["soon:1mbit", "5s", "5s:fast", "nan:1mbit", "inf:1mbit", "-5s:1mbit"])
def test_a_change_that_is_none_is_refused(capsys, word):
    with pytest.raises(SystemExit):
        run("lab", "net", f"--change={word}", "--", "true")
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


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("how", ["", "setsid"])
@pytest.mark.parametrize("number", [0, signal.SIGTERM, signal.SIGKILL])
def test_on_loopback_too_what_ranks_have_started_ends_with_them(how, number):
    end = "sleep 0.1" if number == 0 else "wait"
    lab = started("--ranks", 2, "--", "sh", "-c", f"{how} sh -c 'echo $$; sleep 100; echo never' & {end}", root=False)
    processes = pids(lab, 2)
    if number:
        lab.send_signal(number)
    assert ended(lab)[0] == {0: 0, signal.SIGTERM: 128 + 15, signal.SIGKILL: -9}[number]
    for pid in processes:
        until(lambda pid=pid: not alive(pid), f"process {pid} has ended")


@pytest.mark.parametrize("rate", ["fast", "100Mbit", "0mbit", ["1mbit", "quick"]])
def test_a_network_of_no_known_rate_is_refused(rate):
    with pytest.raises(InputError, match="is not a rate: 100mbit, 1gbit or unlimited"):
        Network(2, rate)


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
    kill_guards(lab)
    lab.kill()
    ended(lab)
    assert len(namespaces(lab.pid)) == 3
    with Network(1, "1mbit"):
        assert not namespaces(lab.pid) and not any(map(alive, ranks))


def kill_guards(lab: subprocess.Popen[str]) -> None:
    found = subprocess.run(["pgrep", "-P", str(lab.pid), "-x", "sh"], capture_output=True, text=True).stdout.split()
    assert len(found) == 2, "one for the namespaces, one for the processes"
    for pid in found:
        os.kill(int(pid), signal.SIGKILL)


@pytest.mark.root
def test_when_only_its_guards_are_killed_it_removes_the_namespaces_itself(limited):
    lab = started("--ranks", 2, "--rate", "10mbit", "--", sys.executable, "-c", WAIT)
    pids(lab, 2)
    kill_guards(lab)
    lab.terminate()
    assert ended(lab)[0] == 128 + 15 and not namespaces(lab.pid)


@pytest.mark.root
@pytest.mark.parametrize(("rate", "status"), [("unlimited", 0), ("1mbit", 2)])
def test_a_containers_root_hears_what_it_lacks(limited, rate, status):
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv not found")
    container = ("setpriv", "--bounding-set=-sys_admin,-net_admin", "--inh-caps=-all")
    found, out, err = ended(started("--rate", rate, "--", "echo", "hi", prefix=container))
    assert found == status and ("[0] hi" in out) == (status == 0)
    assert "CAP_SYS_ADMIN and CAP_NET_ADMIN" in err and ("127.0.0.1" if status == 0 else "--rate unlimited") in err


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
    with pytest.raises(InputError, match="closed"):
        places.set_rate("1mbit")
    with pytest.raises(InputError, match="3 rates for 2 nodes"):
        Network(2, ["1mbit"] * 3)


@pytest.mark.root
def test_a_rate_changes_while_ranks_run(limited):
    wait = "until tc qdisc show dev eth0 | grep -q 7Mbit; do sleep 0.01; done"
    lab = started("--ranks", 1, "--change", "0.1s:7mbit", "--", "sh", "-c", wait)
    status, _, err = ended(lab)
    assert status == 0 and "after 0.1 s: links of 7mbit" in err
