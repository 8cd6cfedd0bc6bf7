"""Reports of measurements: as JSON, as a page of Markdown, as a plot."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.compare.measure import BEFORE, Row
from bench.compare.peers import MODULES, OURS, PEERS, version


def as_json(row: Row) -> dict[str, Any]:
    """The public figures of a row; ``None`` where a side could not be measured."""
    ours, peers = row.ours, row.peers
    return {
        "workload": row.workload,
        "threads": row.threads,
        "ours_ms": ours and ours.median,
        "peers_ms": {name: times.median for name, times in peers.items()},
        "best_peer": row.best_peer,
        "ratio": row.ratio,
        "floor_ms": row.floors.floor_ms,
        "reached": row.reached,
        "reached_in_rounds": row.reached_in_rounds,
        "ours_min_ms": ours and ours.least,
        "peers_min_ms": {name: times.least for name, times in peers.items()},
        "ratio_of_min": row.ratio_of_least,
        "peak_gflops": row.floors.gflops,
        "memory_gbytes_per_second": row.floors.gbytes,
        "rounds": max((len(times.medians) for times in row.sides.values()), default=0),
        "left_out": row.left_out,
    }


def write_json(rows: Sequence[Row], path: Path) -> None:
    path.write_text(json.dumps([as_json(row) for row in rows], indent=1) + "\n")


def write_page(rows: Sequence[Row], clock: str, command: str, path: Path) -> None:
    """The table, with the ``command`` it comes from and the machine it holds for."""
    taken = f"`{command}` on {dt.date.today()}: {machine()}."
    times = "Milliseconds" if clock == "wall" else "Milliseconds of processor time per thread"
    legend = (
        f"{times} per run: the median of the rounds, and the least of all runs in brackets; the "
        "best peer in bold. The ratio is best peer ÷ ours, the median of the rounds' ratios, then "
        "that of the least times. The floor is that of the best moment of all rounds; reached is "
        "floor ÷ ours, then the median of the same within rounds, by the rates that multiply-adds "
        "and reads usually have there. Floors count direct convolutions: other algorithms may "
        "stay below."
    )
    path.write_text(f"# {path.stem}\n\n{taken}\n\n{legend}\n\n{table(rows)}\n")


def table(rows: Sequence[Row]) -> str:
    """Markdown: medians, with the least times in brackets."""
    before = [BEFORE] if any(BEFORE in row.sides for row in rows) else []
    head = ["workload", "threads", OURS, *PEERS, *before, "ratio", "of least", "floor"]
    head += ["reached", "in rounds"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        times = [_times(row, name) for name in (*MODULES, *before)]
        shares = [_share(row.reached), _share(row.reached_in_rounds)]
        cells = [row.workload, str(row.threads), *times, _ratio(row.ratio)]
        cells += [_ratio(row.ratio_of_least), _ms(row.floors.floor_ms), *shares]
        lines.append("| " + " | ".join(cells) + " |")
    ratios = [row.ratio for row in rows if row.ratio is not None]
    if ratios:
        mean = statistics.geometric_mean(ratios)
        lines += ["", f"Geometric mean of the ratios: {mean:.2f}; the least: {min(ratios):.2f}."]
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def _times(row: Row, side: str) -> str:
    times = row.sides.get(side)
    if times is None:
        return "–"
    shown = f"{_ms(times.median)} ({_ms(times.least)})"
    return f"**{shown}**" if side == row.best_peer else shown


def _ms(time: float) -> str:
    """Three digits."""
    return f"{time:.{max(0, 2 - math.floor(math.log10(time)))}f}"


def _ratio(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}"


def machine() -> str:
    """A description of the machine that the figures hold for."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    versions = ", ".join(f"{side} {version(side)}" for side in MODULES if version(side))
    return (
        f"{models[0] if models else platform.machine()}, {cores} cores, {memory:.0f} GiB, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}; {versions}"
    )


def plot(rows: Sequence[Row], path: Path) -> bool:
    """Times relative to ours, one bar a side; False if there is no matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    counts = sorted({row.threads for row in rows})
    figure, axes = plt.subplots(
        len(counts), 1, figsize=(11, 3.6 * len(counts)), squeeze=False, layout="constrained"
    )
    for axis, threads in zip(axes[:, 0], counts, strict=True):
        _draw(axis, [row for row in rows if row.threads == threads and row.ours])
        axis.set_title(f"{threads} thread" + "s" * (threads > 1))
    figure.savefig(path)
    plt.close(figure)
    return True


def _draw(axis: Any, rows: Sequence[Row]) -> None:
    width = 0.8 / len(PEERS)
    for i, name in enumerate(PEERS):
        at = [j + (i - (len(PEERS) - 1) / 2) * width for j in range(len(rows))]
        over = [_relative(row, name) - 1 for row in rows]  # bars grow from ours, up or down
        axis.bar(at, over, width, bottom=1, label=name)
    floors = [row.reached for row in rows if row.reached is not None]
    axis.hlines(
        floors,
        [j - 0.45 for j in range(len(rows))],
        [j + 0.45 for j in range(len(rows))],
        colors="black",
        linestyles="dotted",
        label="floor",
    )
    axis.axhline(1, color="black", linewidth=1)
    axis.set_yscale("log")
    axis.set_xticks(range(len(rows)), [row.workload for row in rows])
    axis.set_ylabel(f"time, {OURS} = 1")
    axis.legend(ncols=len(PEERS) + 1, fontsize="small")


def _relative(row: Row, name: str) -> float:
    times = row.sides.get(name)
    return times.median / row.ours.median if times and row.ours else math.nan
