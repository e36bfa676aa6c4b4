"""The tutorial's scripts on two ranks, with fewer steps: they train, and a stopped run ends as one that was not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_pages import ROOT
from host_ranks import environment, finish, start_ranks

pytest.importorskip("torch")
PAGE = (ROOT / "docs" / "start" / "tutorial.md").read_text(encoding="utf-8")
FEWER = {r"^STEPS = \d+": "STEPS = 6", r"step % 20 == 19": "step % 2 == 1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, code in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        for long, short in FEWER.items():
            code = re.sub(long, short, code, flags=re.MULTILINE)
        code = code.replace('"checkpoint"', repr(str(tmp_path / "checkpoint")))
        (tmp_path / name).write_text(code)
    return tmp_path


def said(script: str, folder: Path, **more: str) -> str:
    """What rank 0 prints."""
    log = folder / "0.log"
    log.unlink(missing_ok=True)
    finish(start_ranks(folder / script, folder, environment={**environment(), **more}), folder)
    return log.read_text()


def test_the_script_trains(folder: Path) -> None:
    assert re.search(r"loss \d\.\d+, \d+ ms a step", said("train.py", folder))


def test_a_stopped_run_ends_as_one_that_was_not(folder: Path) -> None:
    assert "steps 0 to 4," in said("resumable.py", folder, STOP="4")
    resumed = said("resumable.py", folder)
    (folder / "checkpoint" / "model.pt").unlink()
    whole = said("resumable.py", folder)
    weights = [re.search(r"to 6, sum of all weights (\S+)", text) for text in (resumed, whole)]
    assert "steps 4 to 6" in resumed and "steps 0 to 6" in whole
    assert weights[0] and weights[1] and weights[0][1] == weights[1][1]
