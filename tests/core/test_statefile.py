"""State files: every damage is told, no kill leaves half a file, and the bytes are those of the format's page."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federated_cases import STC, Crowd

from sparsewire.core.files import write_file
from sparsewire.core.statefile import pack, read_state, unpack, write_state
from sparsewire.errors import InputError
from sparsewire.federated import Client, Server

STATE: dict[str, Any] = {
    "kind": "test",
    "plain": [1, -2.5, None, True, "text", 2**80, float("inf")],
    "bytes": [b"", b"\x00abc"],
    "keys": {1: "one", "1": {"deep": [[]]}},
    "arrays": {
        "flat": np.arange(5, dtype=np.float32),
        "none": np.zeros((0, 3), np.float64),
        "number": np.array(7, np.uint64),
        "table": np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::2],
        "flags": np.array([True, False]),
    },
}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    write_state(tmp_path / "deeper" / "state", STATE)
    assert same(read_state(tmp_path / "deeper" / "state", "test"), STATE)
    assert same(unpack(bytearray(pack(STATE))), STATE)


def test_the_bytes_are_those_of_the_format() -> None:
    """docs/reference/format.md, section "State files", read by hand."""
    data = pack({"kind": "test", "x": np.array([1.0, 2.0], np.float32), "b": b"hi"})
    magic, version, head, body = struct.unpack("<8sIQQ", data[:28])
    assert (magic, version, (28 + head) % 64, body) == (b"SWSTATE\n", 1, 0, 128)
    assert json.loads(data[28 : 28 + head]) == {
        "tree": {"$map": [["kind", "test"], ["x", {"$array": 0}], ["b", {"$bytes": 1}]]},
        "arrays": [["<f4", [2]], ["|u1", [2]]],
    }
    assert data[28 + head :][:8] == struct.pack("<ff", 1, 2) and data[28 + head + 64 :][:2] == b"hi"
    assert data[-16:] == hashlib.blake2b(data[:-16], digest_size=16).digest()


# --- damage ----------------------------------------------------------------------------------------------------------


def refused(path: Path, data: bytes, load: Callable[[Path], object]) -> None:
    path.write_bytes(data)
    with pytest.raises(InputError) as error:
        load(path)
    assert str(path) in str(error.value)
    assert len(str(error.value)) > len(str(path)) + 10  # a reason, too


def read_test(path: Path) -> object:
    return read_state(path, "test")


def test_every_flipped_bit_is_told(tmp_path: Path) -> None:
    data = pack(STATE)
    for place in random.Random(0).sample(range(8 * len(data)), 300):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        refused(tmp_path / "state", flipped, read_test)


def test_every_cut_and_every_addition_is_told(tmp_path: Path) -> None:
    data = pack(STATE)
    for length in (*range(64), *range(64, len(data), 37), len(data) - 1):
        refused(tmp_path / "state", data[:length], read_test)
    refused(tmp_path / "state", data + b"\0", read_test)
    refused(tmp_path / "state", data[:200] + data[264:328] + data[264:], read_test)


def sealed(head: bytes, body: bytes = b"") -> bytes:
    """A file with a right checksum, whatever is in it."""
    start = struct.pack("<8sIQQ", b"SWSTATE\n", 1, len(head), len(body)) + head + body
    return start + hashlib.blake2b(start, digest_size=16).digest()


def forged(tree: Any, arrays: Any = (), body: bytes = b"") -> bytes:
    return sealed(json.dumps({"tree": tree, "arrays": arrays}).encode(), body)


FORGED = {
    "another version": bytes(pack(STATE)).replace(b"\n\1\0\0\0", b"\n\7\0\0\0", 1),
    "no JSON": sealed(b"{"),
    "no text": sealed(b"\xff\xfe{}"),
    "no mapping": sealed(b"[]"),
    "no tree": sealed(b'{"arrays": []}'),
    "no arrays": sealed(b'{"tree": {"$map": []}}'),
    "deep lists": sealed(b'{"arrays": [], "tree": ' + b"[" * 10**5 + b"]" * 10**5 + b"}"),
    "deep mappings": sealed(b'{"arrays": [], "tree": ' + b'{"$map":' * 10**5 + b"1" + b"}" * 10**5 + b"}"),
    "another kind": forged({"$map": [["kind", "other"]]}),
    "no kind": forged({"$map": []}),
    "not a mapping": forged([1, 2]),
    "an unknown mark": forged({"$call": 1}),
    "two marks": forged({"$map": [], "$array": 0}),
    "pairs of three": forged({"$map": [["kind", "test", 1]]}),
    "a list as a key": forged({"$map": [[[1], "test"]]}),
    "an array that is not there": forged({"$map": [["kind", "test"], ["x", {"$array": 3}]]}),
    "an array before the first": forged({"$map": [["x", {"$array": -1}]]}, [["<f4", [0]]]),
    "an array by name": forged({"$map": [["x", {"$array": "0"}]]}, [["<f4", [0]]]),
    "objects": forged({"$map": [["kind", "test"]]}, [["|O", [1]]], bytes(64)),
    "an unknown type": forged({"$map": [["kind", "test"]]}, [["<f3", [1]]], bytes(64)),
    "a negative side": forged({"$map": [["kind", "test"]]}, [["<f4", [-1, -16]]], bytes(64)),
    "a side of text": forged({"$map": [["kind", "test"]]}, [["<f4", ["16"]]], bytes(64)),
    "a huge side": forged({"$map": [["kind", "test"]]}, [["<f4", [2**62]]], bytes(64)),
    "no side and a huge one": forged({"$map": [["kind", "test"]]}, [["<f4", [0, 10**30]]]),
    "an array beyond the end": forged({"$map": [["kind", "test"]]}, [["<f4", [17]]], bytes(64)),
    "bytes of no array": forged({"$map": [["kind", "test"]]}, [], bytes(64)),
    "NaN": pack({"kind": "test", "x": np.array([1, np.nan], np.float32)}),
    "infinity, deep": pack({"kind": "test", "x": [{"y": np.array([[np.inf]], np.float16)}]}),
}  # fmt: skip


@pytest.mark.parametrize("data", FORGED.values(), ids=list(FORGED))
def test_what_no_writer_writes_is_refused_with_name_and_reason(data: bytes, tmp_path: Path) -> None:
    refused(tmp_path / "state", data, read_test)


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "gone", tmp_path):
        with pytest.raises(InputError, match=str(path)):
            read_state(path, "test")


@pytest.mark.parametrize("bad", [np.array([object()]), np.array(["text"]), object(), np.array([np.nan])])
def test_a_state_that_could_not_be_read_is_not_written(bad: Any, tmp_path: Path) -> None:
    write_state(tmp_path / "state", STATE)
    with pytest.raises(InputError, match="cannot be saved"):
        write_state(tmp_path / "state", {"kind": "test", "x": bad})
    assert same(read_test(tmp_path / "state"), STATE) and len(list(tmp_path.iterdir())) == 1


# --- states of servers and clients -----------------------------------------------------------------------------------

ODD: list[Any] = [None, -1, 2.5, "x", [], {}, {"a": 1}, np.array([np.nan]), b"\0"]


@pytest.mark.parametrize("kind", [Server, Client])
def test_a_damaged_state_of_a_server_or_client_is_an_input_error(kind: type[Server | Client], tmp_path: Path) -> None:
    """Every entry missing, and every entry something else: it loads, or it is an `InputError` with the file's name."""
    crowd = Crowd(STC)
    crowd.round(0, 1)
    crowd.answer(0)
    state = (crowd.server if kind is Server else crowd.clients[0]).state_dict()
    path, told = tmp_path / "state", 0
    wrong = [{key: value for key, value in state.items() if key != gone} for gone in state]
    wrong += [{**state, key: odd} for key in state for odd in ODD]
    for bad in wrong:
        path.write_bytes(pack(bad))
        try:
            kind.load(path)
        except InputError as error:
            assert str(path) in str(error)
            told += 1
    assert told > len(state)


# --- kills -----------------------------------------------------------------------------------------------------------

STAGES = ["write", "fsync", "chmod", "replace", "second fsync"]
WRITER = """
import os, sys
import numpy as np
from sparsewire.core.statefile import write_state
path, stage, when = sys.argv[1:]
write_state(path, {"kind": "test", "number": 1, "array": np.full(20_000, 1.0)})
left = 2 if stage == "second fsync" else 1

def dying(call):
    def called(*args):
        global left
        left -= 1
        if not left and when == "before":
            os._exit(9)
        found = call(*args)
        if not left:
            os._exit(9)
        return found
    return called

if stage == "write":
    import sparsewire.core.statefile as statefile
    write_file = statefile.write_file
    half = lambda file: (file.write(b"half"), file.flush(), os._exit(9))
    statefile.write_file = lambda path, write: write_file(path, half)
else:
    name = stage.split()[-1]
    setattr(os, name, dying(getattr(os, name)))
write_state(path, {"kind": "test", "number": 2, "array": np.full(20_000, 2.0)})
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_writer_killed_at_any_stage_leaves_a_whole_file_and_the_next_one_cleans_up(
    stage: str, when: str, tmp_path: Path
) -> None:
    path = tmp_path / "state"
    assert subprocess.run([sys.executable, "-c", WRITER, str(path), stage, when], check=False).returncode == 9
    state = read_state(path, "test")
    replaced = stage == "second fsync" or (stage, when) == ("replace", "after")
    assert len(list(tmp_path.iterdir())) == (1 if replaced else 2)
    assert state["number"] == (2 if replaced else 1) and (state["array"] == state["number"]).all()
    write_state(path, STATE)
    assert [one.name for one in tmp_path.iterdir()] == ["state"]


def test_what_another_writer_is_writing_is_left_alone(tmp_path: Path) -> None:
    def write(file: Any) -> None:
        write_state(tmp_path / "state", {**STATE, "first": True})  # finds the temporary file of this very call
        file.write(pack(STATE))

    write_file(tmp_path / "state", write)
    assert same(read_test(tmp_path / "state"), STATE)
    assert [one.name for one in tmp_path.iterdir()] == ["state"]


def test_a_file_keeps_its_mode_and_long_names_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("ä" * 120)
    path.touch()
    path.chmod(0o640)
    write_state(path, STATE)
    assert path.stat().st_mode & 0o777 == 0o640 and same(read_test(path), STATE)
