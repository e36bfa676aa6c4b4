"""The live row of `sparsewire lab train`: it stays on one row of any terminal, with the time that is left."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import pytest

from sparsewire.lab import measure

if not measure.has("torch") or not measure.has("rich"):
    pytest.skip("torch or rich is not installed", allow_module_level=True)

from sparsewire.lab.train.cells import Cell
from sparsewire.lab.train.methods import read_method
from sparsewire.lab.train.progress import Progress

METHOD = "topk(1%) | indices=rice | values=qsgd(bits=4) | memory=dgc(momentum=0.9); select_per=model"
CELL = Cell("resnet20-cifar", read_method(METHOD), "100mbit", 1, 4, 1, 1000, 5, 32, 10, 0.1)


@pytest.fixture
def shown(monkeypatch, capsys):
    """The rows that are shown on a terminal of this width, one after another."""

    def rows(width: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr("sparsewire.lab.bar.PAUSE", 0.0)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        with Progress([CELL], 0) as progress:
            progress.start(CELL)
            for step in range(1, 4):
                progress.step({"step": step, "loss": float("nan"), "seconds": 0.5})
        plain = re.sub(r"\033\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
        return [row for row in re.split(r"[\r\n]+", plain) if row.strip()]

    return rows


@pytest.mark.parametrize("width", [40, 80])
def test_the_line_stays_on_one_row_with_the_time_left(shown, width):
    rows = shown(width)
    assert len(rows) >= 4 and all(len(row) <= width for row in rows)
    assert re.search(r" 3/1000 \[1/1\] \d+ s", rows[-1]) and rows[-1].endswith("…")


def test_the_time_left_goes_by_the_same_method_if_it_has_run(monkeypatch, capsys):
    clock = iter([0.0, 100.0, 100.0, 110.0, 110.0])  # a slow method, and a fast one
    cells = [replace(CELL, method=read_method(method), seed=seed) for seed in (1, 2) for method in ("ddp", "topk(1%)")]
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with Progress([*cells[:2], cells[3]], 0) as progress:
        for cell in cells[:2]:
            progress.start(cell)
            progress.finish({"step_ms": 1.0})
    assert capsys.readouterr().err.splitlines()[-1].endswith(", 10 s left")


def test_a_wide_terminal_shows_all(shown):
    assert shown(300)[-1].rstrip().endswith("s left; loss nan, 0.50 s; " + CELL.title)


def test_without_a_terminal_or_rich_a_line_is_all(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("sparsewire.lab.bar.find_spec", lambda name: None)
    with measure.progress(2) as advance, Progress([CELL], 1) as progress:
        advance("one")
        progress.start(CELL)
        progress.finish({"step_ms": 1.0})
    first, last = capsys.readouterr().err.splitlines()
    assert first == "finished before: 1 of 2" and last == f"[1/1] {CELL.title}: 1.0 ms a step"


def test_words_in_brackets_are_words(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with measure.progress(2) as advance:
        advance("gradient[bold]")
    assert "gradient[bold]" in capsys.readouterr().err
