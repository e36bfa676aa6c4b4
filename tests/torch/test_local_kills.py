"""A rank is killed at any moment of a round: the others go on without it, or all from the last checkpoint."""

from __future__ import annotations

import json
import random
from importlib.util import find_spec
from pathlib import Path

import pytest
import warm

SCRIPT = Path(__file__).parents[1] / "support" / "local_kills.py"
MOMENTS, TICKS, RANKS, TIMEOUT = 12, 30, 3, 15.0


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.timeout(400)
def test_a_rank_killed_at_any_moment_costs_nothing_that_was_saved(tmp_path: Path) -> None:
    moments = random.Random(1).sample([f"{rank}:{tick}" for rank in range(RANKS) for tick in range(TICKS)], MOMENTS)
    out = tmp_path / "out"
    child = warm.start_script(SCRIPT, tmp_path, *moments, out=out, err=tmp_path / "err")
    assert warm.end(child, 360) == 0, (tmp_path / "err").read_text()
    first, *lines = (json.loads(line) for line in out.read_text().splitlines())
    ends = {rank["end"] for rank in first["whole"]}
    assert len(ends) == 1 and len(lines) == MOMENTS
    for line in lines:
        victim = int(line["moment"].split(":")[0])
        alive = [found for rank, found in enumerate(line["survivors"]) if rank != victim]
        assert line["survivors"][victim] is None, line
        assert all(found and found["seconds"] < TIMEOUT + 15 for found in alive), line
        assert len({(found["end"], found["meetings"]) for found in alive}) == 1, line
        assert {found["end"] for found in line["resumed"]} == ends, line
    assert len({line["resumed"][0]["begin"] for line in lines}) > 2
