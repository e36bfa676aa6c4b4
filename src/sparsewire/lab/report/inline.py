"""SVG that matplotlib wrote becomes a part of the page: with its colours and fonts, with links and titles at marks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree

from markupsafe import Markup

from .page import LIGHT

SOFT, FAINT, BACK = "#010203", "#040506", "#070809"  # stand for the page's own colours until the picture is in it
VARIABLES = {SOFT: "--soft", FAINT: "--line", BACK: "--back"} | {
    colour: f"--c{index}" for index, colour in enumerate(LIGHT)
}
NAMESPACE, LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
ElementTree.register_namespace("", NAMESPACE[1:-1])
Links = list[tuple[str, str]]  # of marks: the place in the page that each leads to, and its title


def inline(picture: str, links: Links, attributes: Mapping[str, str]) -> Markup:
    """The picture for a page; the addresses in it are numbers of links."""
    root = ElementTree.fromstring(picture)
    _clean(root, links)
    root.attrib = dict(attributes)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _clean(root: ElementTree.Element, links: Links) -> None:
    """Without what only files need, such as names, of which a page has no two alike; with links and titles."""
    shapes = {f"#{one.get('id')}": one for one in root.iter(f"{NAMESPACE}path") if one.get("id")}
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{NAMESPACE}metadata", f"{NAMESPACE}defs"):
                parent.remove(child)
            elif child.tag == f"{NAMESPACE}use":
                _become_path(child, shapes[child.attrib[LINK]])
    for one in root.iter():
        one.tail = None
        one.attrib = {name: _themed(value) for name, value in one.attrib.items() if name != "id"}
        if one.tag == f"{NAMESPACE}a":
            _link(one, *links[int(one.attrib.pop(LINK))])


def _become_path(use: ElementTree.Element, shape: ElementTree.Element) -> None:
    use.tag = shape.tag
    moved = f"translate({use.attrib['x']} {use.attrib['y']})"
    style = f"{use.attrib.get('style', '')}; {shape.attrib.get('style', '')}"
    use.attrib = {"d": shape.attrib["d"], "transform": moved, "style": style}


def _link(anchor: ElementTree.Element, target: str, title: str) -> None:
    if target:
        anchor.set("href", f"#{target}")
    else:
        anchor.tag = f"{NAMESPACE}g"
    if title:
        words = ElementTree.Element(f"{NAMESPACE}title")
        words.text = title
        anchor.insert(0, words)


def _themed(words: str) -> str:
    """An attribute with the page's colours and font, and numbers to a hundredth."""
    words = re.sub(r"#[0-9a-f]{6}\b", lambda match: _variable(match[0]), words)
    words = re.sub(r"font: ([\d.]+px)[^;]*|font-family:[^;]*;?", lambda match: _size(match[1]), words)
    return re.sub(r"-?\d+\.\d{3,}", lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), words)


def _size(size: str | None) -> str:
    return f"font-size: {size}" if size else ""


def _variable(colour: str) -> str:
    return f"var({VARIABLES[colour]})" if colour in VARIABLES else colour
