"""Loading and compiling the model of a command, with progress on a terminal."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ostinato.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ostinato.backends.base import Progress
    from ostinato.ops.builder import Graph
    from ostinato.runtime.compiled_graph import CompiledGraph

__all__ = ["ModelOptions", "Prepared", "load", "prepare"]


@dataclass(frozen=True)
class ModelOptions:
    """The options of commands that say how to load and compile a model.

    Attributes:
        path: of the file.
        dims: sizes of dynamic dims, as :func:`ostinato.load_onnx` takes them.
        constants: inputs to fix, as :func:`ostinato.load_onnx` takes them.
        device: the device's name.
        threads: how many threads run it; ``None`` for all.
        target: the instruction set level to compile for.
        cast: convert inputs of another dtype instead of refusing them.
    """

    path: Path
    dims: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    threads: int | None = None
    target: str = "host"
    cast: bool = False


@dataclass(frozen=True)
class Prepared:
    """A compiled model, and the seconds that each step took."""

    graph: Graph
    compiled: CompiledGraph
    seconds: dict[str, float]


def load(options: ModelOptions) -> tuple[Graph, float]:
    """The model's graph and the seconds that loading took.

    Raises:
        OstinatoError: see :func:`ostinato.load_onnx`.
    """
    import ostinato as ost

    start = time.perf_counter()
    with _progress(f"loading {options.path.name}"):
        graph = ost.load_onnx(options.path, dims=options.dims, constants=options.constants)
    return graph, time.perf_counter() - start


def prepare(options: ModelOptions, loaded: tuple[Graph, float] | None = None) -> Prepared:
    """Load and compile the model; ``loaded`` is what :func:`load` gave, if it ran already.

    Raises:
        OstinatoError: see :func:`ostinato.load_onnx` and :meth:`ostinato.Session.compile`.
    """
    import ostinato as ost

    graph, load_seconds = loaded or load(options)
    compile_options = ost.CompileOptions(target=options.target, cast_inputs=options.cast)
    session = ost.Session(options.device, threads=options.threads, options=compile_options)
    start = time.perf_counter()
    with _progress("compiling") as progress:
        compiled = session.compile(graph, progress=progress)
    seconds = {"load": load_seconds, "compile": time.perf_counter() - start}
    return Prepared(graph, compiled, seconds)


@contextmanager
def _progress(what: str) -> Iterator[Progress | None]:
    """A progress bar on stderr while the body runs; nothing unless stderr is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from ostinato.tools.output import console, printable

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape(printable(what)), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
