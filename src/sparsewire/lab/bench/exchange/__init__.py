"""Bytes and time of every exchange against the number of ranks: `sparsewire bench exchange`."""
