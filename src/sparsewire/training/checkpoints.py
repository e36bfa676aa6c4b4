"""Checkpoints: every rank's state in a file of its own, for any framework.

Saving. 1. The ranks agree on the set's name: the largest step of any rank, and a mark that tells it from other saves.
2. Every rank writes its file. 3. Once all ranks have, each removes its files of other steps. Whoever is killed on the
way leaves the previous set as it was.
Loading. 1. The ranks agree on the latest set that all of them can use. 2. Every rank reads and checks its state, and
touches nothing. 3. Once all ranks have, they take it over: all of them go on from the set, or none does.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakValueDictionary

from sparsewire.codecs.scheme import scheme
from sparsewire.comm import Communicator
from sparsewire.core.files import PathLike, remove_abandoned
from sparsewire.core.statefile import read_state, reading, write_state
from sparsewire.errors import InputError

from .local import round_states
from .nodes.grid import Grid
from .residuals.reshard import position
from .together import Gather, together

State = Mapping[str, Any]
NAME, KIND = "sparsewire", "rank in training"
ALONE = "0" * 16  # the mark of saves that the ranks did not agree on


class Training(Protocol):
    """What can be saved: one rank's part in a training."""

    @property
    def comm(self) -> Communicator: ...

    @property
    def grid(self) -> Grid: ...

    @property
    def attached(self) -> bool: ...

    @property
    def connected(self) -> bool:
        """Whether it can still speak to the other ranks."""

    def gather(self, data: bytes) -> list[bytes]:
        """An all_gather behind everything that is on its way."""

    def state_dict(self) -> dict[str, Any]: ...

    def read_state(self, state: State) -> Any:
        """A state of this rank, checked, as `take_over` needs it. Nothing else changes."""

    def take_over(self, ready: Any) -> None:
        """Goes on from what `read_state` gave. It does not fail."""


@dataclass(frozen=True)
class StateSet:
    """The files of one save that this rank can see, by rank. `mark` tells saves of one step apart; later ones sort
    later."""

    step: int
    size: int
    mark: str
    files: dict[int, Path] = field(default_factory=dict)

    @property
    def key(self) -> list[Any]:
        return [self.step, self.size, self.mark]

    @property
    def is_whole(self) -> bool:
        return set(self.files) == set(range(self.size))

    def is_usable(self, rank: int, size: int) -> bool:
        """Whether it has the file of this rank of as many."""
        return self.size == size and rank in self.files


_savers: WeakValueDictionary[Path, Training] = WeakValueDictionary()  # who wrote which files in this process


def save(training: Training, make_state: Callable[[], State], folder: PathLike, name: str = NAME) -> Path:
    """Writes this rank's state, in arrays and plain types. Every rank calls it; one that is no longer connected writes
    its file alone, and removes no other."""
    here, connected = Path(folder).resolve(), training.connected
    gather: Gather = training.gather if connected else lambda data: [data]
    state, answers = together(gather, lambda: _begin(training, make_state(), here, name))
    _check_positions([place for place, _, _ in answers])
    key = [max(step for _, step, _ in answers), state["world_size"], answers[0][2] if connected else ALONE]
    path = here / _file_name(name, state["rank"], *key)
    together(gather, lambda: _write(path, state))
    if connected:
        _remove_others(here, name, key, state["rank"])
    return path


def load(training: Training, folder: PathLike, name: str = NAME) -> None:
    """Goes on from the latest set of files that all ranks can use. Every rank calls it: all go on, or all raise."""
    rank, size = training.comm.rank, training.comm.size
    sets, keys = together(training.gather, lambda: _usable(Path(folder), name, rank, size))
    chosen = _latest(sets, keys, size, folder)
    ready, _ = together(training.gather, lambda: (_read(training, chosen), None))
    training.take_over(ready)


def own_state(training: Training, saved: Sequence[State]) -> State:
    """This rank's state as it was saved, or its share of those of all ranks."""
    mine = next((state for state in saved if fits(training, state)), None)
    return mine if mine is not None else reshard(saved, training.comm.size, training.grid)[training.comm.rank]


def reshard(saved: Sequence[State], size: int, nodes: int | Grid | None = None) -> list[dict[str, Any]]:
    """All ranks' states as those of `size` ranks, with `nodes` ranks on each machine; the mean of the buffers stays."""
    if not isinstance(nodes, Grid):
        nodes = Grid.even(size, nodes, scheme(saved[0]["scheme"]).transform.width) if nodes else None
    return round_states.reshard(saved, size, nodes)


def fits(training: Training, state: State) -> bool:
    """Whether this rank can go on from the state as it is."""
    rank, grid = training.comm.rank, training.grid
    return (state["rank"], state["world_size"], state.get("nodes")) == (rank, grid.size, grid.facts(rank))


# --- saving ----------------------------------------------------------------------------------------------------------


def _begin(training: Training, state: State, folder: Path, name: str) -> tuple[State, list[Any]]:
    """The state, and for the other ranks: where this one stands, its step, a mark."""
    rank, size = state["rank"], state["world_size"]
    _claim(folder / f"{name}-{rank:05d}-of-{size:05d}", training)
    folder.mkdir(parents=True, exist_ok=True)
    for other in {rank, *_ranks_without_owner(folder, name, rank, size)}:
        remove_abandoned(folder, f"{name}-{other:05d}-of-")
    return state, [position(state), state["step"], f"{time.time_ns():016x}"]


def _claim(files: Path, training: Training) -> None:
    other = _savers.get(files, training)
    if other is not training and other.attached:
        raise InputError(f"{files} is another link's state; give each a name of its own: save(link, folder, name=…)")
    _savers[files] = training


def _check_positions(positions: list[int]) -> None:
    for rank, place in enumerate(positions):
        if place != positions[0]:
            raise InputError(f"rank {rank} saves at step or meeting {place}, rank 0 at {positions[0]}: every rank "
                             "saves at the same")  # fmt: skip


def _file_name(name: str, rank: int, step: int, size: int, mark: str) -> str:
    return f"{name}-{rank:05d}-of-{size:05d}-step{step}-{mark}.sws"


def _write(path: Path, state: State) -> tuple[None, None]:
    write_state(path, {"kind": KIND, "state": state})
    return None, None


def _remove_others(folder: Path, name: str, key: list[Any], rank: int) -> None:
    """Removes sets of as many ranks, whatever their step, and older ones of other numbers of ranks."""
    step, size, _ = key
    for state_set in find_sets(folder, name):
        if state_set.key != key and (state_set.size == size or state_set.step < step):
            for file in (path for other, path in state_set.files.items() if other % size == rank):
                file.unlink(missing_ok=True)


def _ranks_without_owner(folder: Path, name: str, rank: int, size: int) -> list[int]:
    """Ranks of an earlier, larger number whose temporary files this rank looks after."""
    pattern = re.compile(r"\." + re.escape(name) + r"-(\d{5,})-of-")
    ranks = {int(match[1]) for entry in os.scandir(folder) if (match := pattern.match(entry.name))}
    return [other for other in ranks if other >= size and other % size == rank]


# --- loading ---------------------------------------------------------------------------------------------------------


def find_sets(folder: Path, name: str = NAME) -> list[StateSet]:
    """All sets of that name in the folder, complete or not."""
    pattern = re.compile(re.escape(name) + r"-(\d{5,})-of-(\d{5,})-step(\d+)-([0-9a-f]{16})\.sws\Z")
    sets = dict[tuple[int, int, str], StateSet]()
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if match := pattern.match(path.name):
            rank, size, step = map(int, match.groups()[:3])
            sets.setdefault((step, size, match[4]), StateSet(step, size, match[4])).files[rank] = path
    return list(sets.values())


def _usable(folder: Path, name: str, rank: int, size: int) -> tuple[list[StateSet], list[list[Any]]]:
    """Complete sets, and those of as many ranks that have this rank's file.

    Where every machine has a disk of its own, this rank's file is all that it sees of its set.
    """
    with reading(folder):
        sets = [files for files in find_sets(folder, name) if files.is_whole or files.is_usable(rank, size)]
        if not sets:
            raise InputError(f"there is no complete set of {name}-RANK-of-SIZE-stepSTEP-MARK.sws files")
    return sets, [state_set.key for state_set in sets]


def _latest(sets: list[StateSet], keys: list[list[list[Any]]], size: int, folder: PathLike) -> StateSet:
    common = [state_set for state_set in sets if all(state_set.key in theirs for theirs in keys)]
    if not common:
        seen = "; ".join(f"rank {rank}: {_named(theirs)}" for rank, theirs in enumerate(keys))
        raise InputError(f"{folder}: there is no set of files that all ranks can use ({seen})")
    return max(common, key=lambda state_set: (state_set.step, state_set.size == size, state_set.mark))


def _named(sets: list[list[Any]]) -> str:
    return ", ".join(f"step {step} of {size} ranks" for step, size, _ in sets)


def _read(training: Training, chosen: StateSet) -> Any:
    """This rank's state out of the set, ready to be taken over."""
    own = chosen.files.get(training.comm.rank) if chosen.size == training.comm.size else None
    if own is not None:
        state = read_state(own, KIND, _state_in)
        with reading(own):
            if fits(training, state) or not chosen.is_whole:
                return training.read_state(state)
    states = [read_state(chosen.files[rank], KIND, _state_in) for rank in sorted(chosen.files)]
    with reading(chosen.files[0].parent):
        return training.read_state(own_state(training, states))


def _state_in(content: dict[str, Any]) -> dict[str, Any]:
    return dict(content["state"])
