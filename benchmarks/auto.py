"""`attach(model, "auto")` on real links, beside plain DDP and every fixed choice: `sudo python benchmarks/auto.py`.

steps     step times after the first 20 steps, all arms interleaved in one run: where dense is best, and where it is not
changes   links that are not limited at first, fall to 100 Mbit/s in mid-run and rise again: the steps of the switches

Exit status: 1 if a target is missed and --check is given, 77 if it cannot run here (no root, no `ip` or `tc`).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from interleaved import PLAIN, guarded, time_arms

from sparsewire.lab import measure
from sparsewire.lab.arguments import UNLIMITED, add_json, count
from sparsewire.lab.net.launch import Event, launch_ranks
from sparsewire.lab.net.network import Network
from sparsewire.lab.tables import number, publish, table
from sparsewire.lab.tasks.workloads import MODELS, WORKLOADS
from sparsewire.planning.auto import read_auto

AUTO, DENSE = "auto", "dense"
FIRST = 20  # steps of auto that are not counted
SLOW = "100mbit"
WITHIN = {SLOW: 20, UNLIMITED: 50}  # steps after a change to this rate until auto has followed
Result = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A model on a link, and how many times the step of the best other arm auto's may take."""

    model: str
    rate: str
    target: float
    plain: bool  # plain DDP is what it is compared with, else each of the schemes that it may choose
    rounds: int
    scheme: str = AUTO
    momentum: float = 0.0  # of SGD; the memory is then gain


HELD = "auto(margin=9)"  # dense unless a scheme is ten times faster: what its dense steps cost
CASES = {
    "25M-unlimited": Case("25M", UNLIMITED, 1.03, True, 10),
    "25M-unlimited-dense": Case("25M", UNLIMITED, 1.03, True, 10, HELD),
    "25M-unlimited-gain": Case("25M", UNLIMITED, 1.03, True, 10, HELD, momentum=0.9),
    "1M-1gbit": Case("small", "1gbit", 1.03, True, 40),
    "1M-1gbit-dense": Case("small", "1gbit", 1.03, True, 40, HELD),
    "25M-1gbit": Case("25M", "1gbit", 1.05, False, 6),
    "25M-100mbit": Case("25M", SLOW, 1.05, False, 6),
    "tiny-unlimited": Case("tiny", UNLIMITED, 1.03, True, 1),  # for a test
}


# --- step times --------------------------------------------------------------------------------------------------


def arms_of(case: Case) -> dict[str, dict[str, Any]]:
    """The arm that it is compared with first: plain DDP, or each scheme that auto may choose."""
    auto = read_auto(AUTO)
    assert auto is not None
    fixed = {plan.brief: {"hook": "sparsewire", "scheme": str(plan)} for plan in auto.plans}
    ours = {AUTO: {"hook": "sparsewire", "scheme": case.scheme}}
    arms = {**({PLAIN: {"hook": "none"}} if case.plain else fixed), **ours}
    return {name: {**settings, "momentum": case.momentum} for name, settings in arms.items()}


def time_case(name: str, ranks: int) -> Result:
    case = CASES[name]
    arms = arms_of(case)
    warmup = {arm: FIRST if arm == AUTO else 2 for arm in arms}
    with Network(ranks, case.rate) as endpoints:
        found = time_arms(MODELS[case.model], arms, endpoints, warmup, steps=5, rounds=case.rounds, limit=1800)
    steps = {arm: row["step_ms"] for arm, row in found["arms"].items()}
    ratio = steps[AUTO] / min(spent for arm, spent in steps.items() if arm != AUTO)
    facts = {"case": name, "scheme": case.scheme, "momentum": case.momentum, "rate": case.rate, "target": case.target}
    return {**facts, **found, "ratio": ratio, "met": ratio <= case.target}


def show_steps(result: Result) -> str:
    rows = [[name, number(row["step_ms"], 1), number(_quarter(row["all_ms"]), 1)]
            for name, row in result["arms"].items()]  # fmt: skip
    title = f"{measure.machine_line(result['machine'])}\n{result['parameters']:,} parameters, {result['ranks']} ranks, "
    verdict = f"{result['scheme']}: {result['ratio']:.3f} × the best other "
    verdict += f"(target: {result['target']:.2f}: {_word(result['met'])})"
    where = f"links of {result['rate']}{_behind(result)}"
    return f"{title}{where}\n\n{table(['', 'step ms', 'faster quarter'], rows)}\n{verdict}\n"


def _behind(result: Result) -> str:
    return f", SGD with momentum {result['momentum']:g}" if result.get("momentum") else ""


def _quarter(spent: Sequence[float]) -> float:
    return statistics.quantiles(spent, n=4)[0]


def _word(met: bool) -> str:
    return "met" if met else "MISSED"


# --- links that change -------------------------------------------------------------------------------------------


def follow_changes(workload: str, scheme: str, fall: int, rise: int, steps: int, ranks: int) -> Result:
    """Where the rate falls and rises after these steps: what auto did."""
    with Network(ranks, UNLIMITED) as endpoints:
        turns = {fall: SLOW, rise: UNLIMITED}
        found = launch_ranks(
            "sparsewire.lab.train.job:train_cell", _order(workload, scheme, steps), endpoints,
            lambda event: _turn(endpoints, turns, event), limit=3600,
        )  # fmt: skip
    switches = found[0]["link"]["auto"]["switches"]
    late = {rate: _followed(switches, step, rate, steps) for step, rate in turns.items()}
    met = all(found is not None and found <= WITHIN[rate] for rate, found in late.items())
    facts = {"workload": workload, "scheme": scheme, "ranks": ranks, "steps": steps}
    facts |= {"turns": {rate: at for at, rate in turns.items()}}
    return {
        "machine": measure.machine(), **facts, "switches": switches, "followed": late, "met": met,
        "alike": all(one["link"]["auto"]["switches"] == switches for one in found),
        "seconds": found[0]["seconds"],
    }  # fmt: skip


def _order(workload: str, scheme: str, steps: int) -> dict[str, Any]:
    own, arm = WORKLOADS[workload], {"hook": "sparsewire", "scheme": scheme}
    rest = {"batch": own.task.batch, "tests": 0, "learning_rate": own.rate}
    return {"workload": workload, "arm": arm, "data": ".", "seed": 1, "steps": steps, "warmup": 0, **rest}


def _turn(endpoints: Network, turns: Mapping[int, str], event: Event) -> None:
    if event.get("step") in turns:
        endpoints.set_rate(turns[event["step"]])


def _followed(switches: Sequence[Mapping[str, Any]], step: int, rate: str, steps: int) -> int | None:
    """Steps from the change until the kind of exchange that suits the rate is in use."""
    wanted = rate != UNLIMITED
    at = [one["step"] for one in switches if one["step"] <= step]
    now = [one for one in switches if one["step"] in at]
    if (bool(now) and now[-1]["after"] != DENSE) == wanted:
        return 0
    later = [one["step"] for one in switches if one["step"] > step and (one["after"] != DENSE) == wanted]
    return min(later) - step if later else None


def show_changes(result: Result) -> str:
    rows = [[str(one["step"]), one["after"], one["reason"]] for one in result["switches"]]
    said = [f"{rate} after step {step}: followed {_steps_later(result['followed'][rate])} (target: {WITHIN[rate]})"
            for rate, step in result["turns"].items()]  # fmt: skip
    what = f"{result['workload']}, {result['scheme']}, {result['ranks']} ranks"
    head = f"{measure.machine_line(result['machine'])}\n{what}"
    same = "" if result["alike"] else "\nRANKS DIFFER"
    return "\n".join([head, "", table(["from step", "", "why"], rows), *said, _word(result["met"]) + same, ""])


def _steps_later(found: int | None) -> str:
    return "never" if found is None else f"{found} steps later"


# --- the command -------------------------------------------------------------------------------------------------


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES)[:-1], help="of step times")
    parser.add_argument("--changes", nargs="*", choices=("synthetic-1m", "synthetic-25m"), default=["synthetic-1m"])
    parser.add_argument("--scheme", default="auto(ratio=10%)", help="while links change (default: %(default)s)")
    parser.add_argument("--fall", type=count, default=60, metavar="STEP")
    parser.add_argument("--rise", type=count, default=140, metavar="STEP")
    parser.add_argument("--steps", type=count, default=220, help="of a training whose links change")
    parser.add_argument("--ranks", type=count, default=4)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    add_json(parser)
    return parser.parse_args(argv)


def run(options: argparse.Namespace) -> list[Result]:
    turns = (options.scheme, options.fall, options.rise, options.steps, options.ranks)
    timed = [time_case(name, options.ranks) for name in options.cases]
    return [*timed, *(follow_changes(workload, *turns) for workload in options.changes)]


def show(result: Result) -> str:
    return show_steps(result) if "case" in result else show_changes(result)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    status, results = guarded("auto.py", lambda: run(options))
    if results:
        publish("\n".join(map(show, results)), results, options.json)
    return status or int(options.check and not all(result["met"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
