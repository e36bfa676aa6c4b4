"""The trainings of `benchmarks/exchanges.py` and the rules of each: sparse embeddings, the images of `accuracy.py`, and
models that were pruned.

Embeddings have `sparse=True`: their gradients are rows, which the optimizer reads as they come.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial

import accuracy_tasks
import torch
from torch import nn

from sparsewire.lab.tasks.ratings import SparseTask
from sparsewire.lab.tasks.task import MOMENTUM, Task
from sparsewire.lab.tasks.texts import Recurrent, wikitext
from sparsewire.lab.tasks.workloads import WORKLOADS
from sparsewire.torch import prune

WORDS = 5000
SPARSE = {
    "ncf": WORKLOADS["ncf-movielens"].task,
    "lstm_sparse": SparseTask(
        "LSTM, words of WikiText-2, Adagrad",
        partial(wikitext, parts="ab", known=WORDS),
        partial(Recurrent, sparse=True),
        "perplexity",
        False,
        400,
        8,
        (0.02, 0.05, 0.1),
    ),
}


# --- pruned models ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PrunedTask(Task):
    """A training of what pruning by magnitude leaves of a model that has not been trained yet."""

    pruned: float = 0.0

    def prepare(self, model: nn.Module) -> None:
        prune(model.to(memory_format=torch.contiguous_format), self.pruned)  # torch prunes no other


def _pruned(name: str, share: int) -> PrunedTask:
    whole = accuracy_tasks.TASKS[name]
    settings = {field.name: getattr(whole, field.name) for field in fields(whole)}
    return PrunedTask(**{**settings, "what": f"{whole.what}, {share} % pruned", "pruned": share / 100})


PRUNED = {f"{name}_pruned{share}": _pruned(name, share) for name in ("mnist", "cifar") for share in (50, 80)}


# --- rules: the scheme of each, "" where everything travels dense ----------------------------------------------------

RAW = "nonzero | indices=raw | values=raw | memory=none"
TOP = f"topk(1%) | memory=dgc(momentum={MOMENTUM})"
PLAIN = f"dgc(momentum={MOMENTUM}, mask=false)"  # with everything sent, masking would leave no momentum
SUMMED = ("float32", "bfloat16", "int8", "ternary")
ROWS = {"dense": "", "raw": RAW, "raw_rows": RAW, "coded": "nonzero"}
ROWS |= {f"s2_{share}": f"s2(volume={share / 100})" for share in (35, 24, 12)}
EXCHANGED = {
    "direct": "reduce_scatter(route=direct)", "log": "reduce_scatter(route=log)", "pool": "shared(support=pool)",
    "leader": "shared(support=leader)", "sketch": "sketch(volume=0.25) | values=raw",
}  # fmt: skip
SELECTED = {"dense": "", "allgather": TOP, **{rule: f"{TOP} | exchange={how}" for rule, how in EXCHANGED.items()}}
MASKED = {"dense": "", **{f"mask_{values}": f"pactrain(values={values})" for values in SUMMED}}
MASKED |= {f"{rule}_dgc": f"{MASKED[rule]} | memory={PLAIN}" for rule in ("mask_int8", "mask_ternary")}
SPECTRAL = {
    "dense": "", "superneurons": "superneurons", "superneurons_rate": "superneurons",
    "superneurons_none": "superneurons | memory=none",
    "superneurons_dgc": f"superneurons | memory=dgc(momentum={MOMENTUM}, mask=false)",
    "topk_same": "topk(12.5%) | indices=rice | values=range_float(bits=10) | memory=residual",
    "qsgd_4": "nonzero | indices=best | values=qsgd(bits=4) | memory=none",
    "terngrad": "nonzero | indices=best | values=ternary | memory=none",
}  # fmt: skip
IMAGES = {name: accuracy_tasks.TASKS[name] for name in ("mnist", "cifar")}
FREQUENCY = {"cifar_frequency": IMAGES["cifar"]}
TASKS: dict[str, Task] = {**SPARSE, **IMAGES, **PRUNED, **FREQUENCY}
RULES = {
    **dict.fromkeys(SPARSE, ROWS), **dict.fromkeys(IMAGES, SELECTED), **dict.fromkeys(PRUNED, MASKED),
    **dict.fromkeys(FREQUENCY, SPECTRAL),
}  # fmt: skip
BASE = {**dict.fromkeys(TASKS, "dense"), **dict.fromkeys(SPARSE, "raw"), **dict.fromkeys(IMAGES, "allgather")}
