"""Every command on every kind of wrong file: one line that names the file, status 2, never a traceback."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import fails, run
from corpus import mutants, spectra

import sparsewire as sw
from sparsewire.frames import wire

SMALL = np.arange(20, dtype=np.float32)


def npy(shape: str, dtype: str = "'<f4'") -> bytes:
    """A .npy file that claims this shape and holds no numbers."""
    head = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (63 - (10 + len(head)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head


def saved(save: Callable[..., None]) -> bytes:
    file = io.BytesIO()
    save(file, SMALL)
    return file.getvalue()


def zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.npy", content)
    return file.getvalue()


def claiming(**fields: object) -> bytes:
    return wire.pack(replace(wire.unpack(sw.encode(SMALL[:0], "topk")), **fields))


FILES = {
    "empty": b"",
    "text": b"0.5 0.25\n",
    "zeros": bytes(1000),
    "cut.swf": sw.encode(SMALL, "topk")[:-3],
    "empty_huge.swf": claiming(shape=(0, 2**62)),
    "wide.swf": claiming(shape=(2**62,), width=2**31),
    "spectrum.swf": dict(spectra())["fft(chunk=65536)-(35184372088832,)"],
    "cut.npy": saved(np.save)[:-5],
    "head.npy": saved(np.save)[:20],
    "huge.npy": npy("(1099511627776,)"),
    "overflow.npy": npy("(1099511627776, 1099511627776)"),
    "empty_huge.npy": npy("(0, 4611686018427387904)"),
    "negative.npy": npy("(-1,)"),
    "nested.npy": npy("(" * 3000),
    "dates.npy": npy("(0,)", "'<M8[s]'"),
    "cut.npz": saved(np.savez)[:-30],
    "huge.npz": zipped(npy("(1099511627776,)")),
    "none.npz": b"PK\x05\x06" + bytes(18),
    "nested.json": b"[" * 100_000,
    "null.json": b"null",
    "number.json": b"9" * 5000,
    "list.json": b"[1, 2]",
    "utf16.json": '{"a": 1}'.encode("utf-16"),
    "cut.toml": b"a = [1",
    "nested.toml": b"a = " + b"[" * 100_000,
    "other.toml": b"[x]\ny = 1",
    "latin.toml": b"\xff\xfe",
}
COMMANDS = {
    "decode": ["decode"],
    "decode --sparse": ["decode", "--sparse"],
    "inspect": ["inspect"],
    "encode": ["encode"],
    "advise": ["advise"],
    "bench codecs": ["bench", "codecs", "--size", "1000"],
    "bench deepreduce": ["bench", "deepreduce"],
    "bench rates": ["bench", "rates"],
    "lab train": ["lab", "train"],
    "lab report": ["lab", "report"],
}
READ = {  # what is no mistake
    ("inspect", "spectrum.swf"),
    ("decode --sparse", "spectrum.swf"),
    ("inspect", "wide.swf"),
    ("decode --sparse", "wide.swf"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, where results go that are not asked to go elsewhere."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_file_is_named_in_one_line(command, name, folder, capsys):
    (folder / name).write_bytes(FILES[name])
    if (command, name) in READ:
        assert run(*COMMANDS[command], name) == 0
        return
    error = fails(capsys, *COMMANDS[command], name)
    assert Path(name).stem in error or "not enough memory" in error
    assert {path.name for path in folder.iterdir()} <= {name, "out"}


@pytest.mark.parametrize("kind", ["missing", "directory", "no directory", "too long", "loop", "unreadable"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_cannot_be_read_is_named_in_one_line(command, kind, folder, capsys):
    path = folder / kind
    if kind == "directory":
        path.mkdir()
    elif kind == "no directory":
        (folder / "file").write_bytes(b"")
        path = folder / "file" / "x"
    elif kind == "too long":
        path = folder / ("x" * 300)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "unreadable":
        path = Path("/proc/self/mem")  # reading its beginning fails for root, too
        if not path.exists():
            pytest.skip("no /proc here")
    error = fails(capsys, *COMMANDS[command], path)
    assert path.name in error or "Input/output error" in error


@pytest.mark.parametrize("words", [["list", "--json"], ["bench", "rates", "--picture"], ["demo", "-o"]])
def test_an_output_whose_name_is_too_long_is_no_traceback(words, folder, monkeypatch, capsys):
    monkeypatch.setattr("sparsewire.cli.parsers.importlib.import_module", lambda name: os)
    monkeypatch.setattr(os, "main", lambda args: 0, raising=False)
    status = run(*words, folder / ("x" * 300))
    assert (status, "File name too long" in capsys.readouterr().err) == ((2, True) if "list" in words else (0, False))


def test_no_mutant_of_a_frame_makes_the_command_line_fall_over(folder, capsys):
    seen = set()
    for data, _, _ in mutants(400, seed=3):
        Path("m.swf").write_bytes(data)
        for words in (["decode", "--max-numel", 2**20], ["decode", "--sparse"]):
            status = run(*words, "m.swf", "-o", "out")
            assert status in (0, 2) and (status == 0 or capsys.readouterr().err.count("\n") == 1)
            seen.add(status)
    assert seen == {0, 2}
