"""Results as one page: `sparsewire lab report`."""
