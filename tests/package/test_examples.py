"""Every example runs as its first lines say, and what it prints is true."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import warm
from host_ranks import RANKS, environment, finish, start_ranks

warm.needs("sklearn.datasets")
EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDS = {
    "ddp": ["torch", "sklearn"],
    "local_steps": ["torch", "sklearn"],
    "embedding": ["torch"],
    "fsdp": ["torch", "sklearn"],
    "lightning_ddp": ["torch", "lightning"],
    "accelerate_ddp": ["torch", "accelerate"],
    "hf_trainer": ["torch", "transformers", "accelerate"],
    "ray_train": ["torch", "ray"],
    "keras_fit": ["keras", "torch"],
    "torchft_ddp": ["torch", "sklearn", "torchft"],
    "jax_optax": ["jax", "optax"],  # run by tests/jax
}


def output(name: str, folder: Path, limit: float = 90) -> str:
    """What the example prints."""
    for package in NEEDS[name]:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    out, err = folder / "out", folder / "err"
    child = warm.start_script(EXAMPLES / f"{name}.py", out=out, err=err, environment=alone(folder))
    assert warm.end(child, limit) == 0, err.read_text()
    assert "memory=" not in err.read_text(), "memory and optimizer fit, and sparsewire knows it"
    return out.read_text()


def alone(folder: Path) -> dict[str, str]:
    """The environment of what is started as a user would, so it must not inherit a rank."""
    found = {key: value for key, value in environment().items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return found | {"HOME": str(folder), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def printed(command: list[str], folder: Path, limit: float = 90) -> str:
    """What the command prints."""
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        child = subprocess.Popen(command, env=alone(folder), stdout=out, stderr=err, start_new_session=True)
        try:
            assert child.wait(timeout=limit) == 0, (folder / "err").read_text()
        finally:
            if child.poll() is None:
                os.killpg(child.pid, 9)  # its ranks too
                child.wait()
    return (folder / "out").read_text()


def numbers(pattern: str, text: str) -> list[float]:
    found = re.search(pattern, text)
    assert found, text
    return [float(number) for number in found.groups()]


def losses(text: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", text)]


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(NEEDS)


def test_ddp(tmp_path: Path) -> None:
    text = output("ddp", tmp_path)
    sent, dense = numbers(r"sent ([\d.]+) MB instead of ([\d.]+) MB", text)
    assert sent * 8 < dense
    assert all(losses(text)[last] < losses(text)[first] for first, last in ((0, 2), (3, 5)))
    ours, plain = numbers(r"test accuracy ([\d.]+)% compressed, ([\d.]+)% plain", text)
    assert ours > 70 and plain > 85
    assert ours > plain - 2
    assert 'attach(model, "topk(ratio=0.0833) | memory=gain(momentum=0.9)", optimizer=optimizer)' in text


def test_local_steps(tmp_path: Path) -> None:
    text = output("local_steps", tmp_path)
    assert "the same weights: True" in text
    assert losses(text)[-1] < losses(text)[0]
    (accuracy, rounds), (times,) = (
        numbers(r"accuracy ([\d.]+)% after (\d+) rounds", text),
        numbers(r": (\d+)x less", text),
    )
    assert accuracy > 85 and rounds == 24 and times > 50


def test_fsdp(tmp_path: Path) -> None:
    text = output("fsdp", tmp_path)
    assert "the same weights: True" in text
    assert losses(text)[-1] < losses(text)[0]
    (accuracy,), (times,) = numbers(r"accuracy ([\d.]+)%", text), numbers(r": (\d+)x less", text)
    assert accuracy > 85 and times > 20


def test_embedding(tmp_path: Path) -> None:
    text = output("embedding", tmp_path)
    (sent,), (pairs,) = numbers(r"sent ([\d.]+) MB", text), numbers(r"alone would be ([\d.]+) MB", text)
    assert sent < pairs
    assert losses(text)[-1] < losses(text)[0]


def test_lightning(tmp_path: Path) -> None:
    text = output("lightning_ddp", tmp_path)
    first, second = numbers(r"loss after 2 epochs ([\d.]+), after 5 ([\d.]+)", text)
    assert second < first
    sent, dense = numbers(r"sent ([\d.]+) MB instead of ([\d.]+) MB", text)
    assert sent * 20 < dense
    assert "step 160;" in text


def test_accelerate(tmp_path: Path) -> None:
    text = output("accelerate_ddp", tmp_path)
    assert "the same: True" in text
    sent, dense = numbers(r"sent ([\d.]+) MB instead of ([\d.]+) MB", text)
    assert sent * 8 < dense


@pytest.mark.timeout(300)
def test_hf_trainer(tmp_path: Path) -> None:
    text = output("hf_trainer", tmp_path, limit=270)
    first, last = numbers(r"2 ranks, 120 steps: loss ([\d.]+) … ([\d.]+)", text)
    assert last < first / 2
    assert "the same weights at the end: True" in text
    sent, dense = numbers(r"sent ([\d.]+) MB instead of ([\d.]+) MB", text)
    assert sent * 10 < dense


@pytest.mark.timeout(300)
def test_ray(tmp_path: Path) -> None:
    text = output("ray_train", tmp_path, limit=270)
    first, last = numbers(r"after 60 steps ([\d.]+), resumed, after 120 ([\d.]+)", text)
    assert last < first
    sent, dense = numbers(r"sent ([\d.]+) MB instead of ([\d.]+) MB", text)
    assert sent * 10 < dense


@pytest.mark.timeout(180)
def test_torchft(tmp_path: Path) -> None:
    text = output("torchft_ddp", tmp_path, limit=170)
    (first,), (times,) = numbers(r"replica 2: first step (\d+)", text), numbers(r"(\d+)x fewer bytes", text)
    assert first > 60, "the replica that was killed went on from the others' weights"
    assert len(set(re.findall(r"sum of weights (\S+),", text))) == 1 and text.count("sum of weights") == 3
    assert times > 20


@pytest.mark.timeout(300)
def test_keras_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    text = output("keras_fit", tmp_path, limit=270)
    accuracy, steps = numbers(r"accuracy ([\d.]+) after (\d+) steps", text)
    assert accuracy > 0.95 and steps == 192
    sent, dense = numbers(r"sent ([\d.]+) MB, dense steps ([\d.]+) MB", text)
    assert sent * 10 < dense


# --- command lines ---

PROBE = "import os; os.write(1, (os.environ['RANK'] + ' ' + os.environ['WORLD_SIZE'] + '\\n').encode())"  # at once


def launches() -> list[str]:
    """Every documented command line that starts the ranks of an example."""
    texts = [path.read_text() for path in (*EXAMPLES.glob("*.py"), *EXAMPLES.parent.glob("docs/**/*.md"))]
    found = re.findall(r"^((?:torchrun|accelerate launch) .*examples/\w+\.py)", "\n".join(texts), re.MULTILINE)
    return sorted({re.sub(r"examples/\w+\.py", "SCRIPT", line) for line in found})


@pytest.mark.parametrize("line", launches())
def test_a_documented_command_line_starts_its_ranks(line: str, tmp_path: Path) -> None:
    command = line.split()[0]
    if shutil.which(command, path=alone(tmp_path)["PATH"]) is None:
        pytest.skip(f"{command} is not installed")
    (tmp_path / "probe.py").write_text(PROBE)
    text = printed(line.replace("SCRIPT", str(tmp_path / "probe.py")).split(), tmp_path)
    said = re.search(r"(?:nproc-per-node|num_processes)[ =](\d+)", line)
    size = int(said[1]) if said else 2
    assert sorted(text.splitlines()) == [f"{rank} {size}" for rank in range(size)]


@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed")
def test_accelerate_as_torchrun_starts_it(tmp_path: Path) -> None:
    children = start_ranks(EXAMPLES / "accelerate_ddp.py", tmp_path, environment=alone(tmp_path))
    finish(children, tmp_path)
    text = "".join((tmp_path / f"{rank}.log").read_text() for rank in range(RANKS))
    assert "the same: True" in text and text.count("instead of") == 1
