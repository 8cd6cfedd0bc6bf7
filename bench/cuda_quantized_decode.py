"""A decode step of a Llama-3.2-1B-shaped model with weights of 8 or 4 bits on a GPU.

    python -m bench.cuda_quantized_decode [--formats int8 int4 float8] [--json FILE]

The graph is that of :mod:`bench.cuda_decode` with ``quantized_matmul``, ``int4_matmul`` or
``scaled_matmul`` of ``quantize_rows`` in the place of its matmuls, and the same random weights each
time. A small model is compared with the CPU first. Times are medians of single steps, the host's
clock with a wait after each; the floor is the bytes of weights and live cache over the bandwidth of
a copy, 3.0 TB/s on an H100.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from bench.cuda_decode import LLAMA_1B, median_ms
from bench.decoder_step import Config, Decoder

import ostinato as ost

Array = np.ndarray[Any, Any]

GROUP = 32
BANDWIDTH = 3.0e12


class NarrowMatmuls:
    """The vocabulary of a graph, whose matmuls read the narrow form of a weight if it has one."""

    def __init__(self, graph: ost.Graph, narrow: Mapping[str, tuple[ost.Value, ost.Value]]) -> None:
        self._graph = graph
        self._narrow = narrow

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    def matmul(self, x: ost.Value, weight: Any) -> ost.Value:
        codes, scales = self._narrow[weight]
        if codes.dtype.name == "uint8":
            return self._graph.int4_matmul(x, codes, scales, group=GROUP)
        if codes.dtype.is_narrow:
            rows, row_scales = self._graph.quantize_rows(x)
            return self._graph.scaled_matmul(rows, codes, row_scales, scales, x.dtype)
        return self._graph.quantized_matmul(x, codes, scales)


def decoder(config: Config, format: str) -> tuple[ost.Graph, int]:
    """A step as a graph with one output, ``next``, and the bytes of the weights that it reads."""
    g, rng, width = ost.Graph(f"llama {format}"), np.random.default_rng(0), config.width
    caches = {name: g.state(name, config.cache_shape, "bfloat16") for name in config.cache_names}
    narrow: dict[str, tuple[ost.Value, ost.Value]] = {}
    total = 0

    def matrix(name: str, rows: int, columns: int) -> str:
        nonlocal total
        shape = (rows // 2, columns) if format == "int4" else (rows, columns)
        codes = np.frombuffer(rng.bytes(shape[0] * shape[1]), np.uint8).reshape(shape)
        wide = rows**-0.5 / (4.6 if format == "int4" else 74)
        blocks = (rows // GROUP, columns) if format == "int4" else (columns,)
        scales = np.full(blocks, wide, ml_dtypes.bfloat16 if format == "int4" else np.float32)
        codes = codes if format == "int4" else codes.view(np.int8)
        if format == "float8":
            codes = codes.astype(ml_dtypes.float8_e4m3fn)
        narrow[name] = tuple(
            g.param(f"{name}.{part}", array.shape, array.dtype, value=array)
            for part, array in (("codes", codes), ("scales", scales))
        )
        total += codes.nbytes + scales.nbytes
        return name

    def param(name: str, array: Array) -> ost.Value:
        return g.param(name, array.shape, "bfloat16", value=array.astype(ml_dtypes.bfloat16))

    queries, keys = (n * config.head_dim for n in (config.heads, config.key_heads))
    sizes = {
        "q": (width, queries),
        "k": (width, keys),
        "v": (width, keys),
        "o": (queries, width),
        "gate": (width, config.hidden),
        "up": (width, config.hidden),
        "down": (config.hidden, width),
    }
    weights: dict[str, Any] = {}
    for i in range(config.layers):
        for name in ("attention_norm", "mlp_norm"):
            weights[f"{i}.{name}"] = param(f"{i}.{name}", rng.uniform(0.5, 1.5, width))
        weights |= {f"{i}.{name}": matrix(f"{i}.{name}", *size) for name, size in sizes.items()}
    angles = np.arange(config.length)[:, None] * config.rope_base ** -(
        np.arange(config.head_dim // 2) / (config.head_dim // 2)
    )
    embedding = rng.random((config.vocabulary, width), np.float32) - 0.5
    weights |= {
        "embedding": param("embedding", embedding),
        "norm": param("norm", rng.uniform(0.5, 1.5, width)),
        "head": matrix("head", width, config.vocabulary),
        "cos": param("cos", np.cos(angles)),
        "sin": param("sin", np.sin(angles)),
    }

    def append(name: str, row: ost.Value) -> ost.Value:
        updated = g.dynamic_update_slice(caches[name], row, (0, 0, config.position, 0))
        g.assign(caches[name], updated)
        return updated

    step: Any = Decoder(NarrowMatmuls(g, narrow), config, weights, append)  # type: ignore[arg-type]
    g.set_outputs({"next": step.step()})
    return g, total


def values_at(token: int, position: int) -> dict[str, int]:
    return {"token": token, "position": position, "kv_len": position + 1}


def agreement(format: str, device: str) -> str:
    """The number of equal leading tokens of a small model, here and on the CPU."""
    config = Config(vocabulary=512, width=256, heads=4, key_heads=2, head_dim=64, hidden=512)
    graph, _ = decoder(config, format)
    sides = [ost.Session(name).compile(graph) for name in (device, "cpu")]
    token, count = 1, 32
    for position in range(count):
        mine, theirs = (
            int(side.run({}, variables=values_at(token, position))[0][0]) for side in sides
        )
        if mine != theirs:
            return f"{position} of {count}"
        token = mine
    return "all equal"


def measure(format: str, options: argparse.Namespace) -> dict[str, Any]:
    config = Config(**({} if options.small else LLAMA_1B), layers=options.layers)
    graph, total = decoder(config, format)
    live = 4 * config.layers * config.key_heads * config.head_dim * (options.position + 1)
    result: dict[str, Any] = {"bytes": total, "floor_ms": 1e3 * (total + live) / BANDWIDTH}
    session = ost.Session(options.device)
    values = values_at(7, min(options.position, config.length - 1))
    for name, segments in (("segments", True), ("apart", False)):
        started = time.perf_counter()
        compiled = session.compile(graph, options=ost.CompileOptions(segments=segments))
        result[f"{name}_compile_s"] = time.perf_counter() - started
        result[f"{name}_ms"] = median_ms(
            lambda run=compiled.run: run({}, variables=values), options.runs
        )
        result[f"{name}_kernels"] = len(compiled.plan.kernels)
        if not segments:
            result["kernels"] = kernels_of(compiled, values)
        del compiled
    return result


def kernels_of(compiled: ost.CompiledGraph, values: Mapping[str, int]) -> list[Any]:
    """Microseconds, launches and GB/s by kernel, the longest first."""
    profile = compiled.plan.execute_with_vars_profiled(values)
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0, 0])
    for record in profile:
        row = found[record.name]
        row[0] += 1e6 * record.elapsed
        row[1] += 1
        row[2] += record.bytes
    rows = [(name, us, n, moved / us / 1e3) for name, (us, n, moved) in found.items()]
    return sorted(rows, key=lambda row: -row[1])[:20]


def products(options: argparse.Namespace) -> list[tuple[str, int, float, float]]:
    """Format, rows, microseconds and TFLOP/s of one matmul, the rounding of its rows left out."""
    size = 128 if options.small else 4096
    session, found = ost.Session(options.device), []
    rng = np.random.default_rng(0)
    for kind in options.formats:
        for rows in (1, 8, 16, 128, 1024, 4096):
            g = ost.Graph(f"{kind} {rows}")
            x = g.input("x", (rows, size), "bfloat16")
            if kind == "int4":
                codes = rng.integers(0, 256, (size // 2, size), np.uint8)
                scales = np.ones((size // GROUP, size), ml_dtypes.bfloat16)
                y = g.int4_matmul(x, g.constant(codes), g.constant(scales), group=GROUP)
            else:
                codes = rng.integers(-127, 128, (size, size), np.int8)
                if kind == "float8":
                    codes = codes.astype(ml_dtypes.float8_e4m3fn)
                weights = {"w": (g.constant(codes), g.constant(np.ones(size, np.float32)))}
                y = NarrowMatmuls(g, weights).matmul(x, "w")
            g.set_outputs([y])
            plan = session.compile(g, options=ost.CompileOptions(segments=False)).plan
            plan.execute()
            best = min(
                record.elapsed
                for _ in range(10)
                for record in plan.execute_profiled()
                if "matmul" in record.name or "cuBLASLt" in record.name
            )
            found.append((kind, rows, 1e6 * best, 2 * rows * size * size / best / 1e12))
            print(f"{kind} {rows:5d} rows {1e6 * best:9.1f} µs {found[-1][-1]:8.1f} TFLOP/s")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", nargs="+", default=["int8", "int4"])
    parser.add_argument("--position", type=int, default=512)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a tiny model, to try the script")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"products": products(options)}
    for kind in options.formats:
        equal = agreement(kind, options.device)
        print(f"{kind}: tokens of a small model against the CPU: {equal}", flush=True)
        found[kind] = {"tokens": equal, **measure(kind, options)}
        row = found[kind]
        for name, us, count, gbs in row["kernels"]:
            print(f"    {name[:60]:60} {us:9.1f} µs {count:5d} {gbs:9.1f} GB/s")
        print(
            f"{kind}: {row['segments_ms']:.3f} ms, {row['apart_ms']:.3f} without segments, "
            f"floor {row['floor_ms']:.3f}; compiled in {row['segments_compile_s']:.1f} s",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
