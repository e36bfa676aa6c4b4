"""The ranks agree on their settings before the first step: ranks that differ would misread each other.

1. One all_gather moves every rank's settings, long lists as a digest, or the reason why it refuses its own.
2. Where a list differs, rank 0's is sent to all, each rank finds where its own departs from it, and tells.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from itertools import zip_longest
from typing import Any, NoReturn

from sparsewire.comm import Communicator
from sparsewire.errors import CommMismatch, PeerFailed

from .schedule import Settings
from .settings import TensorLike, dtype_name

CHANNEL = "attach"
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
LONGEST = 2000  # characters of an error's text


def refuse(comm: Communicator, error: BaseException) -> None:
    """This rank's part in the agreement when it cannot attach: nobody waits for it."""
    text = f"{type(error).__name__}: {error}"
    comm.all_gather(json.dumps({"refused": text[:LONGEST]}).encode(), CHANNEL)


def agree(
    comm: Communicator, settings: Settings, named: Mapping[str, TensorLike], more: Mapping[str, Any] | None = None
) -> None:
    """Raises, on every rank, where a rank differs from rank 0 or cannot attach; `more` settings come first."""
    values, lists = {**(more or {}), **_values(settings)}, _lists(settings, named)
    digests = {field: _digest(items) for field, items in lists.items()}
    answers = [json.loads(bytes(part)) for part in comm.all_gather(json.dumps([values, digests]).encode(), CHANNEL)]
    for rank, answer in enumerate(answers):
        if isinstance(answer, dict):
            raise PeerFailed(f"rank {rank} could not attach: {answer['refused']}")
    for rank, (theirs, _) in enumerate(answers):
        for field, value in theirs.items():
            if value != answers[0][0][field]:
                _differ(rank, field, value, answers[0][0][field])
    for field in lists:
        if len({theirs[field] for _, theirs in answers}) > 1:
            _find_difference(comm, field, lists[field])


def _values(settings: Settings) -> dict[str, Any]:
    return {
        "scheme": str(settings.schedule.scheme),
        "warmup_steps": int(settings.schedule.warmup_steps),
        "dense_below": settings.dense_below,
        "select_per": settings.select_per,
        "seed": settings.seed,
        "scaler": settings.scale is not None,
        "optimizer": settings.momenta is not None,
        "follow_rate": settings.follow_rate,
        "clip_norm": settings.clip_norm,
        "nodes": settings.nodes,
        "on_divergence": settings.on_divergence,
    }


def _lists(settings: Settings, named: Mapping[str, TensorLike]) -> dict[str, list[str]]:
    ratios = settings.schedule.ratios or ()
    return {
        "ratio_schedule": _ratios(ratios),
        "parameter names": sorted(named),
        "order of parameters": list(named),
        "shapes": [f"{name} {list(tensor.shape)}" for name, tensor in named.items()],
        "dtypes": [f"{name} {dtype_name(tensor)}" for name, tensor in named.items()],
        "exclude": sorted(settings.dense_names),
    }


def _ratios(ratios: Any) -> list[str]:
    """Of a function nothing can be compared, but for those that say what they are; its address is a process's own."""
    if callable(ratios):
        return [ADDRESS.sub("", repr(ratios)) if is_dataclass(ratios) else "a function"]
    return [f"{ratio} until {until}" for until, ratio in ratios]


def _digest(items: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(items).encode()).hexdigest()[:32]


def _find_difference(comm: Communicator, field: str, mine: Sequence[str]) -> NoReturn:
    theirs = json.loads(comm.broadcast(json.dumps(mine).encode()))
    first = next((pair for pair in zip_longest(mine, theirs, fillvalue="nothing more") if pair[0] != pair[1]), None)
    pairs = [json.loads(bytes(part)) for part in comm.all_gather(json.dumps(first).encode(), CHANNEL)]
    rank = next(rank for rank, pair in enumerate(pairs) if pair is not None)
    _differ(rank, field, *pairs[rank])


def _differ(rank: int, field: str, value: Any, first: Any) -> NoReturn:
    raise CommMismatch(
        f"rank {rank} attached with other settings, {field}: {value!r} where rank 0 has {first!r}; "
        "every rank must attach with the same"
    )
