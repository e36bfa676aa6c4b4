"""What can be seen in a picture."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ENOUGH = 15  # pixels: a piece of a line, or its swatch in a legend


def colours(path: Path) -> set[str]:
    """The colours of a PNG, as they are written on the web, that are more than the edge of something."""
    from matplotlib.image import imread

    pixels = (255 * imread(path)[..., :3]).round().astype(int).reshape(-1, 3)
    return {"#{:02x}{:02x}{:02x}".format(*one) for one, count in Counter(map(tuple, pixels)).items() if count >= ENOUGH}


def lines(path: Path) -> int:
    """How many colours, other than greys, a PNG has: an empty frame with its labels has none."""
    parts = [[int(one[at : at + 2], 16) for at in (1, 3, 5)] for one in colours(path)]
    return sum(max(part) - min(part) > 60 for part in parts)
