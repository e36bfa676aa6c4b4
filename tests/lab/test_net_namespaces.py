"""`sparsewire lab net` in network namespaces: nothing is left behind, and rates hold."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest
from net_processes import LIMIT, WAIT, alive, ended, namespaces, pids, started, until

from sparsewire.errors import InputError
from sparsewire.lab.net.network import Network, obstacle, remove_leftovers


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
            subprocess.Popen([*endpoints[0].prefix, sys.executable, "-c", listen], stdin=-1, stdout=-1, text=True)
            for endpoints in (one, other)
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
    with Network(2, ["10mbit", "unlimited"], per_node=2) as endpoints:
        assert len(endpoints) == 4 and endpoints[0] == endpoints[1] != endpoints[2]
        assert "rate 10Mbit" in qdiscs(endpoints[0].prefix) and "tbf" not in qdiscs(endpoints[2].prefix)
        endpoints.set_rate("20mbit")
        assert all("rate 20Mbit" in qdiscs(endpoint.prefix) for endpoint in endpoints)
        endpoints.set_rate("unlimited", node=0)
        assert "tbf" not in qdiscs(endpoints[0].prefix) and "tbf" in qdiscs(endpoints[2].prefix)
    with pytest.raises(InputError, match="closed"):
        endpoints.set_rate("1mbit")
    with pytest.raises(InputError, match="3 rates for 2 nodes"):
        Network(2, ["1mbit"] * 3)


@pytest.mark.root
def test_a_rate_changes_while_ranks_run(limited):
    wait = "until tc qdisc show dev eth0 | grep -q 7Mbit; do sleep 0.01; done"
    lab = started("--ranks", 1, "--change", "0.1s:7mbit", "--", "sh", "-c", wait)
    status, _, err = ended(lab)
    assert status == 0 and "after 0.1 s: links of 7mbit" in err
