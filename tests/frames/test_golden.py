"""Frames of the past: they decode to what they always did, and today's encoder still writes them.

An encoder may learn to write smaller ones: the index calls a frame that it wrote before `earlier`.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from corpus import GOLDEN, Golden, golden
from make_golden import as_sendable
from strategies import BACKENDS, using

import sparsewire as sw
from sparsewire.codecs.contract import SLOTS
from sparsewire.codecs.registry import codecs
from sparsewire.codecs.scheme import from_record
from sparsewire.codecs.values import Chain
from sparsewire.core.sparse import store
from sparsewire.frames import wire

FRAMES = golden()
every_frame = pytest.mark.parametrize("row", FRAMES, ids=lambda row: row.name)
every_backend = pytest.mark.parametrize("backend", BACKENDS)


def used(slot: str) -> set[str]:
    """The ids of a slot's codecs that golden frames carry."""
    filled = [getattr(sw.scheme(sw.inspect(row.frame)["scheme"]), slot) for row in FRAMES]
    return {stage.id for codec in filled for stage in (codec.stages if isinstance(codec, Chain) else [codec])}


def sections(frame: bytes) -> tuple[object, ...]:
    """All of a frame; the scheme as it is read, for earlier frames also carry settings that have their default."""
    found = wire.unpack(frame)
    facts = (found.dtype, found.shape, found.count, found.width, from_record(found.record))
    return *facts, bytes(found.indices), bytes(found.values)


@pytest.mark.parametrize("slot", SLOTS)
def test_every_built_in_codec_has_a_golden_frame(slot: str) -> None:
    assert used(slot) >= {name for name, codec in codecs(slot).items() if codec.wire_id}


def test_golden_frames_are_small_and_listed() -> None:
    assert {path.stem for path in GOLDEN.glob("*.swf")} == {row.name for row in FRAMES}
    assert max(len(row.frame) for row in FRAMES) < 2048


@every_backend
@every_frame
def test_it_decodes_to_what_it_always_did(row: Golden, backend: str) -> None:
    with using(backend):
        sparse = sw.decode(row.frame)
    assert sparse.indices.tolist() == row.facts["indices"]
    assert sparse.width == row.facts.get("width", 1)
    assert store(sparse.values, sparse.dtype).tobytes() == base64.b64decode(row.facts["values"])
    assert (list(sparse.shape), sparse.dtype) == (row.facts["shape"], row.facts["dtype"])
    assert sw.scheme(sw.inspect(row.frame)["scheme"]) == sw.scheme(row.facts["scheme"])


@every_backend
@pytest.mark.parametrize("row", [row for row in FRAMES if not row.facts.get("earlier")], ids=lambda row: row.name)
def test_the_input_still_gives_these_bytes(row: Golden, backend: str) -> None:
    x = row.input if isinstance(row.input, sw.Sparse) else as_sendable(row.input, row.facts["dtype"])
    with using(backend):
        frame = sw.encode(x, row.facts["scheme"], **row.facts["options"])
    if sw.scheme(row.facts["scheme"]).values.squeezers:  # zlib and zstd may compress better one day
        old, new = sw.decode(row.frame), sw.decode(frame)
        assert np.array_equal(old.indices, new.indices)
        assert old.values.tobytes() == new.values.tobytes()
    else:
        assert sections(frame) == sections(row.frame)


def copy_of_the_script(folder: Path) -> Path:
    """The script that writes golden frames, where it finds the folder `golden` of the test."""
    (folder / "support").mkdir()
    return Path(shutil.copy(Path(__file__).parents[1] / "support" / "make_golden.py", folder / "support"))


def test_a_golden_frame_is_never_written_twice(tmp_path: Path) -> None:
    script = copy_of_the_script(tmp_path)
    (tmp_path / "golden").mkdir()
    (tmp_path / "golden" / "scalar.swf").write_bytes(b"old")
    run = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert run.returncode == 1, run.stderr
    assert "never written twice" in run.stderr
    assert (tmp_path / "golden" / "scalar.swf").read_bytes() == b"old"


def test_frames_that_are_there_stay_as_they_are(tmp_path: Path) -> None:
    script = copy_of_the_script(tmp_path)
    shutil.copytree(GOLDEN, tmp_path / "golden")
    index = json.loads((GOLDEN / "index.json").read_text())
    del index["rows"]
    (tmp_path / "golden" / "index.json").write_text(json.dumps(index))
    (tmp_path / "golden" / "rows.swf").unlink()
    run = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert run.stdout.startswith("1 golden frames written"), run.stderr
    for row in FRAMES:
        assert (tmp_path / "golden" / f"{row.name}.swf").read_bytes() == row.frame
