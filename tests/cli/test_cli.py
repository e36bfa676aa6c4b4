"""The command line: files in and out, exit statuses, and errors in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import fails, run

import sparsewire as sw
from sparsewire.cli import main
from sparsewire.codecs.registry import PACKAGES, RECOMMENDED, STATUSES
from sparsewire.lab import tables

# --- files -------------------------------------------------------------------------------------------------------


def test_an_array_comes_back_from_its_frame_file(saved, x, tmp_path, capsys):
    assert run("encode", saved, "--scheme", "topk(k=100) | indices=rice | values=raw") == 0
    frame = (tmp_path / "w.swf").read_bytes()
    assert f"{len(frame):,}" in capsys.readouterr().out
    assert run("decode", tmp_path / "w.swf", "-o", tmp_path / "back") == 0
    back = np.load(tmp_path / "back")
    kept = np.abs(x) >= np.sort(np.abs(x).ravel())[-100]
    assert back.dtype == x.dtype and np.array_equal(back, np.where(kept, x, 0))


def test_the_frame_is_the_one_that_encode_gives(saved, x, tmp_path):
    words = ["--scheme", "topk(5%) | values=qsgd", "--step", 3, "--name", "layer", "--seed", 7]
    assert run("encode", saved, "-o", tmp_path / "out.swf", *words) == 0
    assert (tmp_path / "out.swf").read_bytes() == sw.encode(x, "topk(5%) | values=qsgd", step=3, name="layer", seed=7)


def test_sparse_output_holds_indices_values_and_shape(saved, x, tmp_path):
    run("encode", saved, "--scheme", "topk(k=9) | values=raw")
    assert run("decode", tmp_path / "w.swf", "--sparse") == 0
    with np.load(tmp_path / "w.npz") as found:
        assert sorted(found.files) == ["indices", "shape", "values"]
        assert tuple(found["shape"]) == x.shape and found["indices"].size == 9
        assert np.array_equal(x.ravel()[found["indices"]], found["values"])


def test_entries_of_coefficients_say_what_they_are(saved, x, tmp_path, capsys):
    assert run("encode", saved, "--scheme", "superneurons", "-o", tmp_path / "s.swf") == 0
    assert run("decode", tmp_path / "s.swf", "--sparse", "-o", tmp_path / "s.npz") == 0
    decoded = sw.decode((tmp_path / "s.swf").read_bytes())
    assert f"{decoded.count:,} of {decoded.size:,} entries" in capsys.readouterr().out
    with np.load(tmp_path / "s.npz") as found:
        assert (int(found["width"]), str(found["transform"])) == (2, "fft(chunk=4096)")
        assert found["values"].size == 2 * found["indices"].size
    assert run("inspect", tmp_path / "s.swf") == 0
    assert f"{decoded.count:,} of {decoded.size:,} entries" in capsys.readouterr().out


def test_an_archive_becomes_a_directory_that_no_key_leaves(tmp_path, x):
    np.savez(tmp_path / "grads.npz", **{"a": x, "../b/c": 2 * x})
    assert run("encode", tmp_path / "grads.npz", "--name", "n.", "--scheme", "topk | values=qsgd") == 0
    folder = tmp_path / "grads"
    assert sorted(path.name for path in folder.iterdir()) == ["..%2Fb%2Fc.swf", "a.swf"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grads", "grads.npz"]
    assert (folder / "a.swf").read_bytes() == sw.encode(x, "topk | values=qsgd", name="n.a")


def test_one_bad_array_of_an_archive_leaves_nothing_behind(tmp_path, x, capsys):
    np.savez(tmp_path / "grads.npz", a=x, b=np.arange(3))
    assert "grads.npz[b]: gradients are float32" in fails(capsys, "encode", tmp_path / "grads.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["grads.npz"]


def test_a_write_that_fails_keeps_the_old_file(tmp_path):
    def half(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(OSError, match="No space") as caught:
        tables.write_file(tmp_path / "out", half)
    assert caught.value.filename == str(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"] and (tmp_path / "out").read_bytes() == b"old"


def test_links_and_devices_stay_what_they_are(saved, tmp_path):
    (tmp_path / "real.swf").write_bytes(b"")
    (tmp_path / "link.swf").symlink_to(tmp_path / "real.swf")
    assert run("encode", saved, "-o", tmp_path / "link.swf") == 0
    assert (tmp_path / "link.swf").is_symlink() and sw.decode((tmp_path / "real.swf").read_bytes()).count == 20
    tables.write_file(Path("/dev/null"), lambda file: file.write(b"x"))
    assert Path("/dev/null").is_char_device()


# --- inspect and list --------------------------------------------------------------------------------------------


def test_inspect_shows_the_parts_and_the_bound(saved, tmp_path, capsys):
    run("encode", saved, "--scheme", "topk(5%) | indices=rice | values=qsgd")
    capsys.readouterr()
    assert run("inspect", tmp_path / "w.swf") == 0
    out = capsys.readouterr().out
    for word in ("header", "indices.unary", "values.norms", "checksum", "bound", "100 of 2,000"):
        assert word in out


def test_inspect_shows_counts_as_counts_and_theta_with_its_digits(saved, tmp_path, capsys):
    run("encode", saved, "--scheme", "topk(k=1) | transform=dct(block=16) | values=range_float(bits=9, mantissa=4)")
    capsys.readouterr()
    assert run("inspect", tmp_path / "w.swf") == 0
    notes = capsys.readouterr().out.splitlines()[-7:]
    assert notes[:3] == ["transform.block: 16", "transform.two_dimensional: false", "transform.entries: 2,000"]
    assert notes[3:] == ["transform.kept: 1", "transform.theta: 0.9995", "values.bits: 9", "values.mantissa: 4"]


def test_inspect_json_is_what_inspect_says(saved, tmp_path, capsys):
    run("encode", saved)
    capsys.readouterr()
    assert run("inspect", tmp_path / "w.swf", "--json", "-") == 0
    info = sw.inspect((tmp_path / "w.swf").read_bytes())
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(info))


def test_list_names_every_codec_with_its_settings(tmp_path, capsys):
    assert run("list", "--json", tmp_path / "list.json") == 0
    out = capsys.readouterr().out
    assert "qsgd(bits=7, bucket=512)" in out and "topk(ratio=0.01, k=none)" in out and "Block-adaptive Rice" in out
    found = json.loads((tmp_path / "list.json").read_text())
    assert {slot: [codec["id"] for codec in known] for slot, known in found.items()} == sw.list_codecs()


def test_list_marks_what_is_recommended_in_whole_sentences_of_100_columns(capsys):
    assert run("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert any(line.split()[:3] == ["indices", "rice", "recommended"] for line in lines)
    assert any(line.split()[:3] == ["indices", "bloom", "comparison"] for line in lines)
    assert run("list", "--json", "-") == 0
    known = json.loads(capsys.readouterr().out)
    for slot, entries in known.items():
        statuses = {entry["id"]: entry["status"] for entry in entries}
        assert all(entry["description"].endswith(".") for entry in entries), slot
        assert sum(status in STATUSES for status in statuses.values()) >= len(PACKAGES.get(slot, ("", ""))[1].split())
        recommended = {name for name, status in statuses.items() if status == "recommended"}
        assert recommended == set(RECOMMENDED.get(slot, "").split())


# --- mistakes ----------------------------------------------------------------------------------------------------


def test_an_unknown_codec_is_answered_with_the_nearest(saved, tmp_path, capsys):
    assert "did you mean 'rice'?" in fails(capsys, "encode", saved, "--scheme", "topk | indices=rize")
    assert not (tmp_path / "w.swf").exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda frame: b"garbage", "not a sparsewire frame"),
        (lambda frame: b"", "too few"),
        (lambda frame: frame[:-1], "damaged or cut short"),
        (lambda frame: frame[:4] + b"\x63" + frame[5:], "version 99"),
    ],
)
@pytest.mark.parametrize("command", ["decode", "inspect"])
def test_bad_frames_say_what_is_wrong(command, damage, message, tmp_path, x, capsys):
    (tmp_path / "bad.swf").write_bytes(damage(sw.encode(x, "topk")))
    error = fails(capsys, command, tmp_path / "bad.swf")
    assert message in error and "bad.swf: " in error
    assert [path.name for path in tmp_path.iterdir()] == ["bad.swf"]


def test_a_huge_dense_tensor_is_refused_and_its_entries_are_not(tmp_path, capsys):
    frame = sw.encode(sw.Sparse([5, 2**40], np.ones(2, np.float32), (2**21, 2**20)), "nonzero")
    (tmp_path / "huge.swf").write_bytes(frame)
    assert "--sparse" in fails(capsys, "decode", tmp_path / "huge.swf")
    assert run("decode", tmp_path / "huge.swf", "--sparse") == 0
    with np.load(tmp_path / "huge.npz") as found:
        assert found["indices"].tolist() == [5, 2**40]
    assert "--max-numel" in fails(capsys, "decode", tmp_path / "huge.swf", "--sparse", "--max-numel", 100)
    assert "not enough memory" in fails(capsys, "decode", tmp_path / "huge.swf", "--max-numel", 2**63)


def test_many_entries_in_few_bytes_need_a_word(tmp_path, capsys):
    np.save(tmp_path / "ones.npy", np.ones(2**22 + 1, np.float32))
    assert run("encode", tmp_path / "ones.npy", "--scheme", "topk(100%)") == 0
    error = fails(capsys, "decode", tmp_path / "ones.swf", "-o", tmp_path / "back.npy")
    assert "--max-entries N allows more" in error and "--max-numel" not in error and "--sparse" not in error
    assert run("inspect", tmp_path / "ones.swf") == 0
    words = ["decode", tmp_path / "ones.swf", "-o", tmp_path / "back.npy"]
    assert run(*words, "--max-entries", 2**22 + 1) == 0 and np.load(tmp_path / "back.npy").sum() == 2**22 + 1


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x93NUMPY\x01\x00\x10\x00{'descr': 1, bad", b"PK\x03\x04junk"])
def test_a_file_that_holds_no_arrays_is_named(content, tmp_path, capsys):
    (tmp_path / "bad.npy").write_bytes(content)
    assert "bad.npy" in fails(capsys, "encode", tmp_path / "bad.npy")


def test_pickled_objects_are_not_loaded(tmp_path, capsys):
    np.save(tmp_path / "o.npy", np.array([{}], object), allow_pickle=True)
    assert "plain arrays" in fails(capsys, "encode", tmp_path / "o.npy")


def test_missing_files_and_folders_are_named(saved, tmp_path, capsys):
    assert f"{tmp_path}/none.swf: No such file" in fails(capsys, "decode", tmp_path / "none.swf")
    run("encode", saved)
    target = tmp_path / "no" / "x.npy"
    assert f"{target}: No such file" in fails(capsys, "decode", tmp_path / "w.swf", "-o", target)
    (tmp_path / "folder").mkdir()
    assert "folder: Is a directory" in fails(capsys, "encode", saved, "-o", tmp_path / "folder")


@pytest.mark.parametrize("words", [[], ["bench"], ["decode"], ["bench", "kernels", "--size", "0"], ["nonsense"]])
def test_wrong_usage_exits_with_2(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2 and "usage: sparsewire" in capsys.readouterr().err


def test_ctrl_c_is_quiet(monkeypatch, capsys):
    monkeypatch.setattr("sparsewire.cli.listing.publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert main(["list"]) == 130
    assert capsys.readouterr() == ("", "")


def test_version(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0 and capsys.readouterr().out == f"sparsewire {sw.__version__}\n"


def test_it_is_a_module_that_can_be_run():
    done = subprocess.run([sys.executable, "-m", "sparsewire", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"sparsewire {sw.__version__}\n"), done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["lab", "train", "--workload", "synthetic-10k", "--method", "ddp"],
            "needs torch: pip install 'sparsewire[torch]'",
        ),
        (["lab", "report", "none.jsonl"], "needs matplotlib and jinja2: pip install 'sparsewire[report]'"),
        (["demo"], "needs torch and scikit-learn"),
        (["bench", "codecs", "--size", "1000"], ""),
    ],
    ids=lambda words: " ".join(words[:2]) if isinstance(words, list) else "",
)
def test_with_numpy_alone_commands_run_or_say_what_to_install(words, said, tmp_path):
    """Packages that are not there, as far as this interpreter is told."""
    code = """
import importlib.util, sys
absent = {"torch", "matplotlib", "jinja2", "rich", "sklearn"}
sys.modules |= dict.fromkeys(absent)
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in absent else find(name, *more)
from sparsewire.cli import main
sys.exit(main(sys.argv[1:]))
"""
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == (2 if said else 0) and said in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_list_needs_neither_torch_nor_rich():
    code = "import sys, sparsewire.cli as c; c.main(['list']); sys.exit(len({'torch', 'rich'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
