"""A job for ranks that must be ended: it waits for longer than any test does."""

from __future__ import annotations

import time


def wait(worker: object) -> None:
    time.sleep(600)
