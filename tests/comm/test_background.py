"""`comm/background.py`: threads of ours that are within torch when the interpreter ends do not abort the process."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

SCRIPT = """
import threading
import time
import torch
from sparsewire.comm import background

stop, begun = threading.Event(), threading.Barrier(3)

def work():
    begun.wait()
    while not stop.is_set():
        torch.ones(200, 200) @ torch.ones(200, 200)

class Late:
    def __del__(self, sleep=time.sleep):
        sleep(0.3)  # the interpreter is ending, and its lock is free: threads that are left meet their end

late = Late()
for number in range(2):
    background.start(work, f"works-{number}", stop.set)
begun.wait()
"""


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_threads_within_torch_end_before_the_interpreter_does() -> None:
    facts = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=facts, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


HELD = """
import atexit, threading, time, weakref
import numpy as np
held = []
atexit.register(lambda: print("held" if held[0]() is not None else "free"))  # the first to register is called last

import torch.distributed as dist
from sparsewire.comm.torch import TorchCommunicator

group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
comm, begun = TorchCommunicator(group), threading.Event()
comm.barrier()

def hold(array):
    held.append(weakref.ref(array))
    comm._lent.append(held[0])
    begun.set()
    time.sleep(0.3)

threading.Thread(target=lambda: hold(np.zeros(3).view()), daemon=True).start()  # as gloo's threads do, for a moment
begun.wait()
"""


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_arrays_that_the_engine_holds_are_waited_for_before_the_interpreter_ends() -> None:
    facts = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", HELD], env=facts, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "free\n"), done.stderr
