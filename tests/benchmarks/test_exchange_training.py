"""`benchmarks/exchanges.py` on made-up ratings, words and digits: every rule is trained, and its bytes are counted."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm
from digits import save_digits
from seen import lines

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "exchanges.py"
USERS, ITEMS, STEPS = 12, 295, 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Users who like items next to each other, words in turn, and digits."""
    user = np.repeat(np.arange(USERS), 20)
    item = (25 * user + np.tile(np.arange(20), USERS)) % ITEMS
    np.savez(tmp_path / "movielens-small.npz", user=user, item=item, timestamp=7 * user % 31 + item)
    for part in "ab":
        (tmp_path / f"wikitext2-{part}.txt").write_text(" ".join(f"word{n % 97}" for n in range(3000)))
    save_digits(tmp_path)
    return tmp_path


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return warm.run(SCRIPT, *words)


def measured(folder: Path, *words: object) -> tuple[dict[str, dict[str, Any]], str]:
    """Rows by task and rule, and what was printed."""
    given = ["--data", folder, "--steps", STEPS, "--seeds", 3, "--json", folder / "out.json", *words]
    done = run(*given)
    assert done.returncode == 0 and not done.stderr, done.stderr
    rows = json.loads((folder / "out.json").read_text())["rows"]
    return {f"{row['task']} {row['rule']}": row for row in rows}, done.stdout


def test_sparse_gradients_travel_in_every_way(folder: Path) -> None:
    rows, text = measured(folder, "--tasks", "ncf", "lstm_sparse", "--rates", 1.0, "--picture", folder / "out.png")
    for task in ("ncf", "lstm_sparse"):
        sent = {rule: row["compressed"] for key, row in rows.items() for rule in key.split()[1:] if task == row["task"]}
        assert list(sent) == ["dense", "raw", "raw_rows", "coded", "s2_35", "s2_24", "s2_12"]
        dense, loss = rows[f"{task} dense"], {rule: rows[f"{task} {rule}"]["curve"][-1] for rule in sent}
        assert loss["raw"] == pytest.approx(loss["dense"], rel=1e-5) == loss["raw_rows"], "nothing is lost"
        assert len({*loss.values()} - {loss["raw"], loss["raw_rows"]}) >= 4, "the others are not the same"
        assert 1.8 * sent["raw_rows"] < sent["raw"] < 2.1 * sent["raw_rows"], "an index for every number, or for a row"
        assert sent["coded"] < sent["raw_rows"] / 4 and sent["s2_12"] < sent["s2_24"] < sent["s2_35"] < sent["dense"]
        assert dense["wire"] == STEPS * 1.5 * 4 * dense["parameters"] > dense["others"] > 0
        assert f"{sent['coded'] / sent['raw']:.1%}" in text
    assert rows["ncf dense"]["compressed"] == STEPS * 1.5 * 4 * 64 * (USERS + ITEMS)
    assert lines(folder / "out.png") >= 4


def test_exchanges_and_masks_are_compared_with_dense(folder: Path) -> None:
    rows, _ = measured(folder, "--tasks", "mnist", "mnist_pruned80", "--rates", 0.1)
    rules = [key.split()[1] for key in rows if key.startswith("mnist ")]
    assert rules == ["dense", "allgather", "direct", "log", "pool", "leader", "sketch"]
    sent = {key: row["wire"] for key, row in rows.items()}
    assert all(sent[f"mnist {rule}"] < sent["mnist dense"] / 9 for rule in rules[1:])
    assert len({rows[f"mnist {rule}"]["curve"][-1] for rule in rules}) == len(rules), "each trains in its own way"
    pruned = rows["mnist_pruned80 dense"], rows["mnist_pruned80 mask_float32"]
    assert pruned[0]["curve"] == pruned[1]["curve"] != rows["mnist dense"]["curve"]
    assert sent["mnist_pruned80 dense"] == sent["mnist dense"] > 4.5 * sent["mnist_pruned80 mask_float32"]
    assert sent["mnist_pruned80 mask_float32"] > 1.8 * sent["mnist_pruned80 mask_bfloat16"]
    assert sent["mnist_pruned80 mask_bfloat16"] > 1.8 * sent["mnist_pruned80 mask_int8"]


def test_a_candidate_is_never_rated_and_equal_scores_are_no_hit(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    from sparsewire.lab.tasks import ratings
    from sparsewire.lab.tasks import task as tasks

    data = ratings.movielens(folder)
    liked = {(user, (25 * user + place) % ITEMS) for user in range(USERS) for place in range(20)}
    for x, _ in (data.train, data.valid, data.test):
        assert all((int(row[0]), int(row[1])) in liked for row in x)
        assert not any((int(row[0]), int(other)) in liked for row in x for other in row[2:])
    held_out = [{(int(row[0]), int(row[1])) for row in x} for x, _ in (data.train, data.valid, data.test)]
    assert [len(some) for some in held_out] == [USERS * 18, USERS, USERS] and len(set.union(*held_out)) == len(liked)
    first = torch.zeros(1, dtype=torch.int64)
    for better, hit in ((9, 1.0), (10, 0.0)):
        scores = torch.tensor([[0.5, *[1.0] * better, *[0.0] * 20]])
        assert tasks.evaluate(torch.nn.Identity(), (scores, first), "hits") == hit
    same = torch.zeros(1, 100)
    assert tasks.evaluate(torch.nn.Identity(), (same, first), "hits") == 0
    assert tasks.evaluate(torch.nn.Identity(), (same, first), "perplexity") == pytest.approx(100)


def test_data_that_is_missing_is_said(tmp_path: Path) -> None:
    np.savez(tmp_path / "movielens-small.npz", user=np.zeros(3, int))
    done = run("--data", tmp_path)
    assert done.returncode == 2 and "has no item, timestamp" in done.stderr and "Traceback" not in done.stderr
