"""``ostinato bench``: run times of a model, alone or next to another runtime."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.cpu.host import usable_processors
from ostinato.errors import OstinatoError
from ostinato.tools.feeds import make_feeds
from ostinato.tools.models import ModelOptions, Prepared, prepare
from ostinato.tools.output import console, printable, table
from ostinato.tools.run import described_inputs, show_assumed
from ostinato.tools.timing import Timing, interleave

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from ostinato.tools.arguments import InputArgument

__all__ = ["Engine", "bench_model", "largest_difference", "onnxruntime_engine", "show"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Engine:
    """A runtime with a model in it.

    Attributes:
        name: of the runtime.
        run: from inputs by name to the outputs in order.
        ready_seconds: what loading and compiling took.
    """

    name: str
    run: Callable[[Mapping[str, Array]], Sequence[Any]]
    ready_seconds: float


def bench_model(
    options: ModelOptions,
    inputs: Sequence[InputArgument],
    *,
    seed: int,
    versus: str | None,
    runs: int | None,
    seconds: float,
) -> dict[str, Any]:
    """Time the model; returns the report, as JSON has it.

    Args:
        options: which model.
        inputs: where inputs come from; those not mentioned are random.
        seed: of the random ones.
        versus: ``"onnxruntime"``, to compare with it, or ``None``.
        runs: how many runs to time; by default as many as fit in ``seconds`` per runtime.
        seconds: see ``runs``.

    Raises:
        OstinatoError: the model or an input cannot be read, or the other runtime is missing.
    """
    feeds = make_feeds(options, inputs, seed)
    other = None
    if versus is not None:  # first: that it is missing should not be learnt after compiling
        other = onnxruntime_engine(options.path, options.threads)
    prepared = prepare(feeds.options)
    calls: dict[str, Callable[[], Any]] = {"ostinato": lambda: prepared.compiled.run(feeds.live)}
    ready = {"ostinato": sum(prepared.seconds.values())}
    report: dict[str, Any] = {
        "model": str(options.path),
        "device": str(prepared.compiled.device),
        "threads": options.threads or usable_processors(),
        **described_inputs(feeds),
    }
    if other is not None:
        engine = other
        calls[engine.name] = lambda: engine.run(feeds.arrays)
        ready[engine.name] = engine.ready_seconds
        report["difference"] = _difference(prepared, calls["ostinato"](), calls[engine.name]())
    timings = interleave(calls, runs=runs, seconds=seconds)
    report["engines"] = {
        name: {"ready_seconds": ready[name], **_milliseconds(timing)}
        for name, timing in timings.items()
    }
    if other is not None:
        report["ratio"] = timings[other.name].median / timings["ostinato"].median
    return report


def onnxruntime_engine(path: Path, threads: int | None) -> Engine:
    """ONNX Runtime with the model of a file.

    Raises:
        OstinatoError: it is not installed, or refuses the model.
    """
    try:
        import onnxruntime
    except ImportError:
        raise OstinatoError(
            "ONNX Runtime is not installed; install it with: pip install onnxruntime"
        ) from None
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads or usable_processors()
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 3
    start = time.perf_counter()
    with_providers = {"sess_options": settings, "providers": ["CPUExecutionProvider"]}
    session = _refused(lambda: onnxruntime.InferenceSession(str(path), **with_providers))
    ready = time.perf_counter() - start
    return Engine(
        "onnxruntime", lambda feeds: _refused(lambda: session.run(None, dict(feeds))), ready
    )


def _refused(call: Callable[[], Any]) -> Any:
    """The call's result; its exceptions, which have no common class, become an error of ours."""
    try:
        return call()
    except Exception as error:
        raise OstinatoError(f"ONNX Runtime refuses the model or the inputs: {error}") from None


def largest_difference(ours: Sequence[Array], theirs: Sequence[Array]) -> float:
    """The largest absolute difference of any two elements; infinite where only one is finite.

    Raises:
        OstinatoError: the results differ in number or in shape.
    """
    if [a.shape for a in ours] != [np.shape(b) for b in theirs]:
        raise OstinatoError("the runtimes' results differ in number or in shape")
    return max((_distance(a, b) for a, b in zip(ours, theirs, strict=True)), default=0.0)


def _distance(ours: Array, theirs: Array) -> float:
    a, b = ours.astype(np.float64), np.asarray(theirs).astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        distance = np.where(same, 0.0, np.abs(a - b))
    return float(np.where(np.isnan(distance), np.inf, distance).max(initial=0.0))


def _difference(prepared: Prepared, ours: Any, theirs: Any) -> dict[str, Any]:
    by_output = {
        name: largest_difference([a], [b])
        for name, a, b in zip(prepared.compiled.outputs, ours, theirs, strict=True)
    }
    finite = {name: d if np.isfinite(d) else "inf" for name, d in by_output.items()}
    largest = max(by_output.values(), default=0.0)
    return {"largest": largest if np.isfinite(largest) else "inf", "by_output": finite}


def _milliseconds(timing: Timing) -> dict[str, Any]:
    values = asdict(timing)
    runs = values.pop("runs")
    return {"runs": runs, **{f"{name}_ms": 1e3 * value for name, value in values.items()}}


def show(report: dict[str, Any]) -> None:
    """Print the report for people."""
    out = console()
    show_assumed(report)
    keys = ("min_ms", "median_ms", "p90_ms", "p99_ms")
    rows = [
        (name, e["runs"], *(f"{e[key]:.3f}" for key in keys), f"{e['ready_seconds']:.2f}")
        for name, e in report["engines"].items()
    ]
    columns = ["runtime", "runs", "min ms", "median ms", "p90 ms", "p99 ms", "ready after s"]
    title = f"{report['device']}, {report['threads']} threads"
    out.print(table(title, columns, rows, numbers=range(1, 7)))
    if "ratio" in report:
        ratio = report["ratio"]
        faster, times = ("Ostinato", ratio) if ratio >= 1 else ("onnxruntime", 1 / ratio)
        out.print(f"{faster} is {times:.2f} times as fast (medians)")
        for name, difference in report["difference"]["by_output"].items():
            text = difference if isinstance(difference, str) else f"{difference:.3g}"
            out.print(f"largest difference of {printable(name)}: {text}", markup=False)
