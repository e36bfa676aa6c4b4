"""The entry point: reads the words, runs the command, and turns errors into one line and an exit status."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from sparsewire import __version__
from sparsewire.errors import SparsewireError

from .advise import add_advise
from .bench import add_bench
from .frames import add_frames
from .lab import add_demo, add_lab, add_selfcheck
from .listing import add_list
from .parsers import add_group


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command. Exit status: 0 success, 1 a check failed, 2 wrong usage or input, 130 interrupted."""
    _open_outputs()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    args = command_parser().parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader closed the pipe; without this Python reports it again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except MemoryError as error:
        return _fail(f"not enough memory: {error}")
    except (SparsewireError, OSError, UnicodeError) as error:
        return _fail(_describe(error))


def _open_outputs() -> None:
    """Those that were closed before the start, as by `>&-`, lead nowhere; no file that is opened later is in their
    place."""
    if sys.stdout is None or sys.stderr is None:
        while (free := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(free)
        sys.stdout, sys.stderr = sys.stdout or os.fdopen(1, "w"), sys.stderr or os.fdopen(2, "w")


def _fail(message: str) -> int:
    print(f"sparsewire: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def command_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="sparsewire", description="Compress gradients into frames; inspect, decode and measure them."
    )
    parser.add_argument("--version", action="version", version=f"sparsewire {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_list(commands)
    add_frames(commands)
    add_advise(commands)
    add_bench(add_group(commands, "bench", "measure kernels, codecs or exchanges on this machine"))
    add_lab(add_group(commands, "lab", "real ranks on links of a given rate: any command, trainings, a report"))
    add_demo(commands)
    add_selfcheck(commands)
    return parser
