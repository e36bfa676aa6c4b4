"""Two ranks train on digits, side by side: `sparsewire demo`."""
