"""Compression for torchft: `CompressedManager` takes the place of `torchft.Manager`."""

try:
    import torchft as _torchft  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"sparsewire.torch.torchft needs torchft ({error.name} is missing): pip install 'sparsewire[torchft]'",
        name=error.name,
    ) from None

from .manager import CompressedManager

__all__ = ["CompressedManager"]
