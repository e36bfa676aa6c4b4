"""`benchmarks/faults.py`: whatever becomes of a rank, the others end in time and alike."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import warm
from benchmark import FOLDER

from sparsewire.lab.net.network import obstacle

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
TIMEOUT, MARGIN = 2.0, 20.0  # seconds; a busy machine may be late, ranks that hang are watched for a minute more


def faults(out: Path, *words: str) -> list[dict[str, Any]]:
    """The rows of the table, of which none has a hang, a divergence or a surprise."""
    limits = ["--timeout", TIMEOUT, "--margin", MARGIN]
    done = warm.run(FOLDER / "faults.py", *limits, "--json", out, *words, limit=220)
    assert done.returncode == 0, done.stdout + done.stderr
    rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"]
    return rows


@pytest.mark.timeout(240)
def test_ranks_that_cannot_reach_the_store_raise_in_time(tmp_path: Path) -> None:
    rows = faults(tmp_path / "out", "--trials", "1", "--only", "stop allgather", "stop local_steps")
    assert all(row["seconds"] <= TIMEOUT + MARGIN for row in rows) and len(rows) == 2


@pytest.mark.timeout(240)
def test_a_script_that_ends_without_detach_ends_in_order(tmp_path: Path) -> None:
    only = [f"exit without detach {row}" for row in ("return, allgather", "destroy, local_steps")]
    rows = faults(tmp_path / "out", "--exits", "1", "--only", *only)
    assert [row["trials"] for row in rows] == [1, 1]


@pytest.mark.timeout(240)
def test_raised_and_not_finite_and_other_settings(tmp_path: Path) -> None:
    rows = faults(
        tmp_path / "out", "--trials", "1", "--only", "raise nodes", "NaN reduce_scatter log", "mismatch sketch"
    )
    assert [row["exchange"] for row in rows] == ["nodes", "reduce_scatter log", "sketch"]


@pytest.mark.root
@pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))
@pytest.mark.timeout(240)
def test_ranks_whose_link_to_the_store_is_down_raise_in_time(tmp_path: Path) -> None:
    rows = faults(tmp_path / "out", "--trials", "1", "--only", "link down allgather")
    assert [row["seconds"] <= TIMEOUT + MARGIN for row in rows] == [True]
