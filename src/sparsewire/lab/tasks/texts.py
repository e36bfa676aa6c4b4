"""Tasks on text: characters of plays, words of WikiText-2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from sparsewire.errors import InputError

from .task import Data

WINDOW = 32  # tokens
TESTED = 1000  # windows
WORDS = 2000  # the most frequent; all others are one more


def shakespeare(folder: Path) -> Data:
    """Characters; the last tenth is for testing, the twentieth before it for choosing the rate (1,000 windows each)."""
    text = read_text(folder / "tinyshakespeare.txt")
    return windows(list(text), sorted(set(text)))


def wikitext(folder: Path, parts: str = "a", known: int = WORDS) -> Data:
    """Words; all but the most frequent are one."""
    words = " ".join(read_text(folder / f"wikitext2-{part}.txt") for part in parts).split()
    return windows(words, [word for word, _ in Counter(words).most_common(known)])


def read_text(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if len(text) < 100 * WINDOW:
        raise InputError(f"{path} is too short to train on")
    return text


def windows(tokens: Sequence[str], known: Sequence[str]) -> Data:
    number = {token: place for place, token in enumerate(known)}
    ids = torch.tensor([number.get(token, len(known)) for token in tokens])
    first, second = len(ids) * 17 // 20, len(ids) * 18 // 20
    train, valid, test = (
        part.unfold(0, WINDOW + 1, stride)
        for part, stride in ((ids[:first], 1), (ids[first:second], WINDOW), (ids[second:], WINDOW))
    )
    parts = [(part[:, :-1], part[:, 1:]) for part in (train, valid[:TESTED], test[:TESTED])]
    return Data(parts[0], parts[1], parts[2], len(known) + 1)


class Transformer(nn.Module):
    """Layers with 4 heads that see only what came before."""

    mask: torch.Tensor

    def __init__(self, data: Data, width: int = 128, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(data.classes, width)
        self.places = nn.Parameter(0.02 * torch.randn(WINDOW, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, data.classes))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(WINDOW))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.embedding(x) + self.places
        for layer in self.layers:
            y = layer(y, src_mask=self.mask, is_causal=True)
        logits: torch.Tensor = self.head(y)
        return logits


class Recurrent(nn.Module):
    """An LSTM; `sparse`: the gradient of its embedding is rows."""

    def __init__(self, data: Data, width: int = 128, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(data.classes, width, sparse=sparse)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, data.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.lstm(self.embedding(x))[0])
        return logits
