"""Third parties add codecs, by `register` or by entry point; nobody takes a name that is taken."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import sparsewire as sw
from sparsewire.codecs import registry
from sparsewire.codecs.contract import SLOTS, Context, IndexCodec, ValueCodec
from sparsewire.codecs.values import RawValues
from sparsewire.errors import RegistryError, UnknownCodec

PLUGIN = """
from dataclasses import dataclass
from sparsewire.codecs.values import RawValues

@dataclass(frozen=True)
class Negated(RawValues):
    id = "negated"
    wire_id = 0

    def encode(self, values, ctx):
        body, approx = super().encode(-values, ctx)
        return body, -approx

    def decode(self, body, ctx):
        return -super().decode(body, ctx)
"""


@pytest.fixture
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "_added", {slot: dict(known) for slot, known in registry._added.items()})
    yield


@dataclass(frozen=True)
class Doubled(RawValues):
    """A third party's codec with a setting."""

    id = "doubled"
    wire_id = 0

    factor: float = 2.0

    def encode(self, values: np.ndarray, ctx: Context) -> tuple[bytes, np.ndarray]:
        body, approx = super().encode(values * values.dtype.type(self.factor), ctx)
        return body, approx / values.dtype.type(self.factor)

    def decode(self, body: memoryview, ctx: Context) -> np.ndarray:
        values = super().decode(body, ctx)
        return values / values.dtype.type(self.factor)


@pytest.mark.usefixtures("_clean")
def test_a_registered_codec_is_like_any_other() -> None:
    assert sw.register(Doubled) is Doubled
    assert "doubled" in sw.list_codecs()["values"]
    s = sw.scheme("topk(50%) | values=doubled(factor=4)+deflate")
    assert s == sw.scheme(str(s)) == sw.scheme(s.to_dict())
    x = np.array([1.5, 0, -3, 0.25], np.float32)
    frame, left = sw.compress(x, s)
    assert sw.decode(frame).to_dense().tolist() == [1.5, 0, -3, 0]
    assert left.tolist() == [0, 0, 0, 0.25]
    assert "doubled(factor=4.0)" in sw.inspect(frame)["scheme"]


@pytest.mark.usefixtures("_clean")
def test_registering_the_same_class_twice_is_harmless_and_another_is_an_error() -> None:
    sw.register(Doubled)
    sw.register(Doubled)
    other = dataclass(frozen=True)(type("Other", (RawValues,), {"id": "doubled", "wire_id": 0}))
    with pytest.raises(RegistryError, match="already registered"):
        sw.register(other)


@pytest.mark.parametrize("slot", SLOTS)
def test_a_built_in_name_is_taken(slot: str) -> None:
    name, codec = next(iter(registry.codecs(slot).items()))
    thief = type("Thief", (codec,), {"id": name, "wire_id": 0})
    with pytest.raises(RegistryError, match="already registered"):
        sw.register(thief)


@pytest.mark.parametrize(
    "broken",
    [
        type("NoId", (ValueCodec,), {}),
        type("BadId", (ValueCodec,), {"id": "not a name"}),
        type("NoSlot", (), {"id": "fine"}),
        type("BadSlot", (IndexCodec,), {"id": "fine", "slot": "indexes"}),
        type("Numbered", (ValueCodec,), {"id": "fine", "wire_id": 77}),
    ],
)
def test_a_class_that_breaks_the_contract_is_refused(broken: type) -> None:
    with pytest.raises(RegistryError):
        sw.register(broken)


def test_a_frame_of_a_codec_that_is_not_here_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(registry, "_added", {slot: dict(known) for slot, known in registry._added.items()})
        sw.register(Doubled)
        frame = sw.encode(np.ones(3, np.float32), {"values": "doubled"})
    with pytest.raises(UnknownCodec, match="doubled"):
        sw.decode(frame)


def test_wire_ids_are_unique_within_a_slot() -> None:
    for slot in SLOTS:
        ids = [codec.wire_id for codec in registry.codecs(slot).values() if codec.wire_id]
        assert len(ids) == len(set(ids))


def installed(folder: Path, entries: str) -> dict[str, str]:
    """A package with entry points as pip would leave it, and the environment in which Python finds it."""
    (folder / "their_codec.py").write_text(PLUGIN)
    info = folder / "their_codec-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-codec\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[sparsewire.codecs]\n{entries}\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path[1:]])}


def test_an_entry_point_adds_a_codec(tmp_path: Path) -> None:
    environment = installed(tmp_path, "negated = their_codec:Negated")
    code = (
        "import sparsewire as sw, numpy as np\n"
        "frame = sw.encode(np.array([1.0, -2.0]), 'topk(100%) | values=negated')\n"
        "print(sw.decode(frame).values.tolist(), 'negated' in sw.list_codecs()['values'])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert run.stdout == "[1.0, -2.0] True\n", run.stderr


def test_an_entry_point_that_takes_a_name_is_an_error(tmp_path: Path) -> None:
    environment = installed(tmp_path, "a = their_codec:Negated\nb = their_codec_two:Negated")
    (tmp_path / "their_codec_two.py").write_text(PLUGIN)
    code = "import sparsewire as sw; sw.list_codecs()"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert run.returncode == 1
    assert "values=negated is already registered" in run.stderr
