"""Trainings over such links, a line of results each: `sparsewire lab train`."""
