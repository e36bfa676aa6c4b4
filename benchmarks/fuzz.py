"""Decodes mutated golden frames and counts what happens: `python benchmarks/fuzz.py --count 100000`.

Exit status 1, with the frame in hex, if anything but a `SparsewireError` or a valid tensor within the caps came out.
Needs neither pytest nor hypothesis, so it also runs under a sanitizer build.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import corpus

from sparsewire import kernels


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000, help="mutants to decode (100000)")
    parser.add_argument("--seed", type=int, default=0, help="which mutants (0)")
    parser.add_argument("--kernels", choices=["native", "reference"], help="the backend (what the import chose)")
    parser.add_argument("--claims", action="store_true", help="also small frames that ask for much")
    parser.add_argument("--memory", type=int, help="MB that the address space may grow by; not under a sanitizer")
    return parser.parse_args()


def cases(options: argparse.Namespace) -> Iterator[tuple[bytes, int | None, int]]:
    """(bytes, max_numel, max_entries)"""
    if options.claims:
        yield from ((data, None, 2**28) for _, data in corpus.claims())
    for data, source, _ in corpus.mutants(options.count, options.seed):
        yield data, source.max_numel, corpus.MAX_ENTRIES


def run(options: argparse.Namespace) -> collections.Counter[str]:
    results: collections.Counter[str] = collections.Counter()
    last = time.monotonic()
    for number, (data, max_numel, max_entries) in enumerate(cases(options), 1):
        try:
            results[corpus.survive(data, max_numel, max_entries)] += 1
            corpus.survive_inspection(data, max_numel)
        except BaseException:
            print(f"\nfinding, case {number}: {data.hex()}", file=sys.stderr)
            raise
        if time.monotonic() - last > 1:
            last = time.monotonic()
            print(f"\r{number:,} of {options.count:,}", end="", file=sys.stderr, flush=True)
    return results


def main() -> int:
    options = parse()
    warnings.simplefilter("error")
    if options.kernels:
        kernels.use(options.kernels)
    if options.memory:
        corpus.limit_memory(options.memory)
    started = time.monotonic()
    try:
        results = run(options)
    except Exception:
        traceback.print_exc()
        return 1
    seconds = time.monotonic() - started
    summary = ", ".join(f"{name} {count:,}" for name, count in results.most_common())
    print(f"\r{results.total():,} frames on the {kernels.backend()} kernels in {seconds:.1f} s: {summary}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
