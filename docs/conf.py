"""Sphinx builds the site from the pages in this folder: `make docs`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import generated

import sparsewire

project = "sparsewire"
author = copyright = "The sparsewire developers"
release = version = sparsewire.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton"]
exclude_patterns = ["_build", "results"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]

smartquotes = False
highlight_language = "none"

html_theme = "furo"
html_title = f"sparsewire {version}"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_show_sphinx = False
copybutton_prompt_text = "$ "

default_role = "code"  # docstrings are plain text with `names`
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autodoc_default_options = {"members": True, "show-inheritance": True}
maximum_signature_line_length = 88


def fill_in(app, name, source):
    """Puts what the package knows of itself where a page has a line `<!-- generated: … -->`."""
    for what, write in generated.SECTIONS.items():
        mark = f"<!-- generated: {what} -->"
        if mark in source[0]:
            source[0] = source[0].replace(mark, write())


ARGUMENT = re.compile(r"([a-z_]+(?:, [a-z_]+)*): ")


def as_rst(app, what, name, documented, options, lines):
    """Docstrings are plain text: paragraphs of `argument: what it is` are shown as lists."""
    text = re.sub(r"((?<![\w`])`[^`]+`)(?=\w)", r"\1\\ ", "\n".join(lines))
    lines[:] = [line for part in text.split("\n\n") for line in [*paragraph(part.split("\n")), ""]]


def paragraph(lines):
    starts = [bool(ARGUMENT.match(line)) for line in lines]
    if not (starts[0] and (sum(starts) > 1 or any(line.startswith("    ") for line in lines))):
        return lines
    return [
        ARGUMENT.sub(r"* **\1**: ", line) if start else f"  {line.strip()}"
        for line, start in zip(lines, starts, strict=True)
    ]


def setup(app):
    app.connect("source-read", fill_in)
    app.connect("autodoc-process-docstring", as_rst)
    return {"parallel_read_safe": True}
