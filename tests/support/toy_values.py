"""A value codec from outside that fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparsewire.codecs.values import RawValues


@dataclass(frozen=True)
class Failing(RawValues):
    """Encodes nothing and decodes nothing."""

    id = "failing"
    wire_id = 0

    def encode(self, values: Any, ctx: Any) -> Any:
        raise ZeroDivisionError("on purpose")

    def decode(self, body: Any, ctx: Any) -> Any:
        raise ZeroDivisionError("on purpose")
