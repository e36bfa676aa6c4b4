"""What each exchange costs in accuracy, and its bytes: `benchmarks/exchanges.py --data FOLDER --tasks ncf mnist …`.

Four ranks are threads of this process, which train as described in training.py. Bytes are those that a rank sends over
its wire, by the rules of sparsewire.planning.cost.volume: an all_gather takes (ranks − 1) × message, an all_reduce
2 (ranks − 1)/ranks × array.

ncf, lstm_sparse   gradients of embeddings are sparse; all their rows are sent, in one of these ways. The other weights
                   travel dense under every rule and are not in "MB a rank" but "beside it".
    dense          the whole table in an all_reduce
    raw            all_gather of an index (int32) and a float32 for every number
    raw_rows       the same with one index for a row
    coded          all_gather of rows through our default codecs, with error feedback
    s2_…           S2 Reducer: a sketch of so many % of the union's rows in an all_reduce

mnist, cifar       top 1 % with momentum correction (memory=dgc), each exchange beside allgather
…_pruned50, 80     so many % of the weights, those of smallest magnitude, are zero from the start; every rule trains the
                   same pruned model
    dense          the whole gradient in an all_reduce
    mask_…         PacTrain: the survivors, without indices, in an all_reduce of these numbers
    mask_…_dgc     the same with momentum correction, where numbers are rounded

cifar_frequency    what stands beside sparsification in the frequency domain, all by all_gather
    superneurons…  θ = 0.85, N = 10 with error feedback; where that follows the learning rate; without it; with momentum
                   correction
    topk_same      top-k in the time domain with as many bytes and the same floats
    qsgd_4         QSGD, 4 bits for a number
    terngrad       TernGrad, −s, 0 or s for a number
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence

import torch
import training
from exchanges_picture import draw
from exchanges_tasks import BASE, RULES, TASKS
from script import add_arguments, run_script
from torch import nn
from training import RANKS, Comparison, Row

import sparsewire as sw
from sparsewire.core.sparse import Sparse, elements
from sparsewire.kernels import Array
from sparsewire.lab.tables import table
from sparsewire.lab.tasks.ratings import embedded
from sparsewire.lab.tasks.scores import HIGHER
from sparsewire.lab.tasks.task import Task
from sparsewire.planning.cost.volume import all_reduce
from sparsewire.torch.prune import find_masks
from sparsewire.training.schedule import SchemeSchedule, Settings


class Cell(training.Cell):
    """One training."""

    @property
    def task(self) -> Task:
        return TASKS[self.name]

    @property
    def scheme(self) -> sw.Scheme:
        return sw.scheme(RULES[self.name][self.rule] or "nonzero | memory=none")

    @property
    def fits(self) -> bool:
        return self.scheme.memory.held_momentum is not None or self.follows

    @property
    def follows(self) -> bool:
        """Whether what waits follows the learning rate, as with `attach(…, optimizer=…, follow_rate=True)`."""
        return self.rule.endswith("_rate")

    def settings(self, model: nn.Module) -> Settings:
        schedule = SchemeSchedule(self.scheme, self.steps if self.rule == "dense" else 0)
        dense = frozenset(dict(model.named_parameters())) - embedded(model) if embedded(model) else frozenset()
        masks = find_masks(dict(model.named_parameters()), model) if self.scheme.exchange.uses_masks else None
        return Settings(schedule, dense_names=dense, seed=self.seed, masks=masks, follow_rate=self.follows)

    def given(self, gradient: Sparse) -> Sparse | Array:
        if self.rule == "dense":
            return gradient.flat()
        if self.rule == "raw":
            return Sparse(elements(gradient.indices, gradient.width), gradient.values, gradient.shape, gradient.dtype)
        return gradient

    def facts(self, model: nn.Module) -> Row:
        """With the bytes of weights that travel dense beside sparse gradients."""
        tables = embedded(model)
        others = sum(4 * one.numel() for name, one in model.named_parameters() if tables and name not in tables)
        return {**super().facts(model), "others": self.steps * all_reduce(others, RANKS).sent}


def plan(options: argparse.Namespace, name: str, rate: float, seed: int) -> Iterator[Cell]:
    """Dense first, which the others are compared with."""
    for rule in RULES[name]:
        if rule == "dense" or options.rules is None or rule in options.rules:
            yield Cell(name, rule, seed, rate, options.steps or TASKS[name].steps)


def compared(row: Row, dense: Row) -> Row:
    return {**row, "difference": row["score"] - dense["score"], "compressed": row["wire"] - row["others"]}


EXCHANGES = Comparison(TASKS, plan, compared)


# --- what is shown ---------------------------------------------------------------------------------------------------


def line(name: str, rule: str, some: Sequence[Row], base: float | None) -> list[str]:
    means = {key: statistics.fmean(row[key] for row in some) for key in ("score", "difference", "compressed", "others")}
    differences = [EXCHANGES.points(name, row["difference"], "+") for row in some]
    apart, relative = rule != "dense", TASKS[name].score not in HIGHER
    return [
        name, rule, EXCHANGES.points(name, means["score"]),
        EXCHANGES.points(name, means["difference"], "+") if apart else "", " ".join(differences) if apart else "",
        f"{means['difference'] / (means['score'] - means['difference']):+.1%}" if apart and relative else "",
        f"{means['compressed'] / 1e6:.2f}", f"{means['others'] / 1e6:.2f}" if means["others"] else "",
        f"{means['compressed'] / base:.1%}" if base else "",
        f"{statistics.fmean(row['cpu_seconds'] for row in some):.0f}",
        ", ".join(f"{way} {times}" for way, times in some[0]["ways"].items()),
    ]  # fmt: skip


def lines(rows: Sequence[Row]) -> Iterator[list[str]]:
    for name, rules in RULES.items():
        found = {rule: [row for row in rows if (row["task"], row["rule"]) == (name, rule)] for rule in rules}
        bases = [row["compressed"] for row in found[BASE[name]]]
        base = statistics.fmean(bases) if bases else None
        yield from (line(name, rule, some, base) for rule, some in found.items() if some)


def show(result: Row) -> str:
    headers = ["task", "rule", "score", "against dense", "by seed", "relative", "MB a rank", "beside it", "of the base",
               "CPU s", "ways taken"]  # fmt: skip
    trained = list(dict.fromkeys((row["task"], row["rule"]) for row in result["rows"]))
    schemes = dict.fromkeys(f"{rule}: {RULES[name][rule]}" for name, rule in trained if RULES[name][rule])
    base = ", ".join(dict.fromkeys(f"{BASE[name]} ({name})" for name, _ in trained))
    shown = table(headers, [*lines(result["rows"])])
    return "\n".join([*EXCHANGES.about(result), *schemes, f"base: {base}", "", shown])


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_arguments(parser, TASKS)
    known = sorted({rule for rules in RULES.values() for rule in rules})
    parser.add_argument("--rules", nargs="+", choices=known, help="default: all of the task; dense is always trained")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    torch.sparse.check_sparse_tensor_invariants.disable()  # said, torch does not warn
    return run_script(parse(argv), EXCHANGES.run, show, draw)


if __name__ == "__main__":
    sys.exit(main())
