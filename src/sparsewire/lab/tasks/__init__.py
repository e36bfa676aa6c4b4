"""Workloads: data, models, optimizers and scores."""
