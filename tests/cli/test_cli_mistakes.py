"""The command line given wrong files, wrong types and wrong places: one line that says what is wrong, status 2."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from command_line import fails, run

import sparsewire as sw
from sparsewire.lab.arrays import load_gradients


@pytest.mark.skipif(shutil.which("sh") is None, reason="no shell here")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("words", "status"), [(["list"], 0), (["inspect", "/no/such"], 2)])
def test_outputs_that_are_closed_from_the_start_are_no_error(closed, words, status):
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "sparsewire", *words]
    done = subprocess.run(shell, capture_output=True, text=True)
    assert done.returncode == status and "Traceback" not in done.stderr


def test_bfloat16_arrays_that_ml_dtypes_saved_are_read(tmp_path, x, capsys):
    kind = pytest.importorskip("ml_dtypes").bfloat16
    rounded = x.astype(kind)
    np.save(tmp_path / "w.npy", rounded)  # NumPy forgets the type: two bytes each
    assert run("encode", tmp_path / "w.npy", "--scheme", "topk(1.0) | values=raw") == 0
    assert (tmp_path / "w.swf").read_bytes() == sw.encode(rounded, "topk(1.0) | values=raw")
    assert run("decode", tmp_path / "w.swf", "-o", tmp_path / "back.npy") == 0
    assert "bfloat16 saved as float32" in capsys.readouterr().out
    assert np.array_equal(np.load(tmp_path / "back.npy"), rounded.astype(np.float32))
    left = sw.compress(np.load(tmp_path / "w.npy"), "topk(1%) | values=raw")[1]
    assert np.array_equal(left.view(kind), sw.compress(rounded, "topk(1%) | values=raw")[1])


def test_other_types_that_numpy_forgets_are_named(tmp_path, x, capsys):
    np.save(tmp_path / "w.npy", x.astype(pytest.importorskip("ml_dtypes").float8_e4m3fn))
    assert "save x.astype('float32')" in fails(capsys, "encode", tmp_path / "w.npy")
    np.save(tmp_path / "c.npy", x.astype(complex))
    assert "astype" not in fails(capsys, "encode", tmp_path / "c.npy")


@pytest.mark.parametrize("name", ["notes.txt", "w.npy", "objects.npy", "archive.npz"])
def test_other_files_are_said_to_be_none_without_a_word_of_pickle(name, tmp_path, capsys):
    path = tmp_path / name
    if name == "objects.npy":
        np.save(path, np.array([{}], object), allow_pickle=True)
    elif name == "archive.npz":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("notes.txt", "no array")
    else:
        path.write_text("0.5 0.25\n")
    error = fails(capsys, "encode", path)
    assert name in error and "pickle" not in error
    assert ("is not a .npy or .npz file" in error) == (name in ("notes.txt", "w.npy"))


def test_the_input_is_never_overwritten(saved, tmp_path, capsys):
    before = saved.read_bytes()
    assert "is the input" in fails(capsys, "encode", saved, "-o", saved)
    assert saved.read_bytes() == before
    run("encode", saved, "-o", tmp_path / "frame.npy")
    assert "is the input" in fails(capsys, "decode", tmp_path / "frame.npy")


def test_a_file_where_a_directory_is_needed_is_called_so(saved, tmp_path, capsys):
    assert "w.npy: Not a directory" in fails(capsys, "encode", saved, "-o", saved / "x.swf")
    np.savez(tmp_path / "g.npz", a=np.zeros(3))
    assert "w.npy: Not a directory" in fails(capsys, "encode", tmp_path / "g.npz", "-o", saved)


@pytest.mark.parametrize("words", [["bench", "rates", "--json"], ["bench", "rates", "--picture"], ["demo", "-o"]])
def test_a_directory_as_output_is_refused_before_the_work(words, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        run(*words, tmp_path)
    assert caught.value.code == 2 and "is a directory" in capsys.readouterr().err


def test_a_json_file_in_no_directory_is_refused_before_the_work(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        run("list", "--json", tmp_path / "none" / "x.json")
    assert caught.value.code == 2 and "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["codecs", "deepreduce", "rates"])
def test_arrays_that_cannot_be_measured_on_are_named(what, tmp_path, capsys):
    for name, array in {"nan": np.full(9, np.nan, np.float32), "one": np.ones(1), "ints": np.arange(5)}.items():
        np.save(tmp_path / f"{name}.npy", array)
        assert f"{name}: " in fails(capsys, "bench", what, tmp_path / f"{name}.npy")


def test_scalars_beside_gradients_are_left_out(tmp_path, x, capsys):
    np.savez(tmp_path / "a.npz", w=x, scale=np.float32(0.5), step=np.array(7), none=np.zeros(0, np.float32))
    assert list(load_gradients([tmp_path / "a.npz"])) == ["w"]
    np.savez(tmp_path / "b.npz", scale=np.float32(0.5))
    assert "two or more elements" in fails(capsys, "advise", tmp_path / "b.npz")


def test_arrays_of_one_name_from_two_files_are_kept_apart(tmp_path, x):
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", w=x)
        np.save(tmp_path / f"{name}.npy", x)
    paths = [tmp_path / name for name in ("a.npz", "b.npz", "a.npy")]
    assert list(load_gradients(paths)) == ["w", f"{tmp_path}/b.npz[w]", "a"]
