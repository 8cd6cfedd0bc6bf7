"""Eleven threads that submit in every way there is, for the thread sanitizer to watch.

python -m tests.ordering.load SECONDS
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

import ostinato as ost

from .graphs import entry, filled, ledger_graph


def calls() -> list[Callable[[], object]]:
    """A call for each thread, on a graph, clones of it, a session and recordings."""
    session = ost.Session("cpu", threads=2)
    context = session.context
    graph = session.compile(ledger_graph())
    graph.bind_handle("h", filled(0))
    clone, apart = graph.clone(), graph.clone(context=ost.Session("cpu", threads=2).context)
    bound = graph.bind(entry(1), [filled(0), filled(0)])
    executor = ost.GraphExecutor(context)
    buffer = executor.buffer(filled(0))
    inputs = [entry(1)[name] for name in graph.inputs]

    def record(key: int) -> None:
        context.begin_graph_capture()
        bound()
        graph.commit_no_wait(entry(1))
        context.end_graph_capture(key)
        context.replay_graph(key)

    def write_and_read() -> None:
        graph.set_param("w", filled(2))
        graph.read_handle("total")
        graph.read_output_row(0, 0)

    def commit() -> None:
        for _ in range(10):
            graph.commit_no_wait(entry(1, None))
        graph.sync_pending()

    def encode() -> None:
        with executor.begin() as s:
            s.add(buffer, 1.0, out=buffer)

    record(1)
    return [
        bound,
        bound,
        commit,
        encode,
        write_and_read,
        lambda: record(2),
        lambda: context.replay_graph(1),
        lambda: graph.run(entry(1)),
        lambda: graph.run_slots(*inputs),
        lambda: clone.run(entry(1, heavy=True)),
        lambda: apart.run(entry(1)),
    ]


def main(seconds: float) -> int:
    """Run all threads; returns the number of those that failed."""
    end = time.monotonic() + seconds
    errors: list[BaseException] = []

    def repeat(call: Callable[[], object]) -> None:
        try:
            while time.monotonic() < end:
                call()
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=repeat, args=[call]) for call in calls()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{len(threads)} threads, {len(errors)} failed")
    return len(errors)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
