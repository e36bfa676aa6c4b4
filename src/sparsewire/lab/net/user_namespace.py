"""A user namespace, in which a user without root can set up networks, where the kernel allows that."""

from __future__ import annotations

import os
import shutil
import subprocess

from sparsewire.errors import SparsewireError

from .stopping import dies_with_us

SBIN = os.pathsep + "/usr/sbin" + os.pathsep + "/sbin"  # where tc is; not in the path of a user without root
TOOLS = ("ip", "tc", "unshare", "nsenter", "mount")
# Gives the names of network namespaces a folder of their own; then holds all until our end of the pipe is closed.
HOLD = """
folder=$(readlink -f /var/run) && { ! test -d "$folder/netns" || folder=$folder/netns; }
mount -t tmpfs tmpfs "$folder" && echo ready && exec cat >&2
"""


class UserNamespace:
    """`prefix` runs a command in it. It is gone with the process that holds it, which ends with us."""

    def __init__(self) -> None:
        path = os.environ.get("PATH", os.defpath) + SBIN
        missing = [tool for tool in TOOLS if shutil.which(tool, path=path) is None]
        if missing:
            raise SparsewireError(f"{' and '.join(missing)} not found: install iproute2 and util-linux")
        words = ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c", HOLD]
        pipe = subprocess.PIPE
        self._holder = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True, preexec_fn=dies_with_us()
        )
        assert self._holder.stdout
        if self._holder.stdout.readline() != "ready\n":
            raise SparsewireError(f"no user namespace: {self._holder.communicate()[1].strip()}")
        inside = ["--target", str(self._holder.pid), "--user", "--net", "--mount", "--preserve-credentials"]
        self.prefix = ("nsenter", *inside, "--", "env", f"PATH={path}")

    def __enter__(self) -> UserNamespace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()
