"""`bench deepreduce` and `bench rates`: what they say can be read again, and holds on gradients made up here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from seen import colours

from sparsewire.cli import main
from sparsewire.lab.bench import rates as bench_rates
from sparsewire.lab.bench.deepreduce import METHODS, NATURAL, made
from sparsewire.lab.bench.rates_picture import CURVES


def run(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def gradients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "gradients.npz"
    natural = made(40_000, seed=1) * (np.arange(40_000) % 5 == 0)
    np.savez(path, plain=made(60_000), natural=natural.astype(np.float32))
    return path


def test_deepreduce_has_a_table_per_input_and_a_row_per_method(gradients, tmp_path, capsys):
    assert run("bench", "deepreduce", gradients, "--json", tmp_path / "out.json") == 0
    found = json.loads((tmp_path / "out.json").read_text())
    tables = found["tables"]
    assert len(found["filters"]) == 12 and all(0.5 < row["real"] / row["fpr"] < 1.5 for row in found["filters"])
    rows = {table["input"]: {row["method"]: row for row in table["rows"]} for table in tables}
    whole = {"plain, one convolution", "plain, whole", "natural, whole"}
    assert set(rows) == whole | {"natural, sparse by nature"}
    assert all(set(rows[name]) == {method.name for method in METHODS} for name in whole)
    assert set(rows["natural, sparse by nature"]) == {method.name for method in NATURAL}
    plain = rows["plain, one convolution"]
    assert plain["Top-r"]["error"] == plain["Deflate"]["error"] == plain["BF-P0"]["error"] == 0
    assert plain["BF-naive"]["error"] > plain["BF-P1"]["error"] > plain["BF-P2"]["error"]
    assert plain["Fit-Poly"]["map"] == 0 < plain["Fit-Poly, rice"]["map"]


def test_volumes_are_those_of_the_paper_or_less(gradients, tmp_path, capsys):
    run("bench", "deepreduce", gradients, "--json", tmp_path / "out.json")
    first = json.loads((tmp_path / "out.json").read_text())["tables"][0]["rows"]
    # The sizes that do not depend on the gradient: a filter's header is 12 bytes, 0.01 % of the dense tensor.
    for row in first:
        if row["method"] in ("Top-r", "BF-P2", "QSGD", "Fit-DExp"):
            assert row["values"] <= row["paper_values"] + 0.001
            assert row["indices"] <= row["paper_indices"] + 0.01


def test_entropy_is_the_cheapest_at_every_error(gradients, tmp_path, capsys):
    words = ["--check", "--picture", tmp_path / "new" / "rates.png", "--json", tmp_path / "out.json"]
    assert run("bench", "rates", gradients, *words) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert [one["count"] for one in found["inputs"]] == [600, 400, 369, 369]
    curves = {point["curve"] for point in found["inputs"][0]["points"]}
    assert curves >= {"entropy", "qsgd", "qsgd+deflate", "quantile", "fit_poly", "fit_dexp", "half", "bfloat16"}
    for verdict in (verdict for one in found["inputs"] for verdict in one["verdicts"]):
        assert max(verdict[who]["error"] for who in ("ours", "other")) <= verdict["error"]
    assert colours(tmp_path / "new" / "rates.png") >= set(CURVES.values())
    assert "rates.png" in capsys.readouterr().out


def test_json_goes_to_stdout_and_never_over_what_was_to_be_read(gradients, capsys):
    before = gradients.read_bytes()
    with pytest.raises(SystemExit, match="2"):
        run("bench", "deepreduce", "--json", gradients)
    assert "--json FILE.json" in capsys.readouterr().err and gradients.read_bytes() == before
    assert run("list", "--json") == 0
    assert "entropy" in [facts["id"] for facts in json.loads(capsys.readouterr().out)["values"]]


def test_a_check_can_fail(monkeypatch, capsys):
    points = [{"curve": name, "codec": name, "bits": bits, "error": 0.001} for name, bits in
              (("entropy", 5.0), ("qsgd", 4.0))]  # fmt: skip
    verdict = bench_rates._verdict(points, 0.01)
    assert not verdict["smallest"]
    result = {"machine": bench_rates.measure.machine(), "inputs": [{"input": "x", "count": 1, "verdicts": [verdict]}]}
    monkeypatch.setattr(bench_rates, "run", lambda *_: result)
    assert (run("bench", "rates"), run("bench", "rates", "--check")) == (0, 1)
    assert "LARGER" in capsys.readouterr().out


def test_a_picture_without_matplotlib_is_refused_before_the_work(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench_rates.measure, "has", lambda package: package != "matplotlib")
    assert run("bench", "rates", "--picture", tmp_path / "a.png") == 2
    assert "pip install matplotlib" in capsys.readouterr().err


def test_json_on_stdout_stays_json_beside_a_picture(monkeypatch, tmp_path, capsys):
    points = [{"curve": "entropy", "codec": "entropy", "bits": bits, "error": 2.0**-bits} for bits in (3.0, 5.0)]
    points.append({"curve": "half", "codec": "half", "bits": 16.0, "error": 0.001})
    one = {"input": "x", "count": 1, "points": points, "verdicts": [bench_rates._verdict(points, 0.2)]}
    result = {"machine": bench_rates.measure.machine(), "inputs": [one]}
    monkeypatch.setattr(bench_rates, "run", lambda *_: result)
    assert run("bench", "rates", "--picture", tmp_path / "a.png", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["inputs"][0]["input"] == "x" and "a.png" in err
