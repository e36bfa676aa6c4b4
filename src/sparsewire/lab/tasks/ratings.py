"""Tasks with sparse embeddings, whose gradients are rows, which the optimizer reads as they come; MovieLens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from sparsewire.errors import InputError
from sparsewire.kernels import Array

from ..arrays import load_arrays
from .task import Data, Part, Task

NEGATIVES = 4  # beside each rating that is trained on; drawn for it VARIANTS times
VARIANTS = 4
RIVALS, DRAWS = 99, 10  # of a user's held-out item, and how often they are drawn


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
    train, valid, test = (
        _candidates(user[chosen], item[chosen], rated, count, rng)
        for chosen, count in ((np.repeat(np.flatnonzero(back >= 2), VARIANTS), NEGATIVES),
                            (np.repeat(np.flatnonzero(back == 1), DRAWS), RIVALS),
                            (np.repeat(np.flatnonzero(back == 0), DRAWS), RIVALS))
    )  # fmt: skip
    return Data(train, valid, test, item.max() + 1)


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


def embedded(model: nn.Module) -> frozenset[str]:
    """The names of tables with sparse gradients."""
    tables = (name for name, one in model.named_modules() if isinstance(one, nn.Embedding) and one.sparse)
    return frozenset(f"{name}.weight" for name in tables)
