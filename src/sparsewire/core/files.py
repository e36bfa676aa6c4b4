"""`write_file`: a file is written whole or not at all, whenever its writer is killed.

1. The content goes to a temporary file in the same folder, which the writer locks for as long as it lives.
2. The temporary file is on the disk (`fsync`) before it takes the target's name, which is one step of the file system.
3. The folder is on the disk before the call returns.
Temporary files whose writer was killed have no lock any more: the next writer of the same file removes them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

if sys.platform != "win32":
    import fcntl

PathLike = str | os.PathLike[str]
LONGEST = 48  # characters of the target's name in that of a temporary file: file systems allow 255 bytes


def write_file(path: PathLike, write: Callable[[BinaryIO], object]) -> None:
    """Replaces the file by what `write` puts into a new one; a device such as /dev/null is written to as it is."""
    place = Path(os.path.realpath(path))
    try:
        if place.exists() and not (place.is_file() or place.is_dir()):
            with open(place, "wb") as device:
                write(device)
        else:
            _replace(place, write)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def remove_abandoned(folder: Path, name: str) -> None:
    """Removes temporary files of killed writers, of all files whose names begin with `name`."""
    start = f".{name[:LONGEST]}"
    for entry in list(os.scandir(folder)):
        if entry.name.startswith(start) and entry.name.endswith(".tmp"):
            _remove_if_abandoned(Path(entry.path))


def _replace(place: Path, write: Callable[[BinaryIO], object]) -> None:
    remove_abandoned(place.parent, place.name)
    part, file = _open_part(place)
    try:
        with file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            os.chmod(part, _mode(place))
            if sys.platform == "win32":
                file.close()
            os.replace(part, place)
        _sync_folder(place.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _open_part(place: Path) -> tuple[Path, BinaryIO]:
    """A new temporary file, locked; another writer may remove one between its making and its locking."""
    while True:
        handle, name = tempfile.mkstemp(".tmp", f".{place.name[:LONGEST]}.", place.parent)
        file = os.fdopen(handle, "wb")
        with suppress(OSError):  # a file system without locks
            _lock(file)
        if os.path.exists(name):
            return Path(name), file
        file.close()


def _lock(file: BinaryIO) -> None:
    if sys.platform != "win32":
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _remove_if_abandoned(part: Path) -> None:
    if sys.platform == "win32":
        return
    with suppress(OSError), open(part, "rb") as file:  # locked by a writer at work, or removed meanwhile
        _lock(file)
        part.unlink()


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _mode(path: Path) -> int:
    """The mode that `open` would leave: that of the replaced file, or what the umask allows."""
    if path.exists():
        return path.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
