"""Narrow weights: matmuls of one row, as in decoding, and MiniLM.

A product of one row takes as long as its weights take to arrive. To see memory and not a cache,
each shape is a graph of many products, every one with a weight and a row of its own; reported is
the time of one. MiniLM embeds sentences in every format: time, and the cosine to its embeddings in
float32. ONNX Runtime does the same in float32 and with its own dynamic quantisation.

    python -m bench.quantization [--threads 1] [--seconds 2] [--no-ort] [--json rows.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bench.compare.report import machine
from bench.compile_time import ROOT, minilm

import ostinato as ost
from ostinato.tools.timing import Timing, interleave

Array = np.ndarray[Any, Any]

#: Of a decoder's weights: into and out of the hidden units, and the logits.
SHAPES = ((1024, 2816), (2816, 1024), (1024, 32000))
#: Of all weights of a graph in float32: in 4 bits, still beyond any cache.
BYTES = 512 << 20
#: By side, format and group of ``ost.quantize``; float32 has none.
FORMATS: dict[str, tuple[str, int]] = {
    "float32": ("", 32),
    "bfloat16": ("bfloat16", 32),
    "float16": ("float16", 32),
    "int8": ("int8", 32),
    "float8_e4m3fn": ("float8_e4m3fn", 32),
    "int4 by 32": ("int4", 32),
    "int4 by 128": ("int4", 128),
}
SENTENCES = (
    "A man is eating food.",
    "The girl is carrying a baby.",
    "Compilers turn graphs into machine code.",
    "How do I reset my password?",
    "It rained all day, so the match was called off and rescheduled for next week.",
    "Die Katze sitzt auf der Matte.",
    "SELECT name FROM users WHERE age > 30;",
    "The quarterly report shows revenue growth of 12% despite weaker demand in Europe.",
)
#: Tokens of a MiniLM input to time: batch and length.
SIZES = ((1, 32), (1, 128), (8, 64))


@dataclass(frozen=True)
class Row:
    """One side of one workload.

    Attributes:
        workload, side, threads: what ran.
        timing: seconds; of one product, or of one batch of sentences.
        speedup: how many times faster than float32, by medians.
        gbytes_per_second: at which weights were read, of products.
        least_cosine, mean_cosine: to the embeddings in float32, of MiniLM.
    """

    workload: str
    side: str
    threads: int
    timing: Timing
    speedup: float
    gbytes_per_second: float | None = None
    least_cosine: float | None = None
    mean_cosine: float | None = None

    def __str__(self) -> str:
        shown = f"{self.workload:18}{self.threads:>2}  {self.side:18}"
        shown += f"{1e3 * self.timing.median:>10.4f}{1e3 * self.timing.min:>10.4f}"
        shown += f"{self.speedup:>9.2f}"
        if self.gbytes_per_second is not None:
            shown += f"{self.gbytes_per_second:>10.1f}"
        if self.least_cosine is not None:
            shown += f"{'':10}{self.least_cosine:>10.5f}{self.mean_cosine:>10.5f}"
        return shown


HEADER = f"{'workload, threads':22}{'side':18}{'median ms':>10}{'least':>10}{'speedup':>9}" + (
    f"{'GB/s':>10}{'cosine':>10}{'mean':>10}"
)


def products(threads: int, seconds: float) -> Iterator[Row]:
    """Matmuls of one row, in every format."""
    session = ost.Session("cpu", threads=threads)
    for depth, columns in SHAPES:
        copies = -(-BYTES // (4 * depth * columns))
        wide = _many_products(depth, columns, copies)
        calls, sizes = {}, {}
        for side, (name, group) in FORMATS.items():
            graph = ost.quantize(wide, name, group=group) if name else wide
            sizes[side] = sum(value.type.max_bytes for value in graph.params.values()) / copies
            calls[side] = _bound(session, graph)
        timings = interleave(calls, seconds=seconds)
        for side, total in timings.items():
            one = _divided(total, copies)
            speedup = timings["float32"].median / total.median
            rate = sizes[side] / one.median / 1e9
            yield Row(f"1x{depth}x{columns}", side, threads, one, speedup, rate)


def _many_products(depth: int, columns: int, copies: int) -> ost.Graph:
    rng = np.random.default_rng(depth)
    g = ost.Graph(f"{depth}x{columns}")
    rows = [g.input(f"x{i}", (1, depth)) for i in range(copies)]
    weights = rng.standard_normal((depth, columns), dtype=np.float32)
    params = [g.param(f"w{i}", (depth, columns), value=weights) for i in range(copies)]
    g.set_outputs({f"y{i}": g.matmul(rows[i], params[i]) for i in range(copies)})
    return g


def _bound(session: ost.Session, graph: ost.Graph) -> Callable[[], object]:
    compiled = session.compile(graph)
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.standard_normal(tuple(map(int, value.shape)), dtype=np.float32)
        for name, value in graph.inputs.items()
    }
    outputs = {
        name: np.empty(tuple(map(int, value.shape)), np.float32)
        for name, value in graph.outputs.items()
    }
    return compiled.bind(inputs, outputs)


def _divided(timing: Timing, parts: int) -> Timing:
    seconds = (timing.min, timing.median, timing.p90, timing.p99)
    return Timing(timing.runs, *(s / parts for s in seconds))


# -- MiniLM ----------------------------------------------------------------------------------------


def encoders(path: Path, threads: int, seconds: float, *, ort: bool) -> Iterator[Row]:
    """MiniLM in every format."""
    session = ost.Session("cpu", threads=threads)
    graph = ost.load_onnx(path)
    sides: dict[str, Callable[[Mapping[str, Any]], Array]] = {}
    for side, (name, group) in FORMATS.items():
        narrow = ost.quantize(graph, name, group=group) if name else graph
        sides[side] = partial(_first, session.compile(narrow).run)
    with tempfile.TemporaryDirectory() as folder:
        if ort:
            sides |= _onnx_runtime(path, Path(folder) / "int8.onnx", threads)
        cosines = {side: _cosines(run, sides["float32"]) for side, run in sides.items()}
        for batch, length in SIZES:
            feeds = _feeds(np.random.default_rng(length).integers(1000, 29000, (batch, length)))
            calls = {side: partial(run, feeds) for side, run in sides.items()}
            timings = interleave(calls, seconds=seconds)
            for side, timing in timings.items():
                speedup = timings["float32"].median / timing.median
                found = cosines[side]
                yield Row(
                    f"minilm {batch}x{length}", side, threads, timing, speedup,
                    least_cosine=float(found.min()), mean_cosine=float(found.mean()),
                )  # fmt: skip


def _first(run: Callable[..., Any], feeds: Mapping[str, Any]) -> Array:
    (result,) = run(feeds)
    return np.asarray(result)


def _feeds(ids: Array) -> dict[str, Array]:
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def _cosines(run: Callable[..., Array], reference: Callable[..., Array]) -> Array:
    """The cosines between the embeddings of each sentence; they have length 1."""
    return np.array([(run(f) * reference(f)).sum() for f in map(_feeds, _tokens())])


def _tokens() -> Iterator[Array]:
    import importlib.util

    from tokenizers import Tokenizer

    spec = importlib.util.spec_from_file_location("writer", ROOT / "examples" / "minilm_onnx.py")
    assert spec is not None and spec.loader is not None
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    tokenizer = Tokenizer.from_file(str(writer.model_folder() / "tokenizer.json"))
    tokenizer.no_padding()
    for sentence in SENTENCES:
        yield np.array([tokenizer.encode(sentence).ids], np.int64)


def _onnx_runtime(path: Path, narrow: Path, threads: int) -> dict[str, Callable[..., Array]]:
    """ONNX Runtime on the model, and on what its dynamic quantisation makes of it."""
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    quantize_dynamic(path, narrow, weight_type=QuantType.QInt8, per_channel=True)
    found: dict[str, Callable[..., Array]] = {}
    for side, model in (("ORT float32", path), ("ORT int8", narrow)):
        session = onnxruntime.InferenceSession(
            str(model), options, providers=["CPUExecutionProvider"]
        )
        found[side] = partial(_first, partial(session.run, None))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each side of a workload")
    parser.add_argument("--no-ort", action="store_true", help="leave ONNX Runtime out")
    parser.add_argument("--only", choices=("products", "minilm"), help="one of the two parts")
    parser.add_argument("--json", type=Path, help="also write the rows there")
    options = parser.parse_args()
    print(machine(), HEADER, sep="\n")
    rows = []
    parts: list[Iterator[Row]] = []
    if options.only != "minilm":
        parts.append(products(options.threads, options.seconds))
    if options.only != "products":
        ort = not options.no_ort
        parts.append(encoders(minilm(), options.threads, options.seconds, ort=ort))
    for part in parts:
        for row in part:
            rows.append(row)
            print(row, flush=True)
    if options.json:
        found = {"machine": machine(), "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
