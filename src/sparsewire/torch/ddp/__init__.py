"""Compression for `DistributedDataParallel`: attach, the hook, the communication thread."""
