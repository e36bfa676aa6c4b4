"""Which schemes suit gradients, and whether they shorten a step: `sparsewire advise`."""
