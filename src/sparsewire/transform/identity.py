"""`identity`: the gradient as it is."""

from dataclasses import dataclass

from ..contract import Transform


@dataclass(frozen=True)
class Identity(Transform):
    """No transform."""

    id = "identity"
    wire_id = 1
