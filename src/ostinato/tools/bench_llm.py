"""``ostinato bench MODEL --llm``: tokens a second of a language model, alone or next to llama.cpp.

What is timed are steps: all tokens of a prompt at once, then one token of each sequence at a time,
from an empty cache on, as ``llama-bench`` does. Rounds of all measurements alternate with runs of
``llama-bench``, so that a busy moment of the machine hits both. The bandwidth of memory may change
from one moment to the next, too, so steps alternate with reads of as much memory as the weights
take, and their share of the bandwidth is the median of those of neighbours.
"""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ostinato.backends.cpu.host import usable_processors
from ostinato.dtypes import FLOAT32
from ostinato.errors import InputError, OstinatoError
from ostinato.llm.checkpoints import open_checkpoint
from ostinato.llm.families.builder import BLOCK_TOKENS
from ostinato.llm.step import StepGraph
from ostinato.llm.step_sizes import StepLimits
from ostinato.ops.builder import Graph
from ostinato.records import dataclass
from ostinato.runtime.session import Session
from ostinato.tools.output import console, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["LanguageModelBench", "bench_language_model", "show"]

#: Rows of the matrix that is read to measure the bandwidth of memory.
_DEPTH: Final = 8192

#: Seconds of reads of that matrix, and of steps, that alternate; how often they do in a round.
_READING: Final = 0.05
_STEPPING: Final = 0.2
_PAIRS: Final = 8

#: Instruction sets that the products of llama.cpp are compiled for.
_FEATURES: Final = ("avx2", "fma", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx_int8")

#: Asks the library beside ``llama-bench`` for them, in a process of its own.
_ASK = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
for name in sys.argv[2:]:
    function = getattr(library, "ggml_cpu_has_" + name, None)
    if function is not None and function():
        print(name)
"""


@dataclass(frozen=True, kw_only=True)
class LanguageModelBench:
    """The settings of a benchmark.

    Attributes:
        path: of the model: a GGUF file or a folder.
        prompt: tokens of a prompt that are read at once.
        tokens: how many steps of one token are timed.
        batches: numbers of sequences.
        threads: by default one for each processor.
        rounds: how often everything is measured.
        llama_bench: the program to compare with; ``None``: none.
    """

    path: Path
    prompt: int = 512
    tokens: int = 128
    batches: tuple[int, ...] = (1,)
    threads: int | None = None
    rounds: int = 3
    llama_bench: str | None = None


def bench_language_model(settings: LanguageModelBench) -> dict[str, Any]:
    """Time a model; returns the report, as JSON has it.

    Raises:
        OstinatoError: the model can not be read, or ``llama-bench`` is missing or fails.
    """
    threads = settings.threads or usable_processors()
    peer = None if settings.llama_bench is None else _Peer(settings, threads)
    start = time.perf_counter()
    steps = _Steps(settings, threads)
    ready = time.perf_counter() - start
    measured: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    memory = _Memory(threads, steps.weight_bytes)
    shares: dict[str, list[float]] = {}
    for _ in range(settings.rounds):
        for name, rate in steps.measure().items():
            measured.setdefault(name, []).append(rate)
        for name, step in steps.decodes().items():
            shares.setdefault(name, []).extend(memory.shares(step))
        if peer is not None:
            for name, rate in peer.measure().items():
                theirs.setdefault(name, []).append(rate)
    report: dict[str, Any] = {
        "model": str(settings.path),
        "threads": threads,
        "rounds": settings.rounds,
        "ready_seconds": ready,
        "weight_bytes": steps.weight_bytes,
        "read_bandwidth": memory.bandwidth,
        "tests": {name: _summary(name, rates, steps) for name, rates in measured.items()},
    }
    for name, found in shares.items():
        report["tests"][name]["share"] = statistics.median(found)
    if peer is not None:
        report["llama_bench"] = {"program": peer.program, "features": peer.features()}
        for name, rates in theirs.items():
            test = report["tests"][name]
            test["llama_cpp"] = statistics.median(rates)
            test["ratio"] = test["tokens_per_second"] / test["llama_cpp"]
    return report


def _summary(name: str, rates: Sequence[float], steps: _Steps) -> dict[str, Any]:
    """The median of a test, and the bytes of weights that its steps read in a second."""
    rate = statistics.median(rates)
    reads = name.startswith("tg")
    batch = int(name.partition("b")[2] or 1) if reads else 1
    return {
        "tokens_per_second": rate,
        "best": max(rates),
        "bandwidth": rate / batch * steps.weight_bytes if reads else None,
    }


class _Steps:
    """The step of a model, and the tests that are timed on it."""

    def __init__(self, settings: LanguageModelBench, threads: int) -> None:
        checkpoint = open_checkpoint(settings.path)
        if not settings.batches or min(settings.batches) < 1:
            raise InputError(f"batches are positive numbers, got {list(settings.batches)}")
        if settings.prompt < 1 or settings.tokens < 1 or settings.rounds < 1:
            raise InputError("prompt, tokens and rounds are positive numbers")
        most = max(settings.batches)
        context = max(settings.prompt, settings.tokens)
        blocks = -(-context // BLOCK_TOKENS)
        self._settings = settings
        limits = StepLimits(
            rows=max(settings.prompt, most),
            sequences=most,
            picks=most,
            blocks=blocks * most,
            context=blocks * BLOCK_TOKENS,
            adjustments=1,
        )
        self._step = StepGraph(checkpoint, limits, session=Session("cpu", threads=threads))
        self._step.inputs.table[:] = np.arange(blocks * most).reshape(most, blocks)
        self._tokens = np.random.default_rng(0).integers(
            0, checkpoint.config.vocabulary, max(limits.rows, context), np.int32
        )
        config = checkpoint.config
        #: Of the matrices that each step reads; of the embedding it reads some rows.
        self.weight_bytes = sum(
            weight.source.dtype.itemsize * int(np.prod(weight.source.shape, dtype=np.int64))
            for name, weight in checkpoint.weights.items()
            if config.tied or not name.startswith("embedding")
        )

    def measure(self) -> dict[str, float]:
        """Tokens a second, by the name of the test; the first step of each is not timed."""
        settings = self._settings
        found = {f"pp{settings.prompt}": settings.prompt / self._timed(self._prompt)}
        for batch in settings.batches:
            self._decode(batch, 0)

            def run(batch: int = batch) -> None:
                for position in range(settings.tokens):
                    self._decode(batch, position)

            start = time.perf_counter()
            run()
            found[self._name(batch)] = batch * settings.tokens / (time.perf_counter() - start)
        return found

    def decodes(self) -> dict[str, Callable[[], None]]:
        """By the name of a test, a function that runs its next step."""
        return {self._name(batch): self._stepper(batch) for batch in self._settings.batches}

    def _stepper(self, batch: int) -> Callable[[], None]:
        positions = itertools.cycle(range(self._settings.tokens))
        return lambda: self._decode(batch, next(positions))

    def _name(self, batch: int) -> str:
        return f"tg{self._settings.tokens}" + (f" b{batch}" if batch > 1 else "")

    def _timed(self, call: Callable[[], None]) -> float:
        call()
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    def _prompt(self) -> None:
        inputs, count = self._step.inputs, self._settings.prompt
        inputs.tokens[:count] = self._tokens[:count]
        inputs.position[:count] = np.arange(count)
        inputs.sequence[:count] = 0
        inputs.pick[0] = count - 1
        self._step.run(count, 1, 1)

    def _decode(self, batch: int, position: int) -> None:
        inputs = self._step.inputs
        inputs.tokens[:batch] = self._tokens[position]
        inputs.position[:batch] = position
        inputs.sequence[:batch] = np.arange(batch)
        inputs.pick[:batch] = np.arange(batch)
        self._step.run(batch, batch, 1)


class _Peer:
    """``llama-bench`` with the same model and threads."""

    def __init__(self, settings: LanguageModelBench, threads: int) -> None:
        name = settings.llama_bench or "llama-bench"
        program = shutil.which(name)
        if program is None:
            raise OstinatoError(
                f"there is no program {name!r}: build llama.cpp with GGML_NATIVE=ON, and give the "
                "path of llama-bench by --llama-bench or put it on PATH"
            )
        self.program = str(Path(program).resolve())
        sizes = ["-p", str(settings.prompt), "-n", str(settings.tokens)]
        self._command = [self.program, "-m", str(settings.path), "-t", str(threads), *sizes]
        self._command += ["-r", "1", "-o", "json"]

    def measure(self) -> dict[str, float]:
        """Tokens a second, by the name of the test."""
        done = subprocess.run(self._command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OstinatoError(f"llama-bench failed: {done.stderr.strip()[-500:]}")
        found = {}
        for test in json.loads(done.stdout):
            name = f"pp{test['n_prompt']}" if test["n_prompt"] else f"tg{test['n_gen']}"
            found[name] = float(test["avg_ts"])
        return found

    def features(self) -> list[str]:
        """The instruction sets that its library for CPUs reports; none where there is none."""
        folder = Path(self.program).parent
        for library in (*folder.glob("libggml-cpu*.so"), *folder.glob("../lib/libggml-cpu*.so")):
            command = [sys.executable, "-c", _ASK, str(library), *_FEATURES]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return done.stdout.split()
        return []


class _Memory:
    """Reads as much memory as the weights of a model take: a matmul of one row, in huge pages.

    Args:
        threads: as many as run the model.
        nbytes: of the weights.
    """

    def __init__(self, threads: int, nbytes: int) -> None:
        columns = max(1, nbytes // (_DEPTH * FLOAT32.itemsize))
        g = Graph("read")
        x = g.input("x", (1, _DEPTH))
        w = g.param("w", (_DEPTH, columns), value=np.zeros((_DEPTH, columns), np.float32))
        g.set_outputs({"y": g.matmul(x, w)})
        compiled = Session("cpu", threads=threads).compile(g)
        row, out = np.zeros((1, _DEPTH), np.float32), np.empty((1, columns), np.float32)
        self._read = compiled.bind({"x": row}, [out])
        self._bytes = _DEPTH * columns * FLOAT32.itemsize
        self._weights = nbytes
        self._rates: list[float] = []

    @property
    def bandwidth(self) -> float:
        """Bytes a second, the median of all reads so far."""
        return statistics.median(self._rates)

    def shares(self, step: Callable[[], None]) -> list[float]:
        """The shares of the bandwidth at which steps read the weights, next to reads each."""
        step()
        self._read()
        before, found = self._rate(), []
        for _ in range(_PAIRS):
            rate = self._weights / _seconds_each(step, _STEPPING)
            after = self._rate()
            found.append(2 * rate / (before + after))
            before = after
        return found

    def _rate(self) -> float:
        self._rates.append(self._bytes / _seconds_each(self._read, _READING))
        return self._rates[-1]


def _seconds_each(call: Callable[[], None], least: float) -> float:
    """The time of a call, on average of as many as take some seconds at least."""
    start, taken, count = time.perf_counter(), 0.0, 0
    while taken < least:
        call()
        count, taken = count + 1, time.perf_counter() - start
    return taken / count


def show(report: dict[str, Any]) -> None:
    """Print the report for people."""
    out = console()
    peer = report.get("llama_bench")
    columns = ["test", "tokens/s", "best", "GB/s", "of memory"]
    columns += ["llama.cpp", "ratio"] if peer else []
    rows = []
    for name, test in report["tests"].items():
        cells = [name, f"{test['tokens_per_second']:.1f}", f"{test['best']:.1f}"]
        reads = test["bandwidth"]
        cells += ["", ""] if reads is None else [f"{reads / 1e9:.1f}", f"{test['share']:.0%}"]
        if peer and "ratio" in test:
            cells += [f"{test['llama_cpp']:.1f}", f"{test['ratio']:.2f}"]
        elif peer:
            cells += ["", ""]
        rows.append(cells)
    title = f"{Path(report['model']).name}, {report['threads']} threads"
    out.print(table(title, columns, rows, numbers=range(1, len(columns))))
    out.print(f"memory is read at {report['read_bandwidth'] / 1e9:.1f} GB/s")
    if peer:
        features = ", ".join(peer["features"]) or "no instruction sets that could be read"
        out.print(f"{peer['program']}: {features}", markup=False)
