"""Measurements of kernels, codecs and exchanges on this machine: `sparsewire bench`."""
