"""Runs a command of the command line inside a test."""

from __future__ import annotations

import pytest

from sparsewire.cli import main


def run(*words: object) -> int:
    return main([str(word) for word in words])


def fails(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line that a failing command says."""
    capsys.readouterr()
    assert run(*words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("sparsewire: error: ")
    return err
