"""Saving and resuming: files per rank, and torch.distributed.checkpoint."""
