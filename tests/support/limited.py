"""Decodes frames with little memory: `python limited.py MEGABYTES MAX_ENTRIES BACKEND < lines of name and hex`.

Each in a fork whose address space may grow by so much and no more, native memory included. Prints the names of the
frames that needed more, or a processor for longer than SECONDS.
"""

from __future__ import annotations

import os
import resource
import sys

import corpus

import sparsewire as sw
from sparsewire import kernels

SECONDS = {"native": 4, "reference": 60}


def decode_limited(data: bytes, megabytes: int, max_entries: int, seconds: int) -> bool:
    child = os.fork()
    if child == 0:
        corpus.limit_memory(megabytes)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        os._exit(fits(data, max_entries))
    return os.waitpid(child, 0)[1] == 0


def fits(data: bytes, max_entries: int) -> int:
    """An exit status: 0 if the frame was decoded or refused for what it is."""
    try:
        corpus.survive(data, None, max_entries)
    except MemoryError:
        return 1
    return 0


def main() -> None:
    megabytes, max_entries, backend = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    kernels.use(backend)
    sw.decode(sw.encode([1.0], "topk"))  # what is imported when first needed
    for line in sys.stdin:
        name, text = line.split()
        if not decode_limited(bytes.fromhex(text), megabytes, max_entries, SECONDS[backend]):
            print(name)


if __name__ == "__main__":
    main()
