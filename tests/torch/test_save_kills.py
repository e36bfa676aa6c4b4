"""A rank that is killed at any stage of `save` leaves a set that all ranks can load."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import warm

SCRIPT = Path(__file__).parents[1] / "support" / "save_kills.py"
WRITTEN = 5  # calls: before and behind fsync and chmod, before replace; then the file is there
AGREED, CALLS = 8, 10  # two more for the folder's fsync; then all know, and the old file is removed


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.timeout(300)
def test_a_rank_killed_while_it_saves_leaves_the_previous_set(tmp_path: Path) -> None:
    moments = [f"{call % 2}:{call}" for call in range(CALLS)] + ["0:1", "1:4"]
    out = tmp_path / "out"
    child = warm.start_script(SCRIPT, tmp_path, *moments, out=out, err=tmp_path / "err")
    assert warm.end(child, 280) == 0, (tmp_path / "err").read_text()
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["moment"] for line in lines] == moments
    for line in lines:
        victim, call = map(int, line["moment"].split(":"))
        step = "3" if call >= WRITTEN else "1"
        assert line["told"][victim] is None, line
        if call < AGREED:
            assert line["told"][1 - victim]["told"] in ("CommError", "PeerFailed"), line
        assert [rank["step"] for rank in line["loaded"]] == [int(step)] * 2, line
        assert [rank["digest"] for rank in line["loaded"]] == [rank[step] for rank in line["digests"]], line
        assert [name.partition(f"-step{int(step) + 1}-")[0] for name in line["left"]] == [
            "sparsewire-00000-of-00002", "sparsewire-00001-of-00002"
        ], line  # fmt: skip
