"""Every code block runs, or its commands exist; or the comment above it says why it cannot be run.

The Python blocks of a page run one after another in one namespace, in a process group of this one rank. What they take
for granted stands above them in a comment, `<!-- setup … -->`; one that begins with `# name.py` is a file that later
ones import. `<!-- not run: why -->` above a block leaves it out.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import re
import shlex
import socket
import sys
import textwrap
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import doc_pages
import pytest
from doc_pages import Block

from sparsewire.cli.entry import command_parser

OPTIONAL = {"torch", "lightning", "accelerate", "transformers", "ray", "flwr", "torchft", "keras", "jax", "optax"}
OUTPUT = {"", "text", "{eval-rst}", "{toctree}"}  # what is no code
BLOCKS = [block for page in doc_pages.PAGES for block in doc_pages.blocks(page) if block.language not in OUTPUT]
WITH_PYTHON = [page for page in doc_pages.PAGES if any(one.page == page and one.language == "python" for one in BLOCKS)]


def test_every_block_is_of_a_language_that_is_tested() -> None:
    assert {block.language for block in BLOCKS} <= {"python", "sh", "toml", "diff"}


# --- Python ------------------------------------------------------------------------------------------------------


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of this rank alone."""
    torch = pytest.importorskip("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": 0, "WORLD_SIZE": 1}.items():
        monkeypatch.setenv(name, str(value))
    torch.manual_seed(0)
    torch.distributed.init_process_group("gloo")
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", WITH_PYTHON, ids=doc_pages.name)
def test_python_blocks_run(page: Path, group: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [page.stem])
    namespace: dict[str, object] = {"__name__": page.stem}
    monkeypatch.syspath_prepend(tmp_path)
    for line, code in python(page):
        if file := re.match(r"# (\w+)\.py\n", code):
            (tmp_path / f"{file[1]}.py").write_text(code)
            monkeypatch.delitem(sys.modules, file[1], raising=False)
        try:
            with redirect_stdout(io.StringIO()):
                exec(compile("\n" * (line - 1) + code, str(page), "exec", dont_inherit=True), namespace)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in OPTIONAL:
                raise
            pytest.skip(f"{error.name} is not installed")


def python(page: Path) -> list[tuple[int, str]]:
    """(line, code) of what runs, in the page's order."""
    text = page.read_text(encoding="utf-8")
    setups = [
        (text[: found.start(1)].count("\n") + 1, found[1])
        for found in re.finditer(r"<!-- setup\n(.*?)-->", text, re.DOTALL)
    ]
    return sorted([*setups, *((one.line + 1, one.text) for one in BLOCKS if one.page == page and runs(one, "python"))])


def runs(block: Block, language: str) -> bool:
    return block.language == language and not block.reason


# --- commands ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [block for block in BLOCKS if runs(block, "sh")], ids=str)
def test_commands_are_there(block: Block) -> None:
    commands = [words for line in re.sub(r"\\\n", " ", block.text).splitlines() for words in split(line)]
    assert commands
    for words in commands:
        check(words)


def split(line: str) -> list[list[str]]:
    """The words of each command in the line."""
    words = shlex.shlex(line.replace(" …", ""), posix=True, punctuation_chars=";&")
    words.whitespace_split = True
    return [list(some) for ends, some in itertools.groupby(words, {";", "&&"}.__contains__) if not ends]


def check(words: list[str]) -> None:
    """The command's program is ours or known, and takes these arguments."""
    command = shlex.join(words)
    words = [word for word in words if word not in ("sudo", "env") and not re.fullmatch(r"[A-Z_]+=.*", word)]
    if "sparsewire" in words[:2] or "--no-python" in words:
        return parses(words[words.index("sparsewire") + 1 :])
    if words[:3] == ["python", "-m", "sparsewire"]:
        return parses(words[3:])
    if words[0] == "make":
        targets = set(re.findall(r"^([\w-]+):", (doc_pages.ROOT / "Makefile").read_text(), re.MULTILINE))
        assert set(words[1:]) <= targets, command
    elif words[0] in ("pip", "python") and "install" in words:
        installs(words[words.index("install") + 1 :])
    elif words[0] in ("python", "torchrun", "accelerate") and any(word.endswith(".py") for word in words):
        script = next(word for word in words if word.endswith(".py"))
        assert "/" not in script or (doc_pages.ROOT / script).exists(), command
    else:
        known = words[0] in {".", "cd", "export", "git", "mpirun", "flwr"} or words[1:3] == ["-m", "venv"]
        assert known, f"{command}: not known to this test; mark it `not run: why`"
    return None


def parses(words: list[str]) -> None:
    said = io.StringIO()
    try:
        with redirect_stderr(said), redirect_stdout(said):
            command_parser().parse_args(words)
    except SystemExit as end:
        assert not end.code, f"sparsewire {shlex.join(words)}: {said.getvalue()}"


def installs(words: list[str]) -> None:
    project = (doc_pages.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    for found in (re.fullmatch(r"(?:sparsewire|\.)\[([\w,]+)\]", word) for word in words):
        for extra in found[1].split(",") if found else []:
            assert re.search(rf"^{extra} = ", extras, re.MULTILINE), f"no extra {extra}"


@pytest.mark.skipif(importlib.util.find_spec("tomllib") is None, reason="Python 3.10 has no tomllib")
@pytest.mark.parametrize("block", [block for block in BLOCKS if runs(block, "toml")], ids=str)
def test_toml_is_read(block: Block) -> None:
    import tomllib

    assert tomllib.loads(block.text)


# --- differences -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [block for block in BLOCKS if runs(block, "diff")], ids=str)
def test_both_sides_of_a_difference_are_python(block: Block) -> None:
    for left_out in "-+":
        lines = [line[1:] for line in block.text.splitlines() if not line.startswith(left_out)]
        compile(textwrap.dedent("\n".join(lines)), str(block), "exec")
