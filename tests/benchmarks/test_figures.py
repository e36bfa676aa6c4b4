"""The README's figures, and the table of the lab, are those of the files that commands wrote."""

from __future__ import annotations

import json

import pytest
from benchmark import load_benchmark

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def figures():
    return load_benchmark("figures")


def test_documents_say_what_the_results_give(figures):
    assert figures.missing() == []


def test_a_figure_that_differs_is_missing(figures, monkeypatch, capsys):
    monkeypatch.setattr(figures, "_local", lambda: "3,855 times fewer bits")
    assert figures.main([]) == 1
    assert "MISSING in README.md: 3,855 times fewer bits" in capsys.readouterr().err


def test_results_are_kept_without_their_long_lists(figures, monkeypatch, tmp_path):
    monkeypatch.setattr(figures, "RESULTS", tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    whole = {"rows": [{"score": row, "curve": [0.5] * 200, "short": [1, 2]} for row in range(150)]}
    (tmp_path / "a.json").write_text(json.dumps(whole))
    figures.keep(tmp_path / "a.json")
    kept = json.loads((tmp_path / "kept" / "a.json").read_text())
    assert kept == {"rows": [{"score": row, "short": [1, 2]} for row in range(150)]}
