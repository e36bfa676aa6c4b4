"""The trainings of `benchmarks/exchanges.py` and the rules of each: sparse embeddings, the images of `accuracy.py`, and
models that were pruned.

Embeddings have `sparse=True`: their gradients are rows, which the optimizer reads as they come.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

import accuracy_tasks
import numpy as np
import torch
from accuracy_tasks import MOMENTUM, Data, Part, Task, read_text, windows
from torch import nn

from sparsewire.errors import InputError
from sparsewire.kernels import Array
from sparsewire.lab.arrays import load_arrays
from sparsewire.torch import prune

NEGATIVES = 4  # beside each rating that is trained on; drawn for it VARIANTS times
VARIANTS = 4
RIVALS, DRAWS = 99, 10  # of a user's held-out item, and how often they are drawn
WORDS = 5000


@dataclass(frozen=True)
class SparseTask(Task):
    """A training of sparse embeddings by Adagrad."""

    def optimizer(self, model: nn.Module, rate: float) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(model.parameters(), rate)


class Both:
    """Two optimizers as one."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        self.param_groups = [group for part in parts for group in part.param_groups]

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad()

    def step(self) -> None:
        for part in self.parts:
            part.step()


@dataclass(frozen=True)
class SgdTask(SparseTask):
    """SGD for the tables: Adagrad would make steps of the noise that a sketch leaves in rarely used rows."""

    def optimizer(self, model: nn.Module, rate: float) -> Both:  # type: ignore[override]
        names, named = embedded(model), dict(model.named_parameters())
        others = {"params": [one for name, one in named.items() if name not in names], "share": 1 / 6000}
        return Both(torch.optim.SGD([named[name] for name in sorted(names)], rate), torch.optim.Adagrad([others], rate))


# --- MovieLens -------------------------------------------------------------------------------------------------------


def movielens(folder: Path) -> Data:
    """Rows of a user, an item that they rated and others that they did not: the first item is to be told.

    A user's last item is tested, the one before it is for choosing the rate.
    """
    arrays = load_arrays(folder / "movielens-small.npz")
    missing = {"user", "item", "timestamp"} - set(arrays)
    if missing:
        raise InputError(f"{folder / 'movielens-small.npz'} has no {', '.join(sorted(missing))}")
    user, item, back = _by_time(arrays["user"], arrays["item"], arrays["timestamp"])
    rated = np.zeros((user.max() + 1, item.max() + 1), bool)
    rated[user, item] = True
    rng = np.random.default_rng(0)
    parts = [
        _candidates(user[some], item[some], rated, count, rng)
        for some, count in ((np.repeat(np.flatnonzero(back >= 2), VARIANTS), NEGATIVES),
                            (np.repeat(np.flatnonzero(back == 1), DRAWS), RIVALS),
                            (np.repeat(np.flatnonzero(back == 0), DRAWS), RIVALS))
    ]  # fmt: skip
    return Data(*parts, classes=item.max() + 1)


def _by_time(user: Array, item: Array, timestamp: Array) -> tuple[Array, Array, Array]:
    """Users, items, and how many later ratings the user has; without users of fewer than three."""
    order = np.lexsort((item, timestamp, user))
    user, item = user[order].astype("i8"), item[order].astype("i8")
    counts = np.bincount(user)
    back = np.cumsum(counts)[user] - 1 - np.arange(user.size)
    enough = counts[user] >= 3
    return user[enough], item[enough], back[enough]


def _candidates(user: Array, item: Array, rated: Array, count: int, rng: np.random.Generator) -> Part:
    """[user, item, `count` items that they have not rated]; the right one is always the first."""
    others = rng.integers(rated.shape[1], size=(user.size, count))
    while (taken := rated[user[:, None], others]).any():
        others[taken] = rng.integers(rated.shape[1], size=int(taken.sum()))
    return torch.from_numpy(np.column_stack([user, item, others])), torch.zeros(user.size, dtype=torch.int64)


class Collaborative(nn.Module):
    """NCF (arXiv 1708.05031): the product of two embeddings and a perceptron on two others, side by side in a row.

    Scores of all candidates of a user, so that the loss is a softmax over them.
    """

    def __init__(self, data: Data, width: int = 32) -> None:
        super().__init__()
        users = int(data.train[0][:, 0].max()) + 1
        self.users = nn.Embedding(users, 2 * width, sparse=True)
        self.items = nn.Embedding(data.classes, 2 * width, sparse=True)
        sizes = (2 * width, width, width // 2)
        self.perceptron = nn.Sequential(nn.Linear(sizes[0], sizes[1]), nn.ReLU(), nn.Linear(sizes[1], sizes[2]),
                                        nn.ReLU())  # fmt: skip
        self.head = nn.Linear(width + sizes[2], 1)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        items = self.items(x[:, 1:])
        users = self.users(x[:, :1]).expand_as(items)
        (a, b), (c, d) = users.chunk(2, -1), items.chunk(2, -1)
        both = torch.cat([a * c, self.perceptron(torch.cat([b, d], -1))], -1)
        scores: torch.Tensor = self.head(both).squeeze(-1)
        return scores


# --- words -----------------------------------------------------------------------------------------------------------


def wikitext(folder: Path) -> Data:
    """Words of both parts."""
    words = " ".join(read_text(folder / f"wikitext2-{part}.txt") for part in "ab").split()
    return windows(words, [word for word, _ in Counter(words).most_common(WORDS)])


class Recurrent(nn.Module):
    def __init__(self, data: Data, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(data.classes, width, sparse=True)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, data.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.lstm(self.embedding(x))[0])
        return logits


SPARSE = {
    "ncf": SgdTask(
        "NCF, MovieLens, SGD (Adagrad at 1/6000 of the rate for weights that are not embeddings)",
        movielens,
        Collaborative,
        "hits",
        False,
        250,
        1024,
        (300.0, 600.0, 1200.0),
    ),
    "lstm_sparse": SparseTask(
        "LSTM, words of WikiText-2, Adagrad", wikitext, Recurrent, "perplexity", False, 400, 8, (0.02, 0.05, 0.1)
    ),
}


def embedded(model: nn.Module) -> frozenset[str]:
    """The names of tables with sparse gradients."""
    tables = (name for name, one in model.named_modules() if isinstance(one, nn.Embedding) and one.sparse)
    return frozenset(f"{name}.weight" for name in tables)


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
    "dense": "", "superneurons": "superneurons", "superneurons_none": "superneurons | memory=none",
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
