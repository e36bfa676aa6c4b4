"""The command line: `sparsewire list | encode | decode | inspect | advise | bench | lab | demo`."""

from .entry import main

__all__ = ["main"]
