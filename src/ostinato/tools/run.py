"""``ostinato run``: one run of a model, and its outputs."""

from __future__ import annotations

import time
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import InputError
from ostinato.tools.feeds import Feeds, make_feeds
from ostinato.tools.models import ModelOptions, prepare
from ostinato.tools.output import console, printable, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ostinato.tools.arguments import InputArgument

__all__ = ["run_model", "show", "write_npz"]

Array = np.ndarray[Any, Any]

_SHOWN = 6


def run_model(
    options: ModelOptions, inputs: Sequence[InputArgument], *, seed: int, output: Path | None
) -> dict[str, Any]:
    """Run the model once; returns the report, as JSON has it.

    Args:
        options: which model.
        inputs: where inputs come from; those not mentioned are random.
        seed: of the random ones.
        output: a ``.npz`` file to write the outputs to.

    Raises:
        OstinatoError: the model or an input cannot be read, or does not fit.
    """
    feeds = make_feeds(options, inputs, seed)
    prepared = prepare(feeds.options)
    start = time.perf_counter()
    results = prepared.compiled.run(feeds.live)
    seconds = {**prepared.seconds, "run": time.perf_counter() - start}
    outputs = dict(zip(prepared.compiled.outputs, results, strict=True))
    if output is not None:
        write_npz(output, outputs)
    return {
        "model": str(options.path),
        "device": str(prepared.compiled.device),
        **described_inputs(feeds),
        "outputs": [_summary(name, array) for name, array in outputs.items()],
        "written": None if output is None else str(output),
        "seconds": seconds,
    }


def described_inputs(feeds: Feeds) -> dict[str, Any]:
    """The part of a report on the inputs of the run."""
    described = [
        {"name": name, "dtype": array.dtype.name, "shape": list(array.shape)}
        for name, array in feeds.arrays.items()
    ]
    return {"inputs": described, "assumed_dims": feeds.assumed}


def write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays as ``np.load`` reads them. Unlike with ``np.savez``, any name will do.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        with zipfile.ZipFile(path, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {str(path)!r}: {error}") from None


def _summary(name: str, array: Array) -> dict[str, Any]:
    """A summary of an output; statistics are of its finite elements."""
    numbers = array.astype(np.float64) if array.dtype.kind not in "iu" else array
    finite = numbers[np.isfinite(numbers)]
    statistics: dict[str, Any] = dict.fromkeys(("min", "mean", "max"))
    if finite.size:
        low, high = finite.min().item(), finite.max().item()
        statistics = {"min": low, "mean": float(finite.mean(dtype=np.float64)), "max": high}
    return {
        "name": name,
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        **statistics,
        "non_finite": int(array.size - finite.size),
        "first": [_json_number(v) for v in numbers.reshape(-1)[:_SHOWN].tolist()],
    }


def _json_number(value: float) -> float | str:
    """A number for JSON, which has no NaN and no infinities."""
    return value if np.isfinite(value) else str(value)


def show(report: dict[str, Any]) -> None:
    """Print the report for people."""
    out = console()
    show_assumed(report)
    rows = [
        (
            tensor["name"],
            tensor["dtype"],
            ", ".join(map(str, tensor["shape"])) or "scalar",
            *(_short(tensor[key]) for key in ("min", "mean", "max")),
            " ".join(map(_short, tensor["first"])),
        )
        for tensor in report["outputs"]
    ]
    columns = ["output", "dtype", "shape", "min", "mean", "max", "first values"]
    out.print(table(f"Outputs on {report['device']}", columns, rows, numbers=[3, 4, 5]))
    for tensor in report["outputs"]:
        if tensor["non_finite"]:
            out.print(
                f"{printable(tensor['name'])}: {tensor['non_finite']} elements are not finite",
                markup=False,
            )
    seconds = report["seconds"]
    out.print(
        f"loaded in {seconds['load']:.2f} s, compiled in {seconds['compile']:.2f} s, "
        f"ran in {1e3 * seconds['run']:.2f} ms"
    )
    if report["written"]:
        out.print(f"written to {printable(report['written'])}", markup=False)


def show_assumed(report: dict[str, Any]) -> None:
    """Print the sizes of dynamic dims that were not chosen by ``--dim``."""
    if report["assumed_dims"]:
        sizes = ", ".join(f"{name}={size}" for name, size in report["assumed_dims"].items())
        text = printable(f"for want of --dim: {sizes}")
        console().print(text, style="yellow", markup=False)


def _short(value: float | str | None) -> str:
    return "-" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)
