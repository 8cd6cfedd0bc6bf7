"""The fork-safe mutex."""

from __future__ import annotations

import os
import threading

from ostinato.backends.common.mutex import Mutex


def test_its_holder_may_take_it_again():
    mutex = Mutex()
    with mutex, mutex:
        assert not taken_by_another_thread(mutex, within=0.1)
    assert taken_by_another_thread(mutex)


def test_it_is_free_in_a_child_whatever_thread_of_the_parent_holds_it():
    mutex, held, done = Mutex(), threading.Event(), threading.Event()

    def hold() -> None:
        with mutex:
            held.set()
            done.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(30)
    child = os.fork()
    if not child:
        os._exit(0 if taken_by_another_thread(mutex) else 1)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not taken_by_another_thread(mutex, within=0.1)
    finally:
        done.set()
        holder.join()


def taken_by_another_thread(mutex: Mutex, within: float = 30.0) -> bool:
    """Whether another thread acquires the mutex within so many seconds."""
    taken = threading.Event()

    def take() -> None:
        with mutex:
            taken.set()

    threading.Thread(target=take, daemon=True).start()
    return taken.wait(within)
