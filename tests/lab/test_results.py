"""Results of the lab: every line stands for itself, whatever a crash left beside it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from sparsewire.errors import InputError
from sparsewire.lab import results


def keys(path):
    return [(number, record["key"]) for number, record in results.read(path)]


@pytest.mark.parametrize("cut", ['{"key": "b", "sc', '{"key": "…'.encode()[:-1].decode("latin-1"), "\x00\x00\xff"])
def test_a_line_that_was_cut_off_is_passed_over(tmp_path, cut):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"key": "a"}\n' + cut.encode("latin-1"))
    results.append(path, {"key": "c", "error": "x", "loss": float("nan")})
    assert keys(path) == [(1, "a"), (3, "c")]
    assert set(results.finished(results.read(path))) == {"a"}


def test_a_cut_line_alone_is_no_result_and_no_mistake(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"key": "…'.encode()[:-1])
    assert results.read(path) == []
    results.append(path, {"key": "b"})
    assert keys(path) == [(2, "b")]


def test_what_is_no_file_of_results_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("no results\n")
    with pytest.raises(InputError, match="holds no results"):
        results.read(path)


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0c"])
def test_only_a_newline_ends_a_line(tmp_path, mark):
    path = tmp_path / "a.jsonl"
    for key in ("a", f"one{mark}two", "c"):
        results.append(path, {"key": key})
    assert keys(path) == [(1, "a"), (2, f"one{mark}two"), (3, "c")]


def test_one_document_over_several_lines_is_one_record(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"key": "a", "rows": [1]}, indent=2))
    assert keys(tmp_path / "a.json") == [(1, "a")]


@pytest.mark.skipif(sys.platform == "win32", reason="files are not locked there")
def test_only_one_start_at_a_time_adds_to_a_file(tmp_path):
    path = tmp_path / "a.jsonl"
    with results.alone(path):
        with pytest.raises(InputError, match="another start adds to it"), results.alone(path):
            pass
        results.append(path, {"key": "a"})
    with results.alone(path), results.alone(Path(os.devnull)), results.alone(Path(os.devnull)):
        assert keys(path) == [(1, "a")]


def test_the_folder_is_made_and_what_cannot_be_written_is_said(tmp_path):
    results.prepare(tmp_path / "new" / "a.jsonl")
    assert (tmp_path / "new" / "a.jsonl").read_bytes() == b""
    with pytest.raises(InputError, match=r"a\.jsonl/b: .*name another file"):
        results.prepare(tmp_path / "new" / "a.jsonl" / "b")
