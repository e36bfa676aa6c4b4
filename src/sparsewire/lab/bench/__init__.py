"""What kernels, codecs and exchanges cost on this machine: `sparsewire bench`."""
