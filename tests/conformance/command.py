"""The command ``python -m tests.conformance``; see :func:`main`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from tests.devices.catalogue import abilities, catalogued, is_known, missing
from tests.devices.refusals import refused
from tests.devices.registered import open_session

from .cuda_stages import CudaSuites
from .stages import ROOT, Settings, Stage, Suites

__all__ = ["main"]

#: Devices with stages of their own.
_SUITES: dict[str, type[Suites]] = {"cuda": CudaSuites}


def main(arguments: Sequence[str] | None = None, device: str | None = None) -> int:
    """Run the conformance of a device, and print a table.

    Args:
        arguments: of the command line.
        device: the default of ``--device``.

    Returns:
        The exit status: 1 if anything failed; 0 also where the device is not here, which is said.
    """
    options = _parser(device).parse_args(arguments)
    settings = Settings(
        device=options.device,
        graphs=options.graphs,
        first=options.first,
        workers=options.workers,
        sample=options.sample,
        seconds=options.seconds,
        keyword=options.keyword,
        logs=options.logs,
    )
    if not is_known(settings.device):
        raise SystemExit(f"--device: {missing(settings.device)}")
    if (reason := missing(settings.device)) is not None:
        print(f"skipped: {reason}")
        _write(options.json, {"device": settings.device, "skipped": reason})
        return 0
    stages = _SUITES.get(settings.device.partition(":")[0], Suites)(settings).stages()
    wanted = options.stages.split(",") if options.stages else list(stages)
    if unknown := [name for name in wanted if name not in stages]:
        raise SystemExit(f"--stages: {unknown[0]!r} is none of {', '.join(stages)}")
    outcome, done = _header(settings, options.machine), list[Stage]()
    for name in wanted:
        done.append(stages[name]())
        _write(options.json, {**outcome, "stages": [asdict(stage) for stage in done]})
    _print(settings.device, done)
    return 0 if all(stage.good for stage in done) else 1


def _parser(device: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance",
        description="Run the conformance of a device, with the cases and the oracle of the CPU.",
    )
    parser.add_argument(
        "--device", default=device, required=device is None, help="such as cpu, xla or cuda:1"
    )
    parser.add_argument("--stages", help="some of them, with commas between; all by default")
    parser.add_argument("--graphs", type=int, default=500, help="random graphs")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first random graph")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--sample", type=int, default=1, help="run one test of so many")
    parser.add_argument("--seconds", type=float, default=3600, help="the limit of a stage")
    parser.add_argument("-k", dest="keyword", default="", help="choose tests, as pytest does")
    machine = TargetSpec.named("host").cpu
    parser.add_argument(
        "--machine", default=machine, help="its name in the outcome, such as a GPU's"
    )
    parser.add_argument("--json", type=Path, help="the file that gets the outcome")
    parser.add_argument("--logs", type=Path, help="the folder that gets the output of the stages")
    return parser


def _header(settings: Settings, machine: str) -> dict[str, object]:
    """A description of the run: the device, its abilities and refusals, versions, and the code."""
    capabilities = open_session(settings.device).capabilities
    packages = ("ostinato", "numpy", "jax", "mlx", "wgpu", "cuda-bindings")
    return {
        "device": settings.device,
        "abilities": sorted(abilities(settings.device) - catalogued(settings.device).traits),
        "refused": refused(capabilities),
        "machine": machine,
        "versions": {"python": platform.python_version(), **_versions(packages)},
        "commit": _commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "graphs": settings.graphs,
        "first": settings.first,
        "sample": settings.sample,
    }


def _versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _write(path: Path | None, outcome: dict[str, object]) -> None:
    """Write what there is so far, should a later stage take the machine."""
    if path is not None:
        path.write_text(json.dumps(outcome, indent=2) + "\n")


_COLUMNS = ("passed", "failed", "refused", "skipped")


def _print(device: str, done: Sequence[Stage]) -> None:
    print(f"{device:<10}" + "".join(f"{name:>8}" for name in _COLUMNS) + f"{'seconds':>9}")
    for stage in done:
        numbers = "".join(f"{getattr(stage, name):>8}" for name in _COLUMNS)
        print(f"{stage.name:<10}{numbers}{stage.seconds:>9.1f}  {stage.problem}")
        for failure in stage.failures[:20]:
            print(f"    {failure}")
        for reason, count in sorted(stage.reasons.items(), key=lambda entry: -entry[1])[:5]:
            print(f"    {count} skipped: {reason}")
    totals = "".join(f"{sum(getattr(stage, name) for stage in done):>8}" for name in _COLUMNS)
    print(f"{'all':<10}{totals}{sum(stage.seconds for stage in done):>9.1f}")
