"""Compression between replicas whose parameters FSDP2 has sharded: `attach(model, …, replicas=mesh["replicate"])`."""
