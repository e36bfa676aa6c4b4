"""Files and functions are short enough to be read in one sitting."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "benchmarks", "examples")
ENDINGS = {".py", ".cpp", ".hpp", ".sh"}
LINES, FUNCTION_LINES = 300, 60


def long_functions(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{node.name} has {lines} lines"


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_and_no_function_is_too_long(folder: str) -> None:
    files = sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in ENDINGS)
    assert files
    found = []
    for path in files:
        source = path.read_text(encoding="utf-8")
        if len(source.splitlines()) > LINES:
            found.append(f"{path.relative_to(ROOT)} has {len(source.splitlines())} lines")
        functions = long_functions(source) if path.suffix == ".py" else ()
        found += [f"{path.relative_to(ROOT)}: {text}" for text in functions]
    assert not found, "\n".join(found)


def test_a_function_is_measured_from_its_name_to_its_last_line() -> None:
    body = "    pass\n" * (FUNCTION_LINES - 1)
    assert not list(long_functions(f"@wrapped\ndef short():\n{body}"))
    assert list(long_functions(f"class A:\n  async def long():\n{body}    pass\n")) == ["long has 61 lines"]
