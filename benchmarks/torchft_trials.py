"""Three torchft replicas as processes, of which one is killed at a random moment and started again."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torchft.coordination import LighthouseServer

REPLICA = Path(__file__).with_name("torchft_replica.py")
NAMES = ("replica0", "replica1", "replica2")
LIMIT = 100.0  # seconds for a trial
AFTER = 15  # steps after the replica is back


def environment() -> dict[str, str]:
    """Replicas have one thread each and talk over the loopback."""
    return os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


@contextmanager
def lighthouse() -> Iterator[str]:
    """A lighthouse in this process; its address."""
    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=500, quorum_tick_ms=20,
                              heartbeat_timeout_ms=2000)  # fmt: skip
    try:
        yield f"http://127.0.0.1:{server.address().rpartition(':')[2]}"
    finally:
        server.shutdown()


class Trial:
    """The replicas of a trial."""

    def __init__(self, folder: Path, address: str, method: str, scheme: str, async_quorum: bool) -> None:
        self.folder, self._arguments = folder, [method, scheme] + ["--async-quorum"] * async_quorum
        self._address = address
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._end = time.monotonic() + LIMIT

    def start(self, name: str) -> None:
        command = [sys.executable, str(REPLICA), str(self.folder), name, self._address, *self._arguments]
        with (self.folder / f"{name}.err").open("ab") as errors:
            self._processes[name] = subprocess.Popen(command, stdout=errors, stderr=errors, env=environment())

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The steps that a replica has counted; the line that a kill has cut off is none."""
        path = self.folder / f"{name}.jsonl"
        whole = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in whole if line.endswith("}") and line.startswith('{"step"')]

    def until(self, done: Callable[[], bool], what: str) -> None:
        while not done():
            if time.monotonic() > self._end:
                raise TimeoutError(f"{what}: not within {LIMIT:g} seconds; {self.errors()}")
            for name, process in self._processes.items():
                if process.poll() not in (None, 0):
                    raise RuntimeError(f"{name} ended with status {process.returncode}: {self.errors()}")
            time.sleep(0.005)

    def finish(self, step: int) -> None:
        """All replicas train up to this step and end."""
        path = self.folder / "goal.new"
        path.write_text(str(step))
        path.rename(self.folder / "goal")
        self.until(lambda: all(process.poll() == 0 for process in self._processes.values()), "the end")

    def errors(self) -> str:
        return " | ".join(path.read_text()[-1500:] for path in sorted(self.folder.glob("*.err")))

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


def run_trial(folder: Path, method: str, scheme: str, seed: int, async_quorum: bool = False) -> dict[str, Any]:
    """One trial: what was killed when, and what the replicas' logs say."""
    with lighthouse() as address:
        return _run(Trial(folder, address, method, scheme, async_quorum), seed)


def _run(trial: Trial, seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    victim, at, moment = chance.choice(NAMES), chance.randint(3, 25), chance.random() * 0.05
    begin = time.monotonic()
    try:
        for name in NAMES:
            trial.start(name)
        trial.until(lambda: any(line["step"] >= at for line in trial.lines(victim)), f"step {at}")
        time.sleep(moment)
        trial.kill(victim)
        before = len(trial.lines(victim))
        trial.start(victim)
        trial.until(lambda: len(trial.lines(victim)) > before, f"{victim} is back")
        trial.finish(max(line["step"] for name in NAMES for line in trial.lines(name)) + AFTER)
        facts = {
            "killed": victim,
            "at_step": trial.lines(victim)[before - 1]["step"],
            "seconds": time.monotonic() - begin,
        }
        return {**facts, **check({name: trial.lines(name) for name in NAMES}, before, victim)}
    finally:
        trial.close()


def check(logs: dict[str, list[dict[str, Any]]], before: int, victim: str) -> dict[str, Any]:
    """Whether all replicas had equal weights after every step that several counted, and counted every step once."""
    weights: dict[int, set[str]] = {}
    for lines in logs.values():
        for line in lines:
            weights.setdefault(line["step"], set()).add(line["weights"])
    steps = {name: [line["step"] for line in lines] for name, lines in logs.items()}
    runs = [
        part
        for name in logs
        for part in ([steps[name][:before], steps[name][before:]] if name == victim else [steps[name]])
    ]
    return {
        "steps": max(weights),
        "ends": sorted({lines[-1]["weights"] for lines in logs.values()}),
        "end_steps": sorted({lines[-1]["step"] for lines in logs.values()}),
        "unequal_steps": sorted(step for step, found in weights.items() if len(found) > 1),
        "ascending": all(a < b for run in runs for a, b in itertools.pairwise(run)),
        "all_three_again": any(line["of"] == len(NAMES) for line in logs[victim][before:]),
    }  # fmt: skip


def passed(facts: dict[str, Any]) -> bool:
    """The law: equal bits at the end and after each step, every step counted at most once by each replica."""
    return (
        len(facts["ends"]) == len(facts["end_steps"]) == 1
        and not facts["unequal_steps"]
        and facts["ascending"]
        and facts["all_three_again"]
    )
