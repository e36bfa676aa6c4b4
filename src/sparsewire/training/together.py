"""`together` makes a call on every rank; unless all of the calls succeed, every rank raises.

The ranks agree in one small collective, so that whoever is behind it knows: it has succeeded everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sparsewire.errors import InputError, SparsewireError, add_note

Done = TypeVar("Done")
Gather = Callable[[bytes], Sequence[bytes | memoryview]]
LONGEST = 2000  # characters of an error's text


def together(gather: Gather, call: Callable[[], tuple[Done, Any]]) -> tuple[Done, list[Any]]:
    """(what came of the call here, what each rank tells of its own, in JSON's types). `gather` is an all_gather.

    Where the call fails on a rank, the error of the first such rank is raised on every rank, with the rank's number; a
    rank whose own error is not sparsewire's raises that.

    >>> from sparsewire.comm import run_ranks
    >>> run_ranks(2, lambda comm: together(comm.all_gather, lambda: ("done", comm.rank)))[0]
    ('done', [0, 1])
    """
    mine: BaseException | None = None
    try:
        done, answer = call()
    except BaseException as error:
        mine, answer = error, f"{type(error).__name__}: {error}"[:LONGEST]
    answers = _hear(gather, [mine is None, answer], mine)
    failed = next((rank for rank, (fine, _) in enumerate(answers) if not fine), None)
    if failed is None:
        return done, [answer for _, answer in answers]
    reason = f"rank {failed}: {answers[failed][1]}"
    if mine is not None and not isinstance(mine, SparsewireError):
        add_note(mine, f"sparsewire: {reason}; so no rank has gone on")
        raise mine
    raise InputError(reason) from mine


def _hear(gather: Gather, answer: list[Any], mine: BaseException | None) -> list[Any]:
    try:
        return [json.loads(bytes(part)) for part in gather(json.dumps(answer).encode())]
    except BaseException:
        if mine is not None:
            raise mine from None
        raise
