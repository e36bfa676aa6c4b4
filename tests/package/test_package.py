"""The package as it is installed: quick to import, at home without a compiler, the same in every process."""

from __future__ import annotations

import doctest
import hashlib
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from corpus import golden
from strategies import BACKENDS

import sparsewire as sw
from sparsewire import kernels

ROOT = Path(sw.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
    if path.name != "__main__.py"
)
BLOCKED = "import sys; sys.modules['sparsewire.kernels._native'] = None\n"
OPTIONAL = {
    "torch",
    "tensorflow",
    "keras",
    "jax",
    "optax",
    "mpi4py",
    "zstandard",
    "matplotlib",
    "rich",
    "sklearn",
    "scipy",
}
OPTIONAL |= {"lightning", "accelerate", "transformers", "torchft", "triton", "jinja2"}


def python(code: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter with the same path."""
    path = os.pathsep.join(
        [str(ROOT.parent), str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
    )
    env = {**os.environ, "PYTHONPATH": path, **environment}
    run = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, env=env)
    assert run.returncode == 0, run.stderr
    return run


# --- import ------------------------------------------------------------------------------------------------------


def test_the_import_brings_little_besides_numpy() -> None:
    """It takes a twentieth of a second (`python -X importtime`); where machines are busy, modules are counted."""
    code = (
        "import sys, numpy; before = set(sys.modules); import sparsewire; "
        "new = {name for name in set(sys.modules) - before if not name.startswith('numpy.')}; "
        "print(len(new), *(name for name in new if '.' not in name and name != 'sparsewire'))"
    )
    count, *foreign = python(code, "-W", "ignore").stdout.split()
    assert int(count) < 90 and len(foreign) < 25
    assert not set(foreign) & {"asyncio", "concurrent", "ctypes", "email", "http", "multiprocessing", "socket", "ssl"}


def test_the_import_brings_no_framework() -> None:
    code = "import sys, sparsewire; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = set(python(code, "-W", "ignore").stdout.split())
    assert not loaded & (OPTIONAL | {"ml_dtypes", "pandas"})


def test_encoding_brings_no_framework_either() -> None:
    code = (
        "import sys, numpy as np, sparsewire as sw\n"
        "sw.decode(sw.encode(np.ones(9, 'f4'), 'topk(50%) | values=qsgd+deflate'))\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    assert not set(python(code, "-W", "ignore").stdout.split()) & OPTIONAL


def test_public_names_are_there_and_documented() -> None:
    for name in sw.__all__:
        assert getattr(sw, name).__doc__


def test_the_torch_room_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "try: import sparsewire.torch\n"
        "except ModuleNotFoundError as error: print(error.name, error)"
    )
    assert python(code, "-W", "ignore").stdout.strip().startswith("torch sparsewire.torch needs PyTorch: pip install")


def test_every_module_without_torch_is_held_to_it() -> None:
    """The import-linter contract names every room but those that may import torch."""
    project = (ROOT.parents[1] / "pyproject.toml").read_text()
    name = 'name = "Only hosts, comm, lab and kernels.device import frameworks and mpi4py"'
    contract = project.partition(name)[2].partition("]")[0]
    rooms = {name.split(".")[1] for name in MODULES if "." in name}
    assert set(re.findall(r'"sparsewire\.(\w+)"', contract)) == rooms - {"torch", "keras", "jax", "comm", "lab"}


# --- with and without the extension ------------------------------------------------------------------------------


def test_without_the_extension_it_works_and_warns_exactly_once() -> None:
    code = BLOCKED + (
        "import warnings\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import sparsewire as sw, numpy as np\n"
        "    from sparsewire import kernels\n"
        "    for _ in range(3): sw.decode(sw.encode(np.ones(9), 'topk(50%) | values=qsgd'))\n"
        "print(kernels.backend(), kernels.native(), [w.category.__name__ for w in caught], caught[0].message)"
    )
    out = python(code).stdout
    assert out.startswith("reference None ['RuntimeWarning']")
    assert "C++ compiler" in out


def test_without_the_extension_the_import_is_no_error_where_warnings_are() -> None:
    run = python(BLOCKED + "import sparsewire", "-W", "error", SPARSEWIRE_KERNELS="")
    assert run.stderr.count("NumPy kernels") == 1


def test_without_the_extension_native_kernels_cannot_be_chosen() -> None:
    code = BLOCKED + (
        "from sparsewire import kernels\ntry: kernels.use('native')\nexcept ImportError as error: print(error)"
    )
    assert "reinstall" in python(code, "-W", "ignore").stdout


@pytest.mark.parametrize("blocked", [False, True])
def test_the_reference_kernels_can_be_asked_for_in_silence(blocked: bool) -> None:
    code = (BLOCKED if blocked else "") + "from sparsewire import kernels; print(kernels.backend())"
    run = python(code, "-W", "error", SPARSEWIRE_KERNELS="reference")
    assert run.stdout == "reference\n"


@pytest.mark.skipif(kernels.native() is None, reason="the extension is not built here")
def test_the_native_kernels_are_the_default_where_they_are_built() -> None:
    code = "from sparsewire import kernels; print(kernels.backend())"
    assert python(code, "-W", "error", SPARSEWIRE_KERNELS="").stdout == "native\n"


def test_there_is_no_third_backend() -> None:
    with pytest.raises(ImportError, match="no cuda kernels"):
        kernels.use("cuda")
    assert kernels.backend() in BACKENDS


# --- other processes ---------------------------------------------------------------------------------------------

DIGEST = """
import hashlib, numpy as np, corpus, sparsewire as sw
digest = hashlib.sha256()
for row in corpus.golden():
    sparse = sw.decode(row.frame)
    digest.update(sparse.indices.tobytes() + sparse.values.tobytes() + repr(sparse.shape).encode())
x = np.arange(-50, 50, dtype=np.float32)
for s in ("randomk(30%) | values=qsgd(5)", "threshold(ratio=20%) | indices=huffman", "topk(9%) | indices=run_length"):
    digest.update(sw.encode(x, s, step=5, name="läyer", seed=2**40, rank=3))
print(digest.hexdigest())
"""


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_process_reads_and_writes_the_same(backend: str, hash_seed: str) -> None:
    choice = "reference" if backend == "reference" else ""
    run = python(DIGEST, "-W", "ignore", PYTHONHASHSEED=hash_seed, SPARSEWIRE_KERNELS=choice)
    assert run.stdout.strip() == digest_here()


def digest_here() -> str:
    """What `DIGEST` prints, in this process."""
    lines: list[str] = []
    exec(DIGEST, {"print": lines.append})
    return lines[0]


def test_golden_frames_are_not_all_alike() -> None:
    assert len({hashlib.sha256(row.frame).digest() for row in golden()}) == len(golden())


# --- documentation -----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*click:DeprecationWarning")  # Flower's command line, when it is imported
@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_documentation_run(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        pytest.skip(f"{error.name} is not installed")
    results = doctest.testmod(module)
    assert results.failed == 0


def test_the_public_functions_have_examples() -> None:
    finder = doctest.DocTestFinder(recurse=False)
    for name in ("encode", "compress", "scheme", "list_codecs", "Scheme", "Sparse"):
        assert any(test.examples for test in finder.find(getattr(sw, name), name)), name
