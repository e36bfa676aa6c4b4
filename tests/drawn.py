"""What a picture shows, as far as a test can see it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

LEAST = 60  # pixels of one colour that are a line or a bar; the edges of letters have fewer


def colours_of(path: Path) -> int:
    """How many colours, other than greys, a PNG is drawn in: an empty frame with its labels has none."""
    from matplotlib.image import imread

    pixels = np.round(255 * imread(path)[..., :3]).astype(np.int64).reshape(-1, 3)
    vivid = pixels[np.ptp(pixels, axis=1) > 60]
    _, counts = np.unique(vivid @ [1, 256, 65_536], return_counts=True)
    return int((counts >= LEAST).sum())
