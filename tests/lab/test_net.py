"""`sparsewire lab net`: what ranks are told, what the status says, and that nothing is left, whatever ends it."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time

import pytest
from command_line import fails, run
from net_processes import SAY, WAIT, alive, ended, line_of, namespaces, pids, started, until

from sparsewire.errors import InputError, SparsewireError
from sparsewire.lab.arguments import read_rate
from sparsewire.lab.net import command as net
from sparsewire.lab.net import commands
from sparsewire.lab.net.commands import Commands, rank_environment
from sparsewire.lab.net.network import Network, obstacle
from sparsewire.lab.net.ranks import Endpoint, _ended


@pytest.fixture
def no_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


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
    with Commands(["sh", "-c", "exit 3"], [Endpoint()] * 3) as ranks:
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
    with Commands(["sh", "-c", rf"{bar}; head -c 500000 /dev/zero | tr '\0' x"], [Endpoint()]) as ranks:
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
        Commands(["yes"], [Endpoint()] * 2).close()
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
    assert rank_environment(0, [Endpoint()], 1, 1)["PYTHONUNBUFFERED"] == "1"
    monkeypatch.setenv("PYTHONUNBUFFERED", "")
    assert rank_environment(0, [Endpoint()], 1, 1)["PYTHONUNBUFFERED"] == ""


def test_a_process_that_has_hidden_and_holds_the_outputs_is_waited_for_once(monkeypatch, capfd):
    drain, held = Commands.drain, []

    def count(ranks, until):
        held.append(len(ranks._pipes.get_map()))
        drain(ranks, until)

    monkeypatch.setattr(commands, "GRACE", 0.5)
    monkeypatch.setattr(Commands, "drain", count)
    with Commands(["sh", "-c", "setsid env -i sleep 15 & echo up"], [Endpoint()] * 2) as ranks:
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


@pytest.mark.parametrize("rate", ["fast", "100MB", "0mbit", "0.0001kbit", "1.5", ["1mbit", "quick"]])
def test_a_network_of_no_known_rate_is_refused(rate):
    with pytest.raises(InputError, match="is not a rate: 100mbit, 1gbit or unlimited"):
        Network(2, rate)


@pytest.mark.parametrize(
    ("word", "rate"),
    [("1gbps", "1gbit"), ("1Gbit/s", "1gbit"), ("2.5gbit", "2500mbit"), ("0.5mbit", "500kbit"), ("1000mbit", "1gbit")],
)
def test_rates_are_read_as_people_write_them(word: str, rate: str) -> None:
    assert read_rate(word) == rate
