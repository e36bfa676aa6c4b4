"""Real ranks on links of a given rate, and processes that never outlive the lab: `sparsewire lab net`."""
