"""`benchmarks/accuracy.py` and `local.py` on made-up digits: every rule is trained, compared and drawn."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import warm
from benchmark import load_benchmark
from digits import save_digits
from seen import lines

from sparsewire.lab import results

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "accuracy.py"
LOCAL = SCRIPT.with_name("local.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_digits(tmp_path)
    (tmp_path / "tinyshakespeare.txt").write_text("so shaken as we are, so wan with care, " * 200)
    return tmp_path


def run(*words: object, script: Path = SCRIPT) -> subprocess.CompletedProcess[str]:
    return warm.run(script, *words)


def measured(folder: Path, *words: object, steps: int) -> tuple[dict[str, Any], str]:
    done = run("--data", folder, "--steps", steps, "--json", folder / "out.json", *words, script=LOCAL)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "out.json").read_text()), done.stdout


def trained(folder: Path, *words: object, task: str = "mnist", steps: int = 15) -> tuple[list[dict[str, Any]], str]:
    """The records of trainings at two ranks and one seed, unless the words say otherwise; and the tables."""
    given = ["--ranks", 2, "--seeds", 3, "--factors", 1, "--spreads", "iid", "--coverage", 3, *words]
    done = run("--data", folder, "-o", folder / "out.jsonl", "--tasks", task, "--steps", steps, *given)
    assert done.returncode == 0, done.stderr
    found = [record for _, record in results.read(folder / "out.jsonl")]
    return [record for record in found if "rule" in record], done.stdout


def test_every_rule_is_trained_at_multiples_of_the_rate_that_suits_dense(folder: Path) -> None:
    words = ["--rules", "gain", "gmc", "dgc+model+falling", "residual", "--rates", 1e-6, 0.1, 2e-6]
    records, text = trained(folder, *words, "--factors", 1, 1.5, "--picture", folder / "out.png")
    tuning, rows = ([row for row in records if row["tuning"] is wanted] for wanted in (True, False))
    assert [row["rate"] for row in tuning] == [1e-6, 0.1, 2e-6] and {row["seed"] for row in tuning} == {0}
    rules = ["dense", "gain", "gmc", "dgc+model+falling"]
    assert [row["rule"] for row in rows] == 2 * rules, "a residual is for Adam"
    assert [row["rate"] for row in rows] == pytest.approx([0.1] * 4 + [0.15] * 4)
    assert len({row["losses"][0] for row in rows}) == 1, "the same weights and batches"
    assert all(rule in text for rule in rules) and rows[0]["bytes"] > 1.5 * rows[1]["bytes"]
    assert lines(folder / "out.png") >= 1


def test_what_the_file_has_is_not_trained_again(folder: Path) -> None:
    words = ["--rates", 0.1, "--rules", "gain"]
    first, _ = trained(folder, *words)
    out = folder / "out.jsonl"
    out.write_text(out.read_text() + '{"rule": "ga')  # as an interrupted start leaves it
    more, text = trained(folder, *words, "--seeds", 3, 4)
    assert more[:2] == first and [(row["rule"], row["seed"]) for row in more[2:]] == [("dense", 4), ("gain", 4)]
    before = out.read_bytes()
    again = run("-o", out)
    assert again.stdout == text and out.read_bytes() == before, "without tasks the file is shown"


def test_gain_is_dense_training_where_everything_is_sent(folder: Path) -> None:
    (dense, *rules), text = trained(folder, "--rates", 0.1, "--rules", "gain", "dgc", "--coverage", "all", steps=20)
    lost = {row["rule"]: row["losses"][1] - dense["losses"][1] for row in rules}
    assert abs(lost["gain"]) < 0.02 < lost["dgc"], "values are rounded, and dgc has no momentum left"
    assert [row["coverage"] for row in rules] == [20, 20] and " all " in text


def test_a_rank_has_two_classes_and_only_those_are_tested(folder: Path) -> None:
    records, text = trained(folder, "--rates", 0.1, "--rules", "gain", "--spreads", "iid", "classes", steps=30)
    dense = {row["spread"]: row["losses"][1] for row in records if row["rule"] == "dense"}
    assert dense["classes"] < dense["iid"], "four classes are learnt sooner than ten"
    assert "classes" in text


def test_adam_has_rules_of_its_own(folder: Path) -> None:
    rules = ["gain", "residual", "residual+model+falling"]
    records, text = trained(folder, "--rates", 0.01, "--rules", *rules, "--spreads", "iid", "classes", task="text")
    assert [row["rule"] for row in records] == ["dense", *rules[1:]], "and text has no classes"
    assert len({row["score"] for row in records}) == 3 and "nats" in text


def test_what_diverges_is_flagged(folder: Path) -> None:
    tables = load_benchmark("accuracy_table")
    facts = {"name": "mnist", "steps": 350, "ranks": 2, "spread": "iid", "factor": 1.0, "rate": 0.1, "tuning": False}
    dense = [{**facts, "rule": "dense", "seed": seed, "coverage": None, "score": 0.97, "losses": [2.3, 0.1]}
             for seed in (1, 2, 3)]  # fmt: skip
    scores = ((1, 0.968, [2.3, 0.11]), (2, 0.1, [2.3, 2.2]), (3, 0.1, None))
    rows = [{**facts, "rule": "gmc", "seed": seed, "coverage": 20.0, "score": score, "losses": losses}
            for seed, score, losses in scores]  # fmt: skip
    found = tables.outcomes([*dense, *rows])
    assert [one.diverged for one in found] == [False, True, True]
    assert not tables.misses(found[:1]) and tables.misses(found)
    (line,) = tables.worst_table(found).splitlines()[2:]
    assert line.split() == ["mnist", "20", "gmc", "1", "3", "-58.07", "-58.07", "-87.00", "1", "of", "1", "2"]
    dense[1]["losses"] = [2.3, 2.3]
    assert len(tables.outcomes([*dense, *rows])) == 2, "where dense does not train, nothing is compared"


def test_a_gradient_that_is_not_finite_ends_a_training_not_the_command(folder: Path) -> None:
    records, text = trained(folder, "--rates", 1e30, "--rules", "gain")
    assert [row["rule"] for row in records] == ["dense", "gain"]
    assert all(row["score"] == 0.1 and row["losses"] is None for row in records), "as a guess of ten classes"
    assert "no rule was trained beside dense" in text


def test_the_tables_in_the_docs_are_those_of_the_results() -> None:
    docs, tables = Path(__file__).parents[2] / "docs", load_benchmark("accuracy_table")
    records = [record for _, record in results.read(docs / "results" / "accuracy.jsonl")]
    assert tables.show(records) in (docs / "results" / "accuracy.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("words", [["--coverage", "0"], ["--coverage", "some"], ["--factors", "-1"]])
def test_numbers_that_are_none_are_refused(tmp_path: Path, words: list[str]) -> None:
    done = run("--tasks", "mnist", "-o", tmp_path / "out.jsonl", *words)
    assert done.returncode == 2 and f"'{words[1]}' is not a" in done.stderr


def test_local_steps_are_measured_in_bytes_both_ways(folder: Path) -> None:
    rules = ["dense", "FedAvg, H = 10", "SBC(2)", "ours"]
    words = ["--rules", *rules, "--seeds", 3, "--rates", 1e-6, 0.1, "--picture", folder / "out.png"]
    result, text = measured(folder, *words, steps=10)
    rows = {row["rule"]: row for row in result["rows"]}
    assert list(rows) == rules and all(rule in text for rule in rules)
    assert {row["rate"] for row in rows.values()} == {0.1}
    assert [(row["rule"], row["rate"]) for row in result["tuning"]] == [
        (rule, r) for rule in rules for r in (1e-6, 0.1)
    ]
    assert rows["dense"]["fewer"] == 1 and rows["FedAvg, H = 10"]["fewer"] == pytest.approx(10, rel=0.01)
    assert min(rows["SBC(2)"]["fewer"], rows["ours"]["fewer"]) > 2500
    assert all(rows[rule]["received"] > 2 * rows[rule]["sent"] for rule in ("SBC(2)", "ours")), "supports differ"
    assert lines(folder / "out.png") >= 2


@pytest.mark.parametrize(("script", "words"), [(SCRIPT, ["--tasks", "mnist", "-o", "/dev/null"]), (LOCAL, [])])
def test_data_that_is_missing_is_said(tmp_path: Path, script: Path, words: list[str]) -> None:
    done = run("--data", tmp_path, *words, script=script)
    assert done.returncode == 2 and "mnist.npz" in done.stderr and "Traceback" not in done.stderr
