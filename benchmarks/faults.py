"""Faults in a training and what becomes of the other ranks: `python benchmarks/faults.py --trials 3 --timeout 6`.

A rank is killed, stopped (SIGSTOP), cut off from the network (as root only), raises, has a gradient of NaN or other
settings, in every exchange, with `nodes`, `auto` and `local_steps`; ranks end without `detach()`. For each: the worst
time from the fault to the error on all other ranks, ranks that hang, ranks whose weights differ, and other surprises.
Exit status: 1 if there were any of those.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from faults_rank import AUTO, EXCHANGES, LOCAL, NODES, Found, Trial, play

from sparsewire.lab import measure
from sparsewire.lab.arguments import UNLIMITED, add_json, count
from sparsewire.lab.net.network import Network, obstacle
from sparsewire.lab.tables import number, publish, table

FAULTS = ("kill", "stop", "link down", "raise", "NaN", "mismatch")
WHERE = (*EXCHANGES, NODES, AUTO, LOCAL)
EXITS = {"return": 0, "destroy": 0, "exit 1": 1, "raise": 1}
EXIT, ENDS = "exit without detach", ("plain DDP", "allgather", AUTO, LOCAL)
SLACK = 10.0  # seconds, after those in which an error is due: what takes longer still hangs
START = 60.0  # for ranks to begin
CLONE_NEWNET = 0x40000000


@dataclass
class Row:
    """What came of all trials of a fault in an exchange."""

    fault: str
    exchange: str
    trials: int = 0
    seconds: float | None = None
    hangs: int = 0
    divergences: int = 0
    surprises: tuple[str, ...] = ()


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=count, default=3, help="of each fault in each exchange")
    parser.add_argument("--exits", type=count, help="of each kind of end without detach; default: as many as trials")
    parser.add_argument("--timeout", type=float, default=6.0, help="seconds, of the links")
    parser.add_argument("--margin", type=float, default=3.0, help="seconds after the timeout until an error is late")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORDS", help="rows that begin so: stop, 'kill root'")
    add_json(parser)
    return parser.parse_args(argv)


def rows(options: argparse.Namespace) -> list[Row]:
    found = [Row(fault, where) for fault in FAULTS for where in WHERE]
    found += [Row(EXIT, f"{kind}, {where}") for kind in EXITS for where in ENDS]
    wanted = tuple(options.only) or ("",)
    return [row for row in found if f"{row.fault} {row.exchange}".startswith(wanted) and possible(row)]


def possible(row: Row) -> bool:
    if row.fault == "link down" and (problem := obstacle()):
        print(f"faults.py: {row.fault}, {row.exchange}: left out, {problem}", file=sys.stderr)
        return False
    return True


def run(row: Row, options: argparse.Namespace, folder: Path) -> None:
    exits = row.fault == EXIT
    for trial in range((options.exits or options.trials) if exits else options.trials):
        path = folder / f"{row.fault} {row.exchange} {trial}".replace(" ", "-")
        path.mkdir()
        if exits:
            judge_exit(row)
        else:
            judge(row, path, trial, options)
        row.trials += 1
        shutil.rmtree(path)


# --- a fault ---


def judge(row: Row, path: Path, nth: int, options: argparse.Namespace) -> None:
    due = options.timeout + options.margin
    network = Network(4, UNLIMITED) if row.fault == "link down" else nullcontext()
    with network as endpoints:
        address, port = ("127.0.0.1", free_port()) if endpoints is None else (endpoints[0].address, 29555)
        trial = Trial(row.fault, row.exchange, nth, options.timeout, address, port, str(path))
        names = [None if endpoints is None else one.prefix[-1] for one in endpoints or range(trial.size)]
        found = in_processes(trial, names, START + due + SLACK)
    compare(row, trial, found, due)


def compare(row: Row, trial: Trial, found: list[Found | None], due: float) -> None:
    others = [one for rank, one in enumerate(found) if rank != trial.victim or row.fault in ("NaN", "mismatch")]
    row.hangs += sum(one is None for one in others)
    alive = [one for one in others if one is not None]
    steps = {step for one in alive for step in one.weights}
    row.divergences += any(len({one.weights[step] for one in alive if step in one.weights}) > 1 for step in steps)
    if row.fault == "NaN":
        row.surprises += tuple(one.error for one in alive if one.error)
        return
    row.surprises += tuple("no error" for one in alive if not one.error)
    begin = max((one.faulted for one in alive), default=0.0)
    seconds = max((one.ended - begin for one in alive), default=0.0)
    row.seconds = max(row.seconds or 0.0, seconds)
    if seconds > due:
        row.surprises += (f"{seconds:.1f} s until the error",)


def in_processes(trial: Trial, names: Sequence[str | None], limit: float) -> list[Found | None]:
    """What each rank found; None for one that died or hung. Nothing is left running."""
    pids = [fork(partial(be_rank, trial, rank, names[rank])) for rank in range(trial.size)]
    gone = trial.victim if trial.fault in ("kill", "stop", "link down") else None
    try:
        wait_for([pid for rank, pid in enumerate(pids) if rank != gone], limit)
    finally:
        end(pids)
    texts = [Path(trial.folder, f"found-{rank}") for rank in range(trial.size)]
    return [Found(**json.loads(text.read_text())) if text.exists() else None for text in texts]


def be_rank(trial: Trial, rank: int, name: str | None) -> None:
    if name is not None:
        enter_namespace(name)
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    found = play(trial, rank)
    path = Path(trial.folder, f"found-{rank}")
    path.with_suffix(".new").write_text(json.dumps(asdict(found)))
    path.with_suffix(".new").rename(path)


def enter_namespace(name: str) -> None:
    with open(f"/var/run/netns/{name}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {name}")


# --- ends without detach ---


def judge_exit(row: Row) -> None:
    """Scripts of their own, whose interpreters end in order; a rank has one thread, as torchrun gives it."""
    script, quiet = str(Path(__file__).with_name("faults_exit.py")), subprocess.DEVNULL
    words = [sys.executable, script, *row.exchange.split(", "), f"tcp://127.0.0.1:{free_port()}"]
    facts = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([*words, str(rank)], stdout=quiet, stderr=quiet, env=facts) for rank in range(2)]
    try:
        statuses = wait_for([rank.pid for rank in ranks], START)
    finally:
        end([rank.pid for rank in ranks])
    wanted = EXITS[row.exchange.partition(", ")[0]]
    row.hangs += sum(status is None for status in statuses.values())
    row.surprises += tuple(f"status {status}" for status in statuses.values() if status not in (None, wanted))


# --- processes ---


def fork(work: Callable[[], None]) -> int:
    """A child that does the work and no more; nothing that it has copied, such as the network, is closed by it."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        work()
    finally:
        os._exit(0)


def wait_for(pids: Sequence[int], limit: float) -> dict[int, int | None]:
    """Exit statuses, negative for a signal; None for a process that has not ended in time."""
    found: dict[int, int | None] = dict.fromkeys(pids)
    deadline = time.monotonic() + limit
    while None in found.values() and time.monotonic() < deadline:
        for pid in [pid for pid, status in found.items() if status is None]:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                found[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return found


def end(pids: Sequence[int]) -> None:
    for pid in pids:
        try:
            if not os.waitpid(pid, os.WNOHANG)[0]:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        except (ChildProcessError, ProcessLookupError):
            continue


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- the table ---


def show(result: dict[str, Any]) -> str:
    head = f"{measure.machine_line(result['machine'])}\ntimeout of the links: {result['timeout']:g} s"
    lines = [
        [row["fault"], row["exchange"], str(row["trials"]), number(row["seconds"], 1), str(row["hangs"]),
         str(row["divergences"]), " ".join([str(len(row["surprises"])), *(text[:60] for text in row["surprises"][:1])])]
        for row in result["rows"]
    ]  # fmt: skip
    heads = ["fault", "where", "trials", "worst s", "hangs", "divergences", "other surprises"]
    return f"{head}\n\n{table(heads, lines)}"


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    found, folder = rows(options), Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        for row in found:
            run(row, options, folder)
            print(f"{row.fault}, {row.exchange}: {row.trials} trials", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result = {"machine": measure.machine(), "timeout": options.timeout, "rows": [asdict(row) for row in found]}
    publish(show(result), result, options.json)
    return int(any(row.hangs or row.divergences or row.surprises for row in found))


if __name__ == "__main__":
    sys.exit(main())
