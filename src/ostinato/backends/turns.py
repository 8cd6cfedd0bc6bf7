"""Taking turns: a lock that a forked process does not inherit in use."""

from __future__ import annotations

import os
import threading

__all__ = ["Turn"]


class Turn:
    """A lock for ``with``; its holder may take it again.

    A child of ``os.fork`` finds it free, whoever held it in the parent: the thread that did so does
    not exist in the child.
    """

    def __init__(self) -> None:
        self._of_process = {os.getpid(): threading.RLock()}

    def __enter__(self) -> None:
        process = os.getpid()
        lock = self._of_process.get(process)
        if lock is None:  # one step, so that two threads of a child agree on which lock it is
            lock = self._of_process.setdefault(process, threading.RLock())
        lock.acquire()
        self._held = lock  # by this thread, until it is released: nobody else writes it

    def __exit__(self, *exception: object) -> None:
        self._held.release()
