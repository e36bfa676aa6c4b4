"""The build with compilers that are not up to it: the package is installed all the same, without its native kernels."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("c++")
MISSING = [
    what
    for what, found in {
        "cmake": shutil.which("cmake"),
        "a C++ compiler": COMPILER,
        "nanobind": importlib.util.find_spec("nanobind"),
        "the project's folder": (ROOT / "CMakeLists.txt").exists(),
    }.items()
    if not found
]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not here: {', '.join(MISSING)}")
# The checks of CMake are compiled as they are; kernels and nanobind not at all, or as empty files, which is quick.
FAKE = f"""#!{sys.executable}
import os, sys
words = sys.argv[1:]
ours = [word for word in words if word.endswith(".cpp") and ("/native/" in word or "nanobind" in word)]
if ours and {{broken}} in ours[0]:
    sys.exit(f"fatal error: cannot compile {{{{ours[0]}}}}")
words = [part for word in words for part in (("-x", "c++", os.devnull) if word in ours else (word,))]
os.execv({COMPILER!r}, [{COMPILER!r}, *words])
"""


def installed(folder: Path, broken: str) -> tuple[list[str], str]:
    """(the files that are installed, what was said) with a compiler that fails where a source's path has this in it."""
    fake = folder / "c++"
    fake.write_text(FAKE.format(broken=repr(broken)))
    fake.chmod(0o755)
    build, prefix = folder / "build", folder / "prefix"
    python = f"-DPython_EXECUTABLE={sys.executable}"
    said = ""
    for words in (["-S", ROOT, "-B", build, python], ["--build", build], ["--install", build, "--prefix", prefix]):
        done = subprocess.run(["cmake", *words], capture_output=True, text=True, env={**os.environ, "CXX": str(fake)})
        said += done.stdout + done.stderr
        assert done.returncode == 0, said
    return [path.name for path in prefix.rglob("*") if path.is_file()], said


@pytest.mark.parametrize("broken", ["/native/", "/native/rice.cpp", "nanobind"])
def test_a_compiler_that_fails_on_the_kernels_installs_without_them(broken: str, tmp_path: Path) -> None:
    files, said = installed(tmp_path, broken)
    assert files == []
    assert "installs without them" in " ".join(said.split()) and "fatal error: cannot compile" in said


def test_a_compiler_that_works_installs_the_kernels(tmp_path: Path) -> None:
    (name,), said = installed(tmp_path, "no such file")
    assert name.startswith("_native") and "without" not in said


def test_without_a_compiler_a_wheel_of_python_alone_is_asked_for(tmp_path: Path) -> None:
    """scikit-build-core builds it when CMake fails: the settings for that are there."""
    options = ["-DSPARSEWIRE_GO_WITHOUT=OFF", "-DCMAKE_CXX_COMPILER=/no/such/compiler"]
    done = subprocess.run(["cmake", "-S", ROOT, "-B", tmp_path, *options], capture_output=True, text=True)
    assert done.returncode != 0 and "CMake Error" in done.stderr
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'cmake.define.SPARSEWIRE_GO_WITHOUT = "OFF"' in project
    retry = project.partition("if.failed = true")[2].partition("[[")[0]
    assert "wheel.cmake = false" in retry and 'wheel.py-api = "py3"' in retry


def test_kernels_that_could_be_compiled_once_are_not_installed_after_they_cannot(tmp_path: Path) -> None:
    installed(tmp_path, "no such file")
    shutil.rmtree(tmp_path / "prefix")
    for built in (tmp_path / "build").rglob("*.o"):
        built.unlink()
    assert installed(tmp_path, "/native/")[0] == []
