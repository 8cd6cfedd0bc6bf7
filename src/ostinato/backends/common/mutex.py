"""A fork-safe mutex."""

from __future__ import annotations

import os
import threading

__all__ = ["Mutex"]


class Mutex:
    """A reentrant lock, to be held with ``with``, that is free in a child of ``os.fork``.

    The thread that held it in the parent does not exist in the child, and could never release it
    there.
    """

    def __init__(self) -> None:
        self._of_process = {os.getpid(): threading.RLock()}

    def __enter__(self) -> None:
        process = os.getpid()
        lock = self._of_process.get(process)
        if lock is None:  # one step, so that two threads of a child agree on which lock it is
            lock = self._of_process.setdefault(process, threading.RLock())
        lock.acquire()
        self._held = lock  # written by no other thread before the release

    def __exit__(self, *exception: object) -> None:
        self._held.release()
