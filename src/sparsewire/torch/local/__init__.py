"""`local_steps` for a torch model."""
