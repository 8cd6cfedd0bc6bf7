"""A decode row through layers of experts on a GPU.

    python -m bench.cuda_moe [--layers 8] [--runs 200] [--stored-layers 2] [--json FILE]

Eight layers of eight experts, two of which a token goes through, of 2048 features and 7168 hidden
units, gated, in bfloat16. Times are medians of single runs, the host's clock with a wait after
each; the floor is the bytes of the chosen experts over the bandwidth of a copy, 3.0 TB/s on an
H100. A small stack is compared with the oracle first. Last, a stack of ``--stored-layers`` of which
half of the experts are resident: the token's own, and then the others, so that each layer copies
two experts from the host's memory.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from bench.cuda_decode import median_ms

import ostinato as ost

BANDWIDTH = 3.0e12

#: The ways that are timed, by what is switched.
WAYS: dict[str, dict[str, bool]] = {
    "all": {},
    "two_products": {"product_fusion": False},
    "grids": {"single_block_segments": False},
    "apart": {"segments": False},
    "segments": {"segment_experts": True},
}


def layers(
    count: int,
    experts: int,
    width: int,
    hidden: int,
    stored: dict[str, np.ndarray[Any, Any]] | None = None,
) -> ost.Graph:
    """``count`` layers, each added to its input; the experts' matrices go to ``stored``."""
    rng, g = np.random.default_rng(0), ost.Graph("experts")
    x = g.input("x", (1, width), "bfloat16")
    noise = rng.standard_normal(experts * width * hidden, np.float32)
    scaled = {n: (noise * n**-0.5).astype(ml_dtypes.bfloat16) for n in (width, hidden)}
    for i in range(count):

        def param(name: str, *shape: int, at: int = i) -> ost.Value:
            value = scaled[shape[-2]][: int(np.prod(shape))].reshape(shape)
            if stored is not None and len(shape) == 3:
                stored[f"{at}.{name}"] = value
                return g.param(f"{at}.{name}", shape, "bfloat16")
            return g.param(f"{at}.{name}", shape, "bfloat16", value=value)

        x = x + g.moe(
            x,
            param("router", width, experts),
            param("gate", experts, width, hidden),
            param("up", experts, width, hidden),
            param("down", experts, hidden, width),
            k=2,
        )
    g.set_outputs([x])
    return g


def error(device: str) -> float:
    """The relative error of a small stack."""
    g = layers(2, 4, 64, 96)
    x = np.random.default_rng(1).standard_normal((1, 64), np.float32).astype(ml_dtypes.bfloat16)
    (found,) = ost.Session(device).compile(g).run({"x": x})
    (truth,) = ost.reference.evaluate(g, {"x": x})
    difference = np.asarray(found, np.float64) - np.asarray(truth, np.float64)
    return float(np.linalg.norm(difference) / np.linalg.norm(np.asarray(truth, np.float64)))


def with_half_resident(session: ost.Session, sizes: tuple[int, ...], runs: int) -> dict[str, float]:
    """The milliseconds of a run whose experts are resident, and of one that misses all of them."""
    count, experts, width, hidden = sizes
    stored: dict[str, np.ndarray[Any, Any]] = {}
    graph = layers(*sizes, stored)
    one = 3 * width * hidden * 2
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "experts.safetensors"
        ost.moe.write_safetensors(path, stored)
        file = ost.moe.ExpertFile(path)
        budget = (count * experts // 2 + 2) * one
        compiled = session.compile(graph, experts=file, expert_budget=budget)
    stored.clear()
    x = np.ones((1, width), ml_dtypes.bfloat16)
    compiled.enable_moe_topk_capture(experts)
    (expected,) = compiled.run({"x": x})
    called = compiled.take_moe_topk_capture()
    assert called is not None
    own = [np.isin(np.arange(experts), ids) for ids in called]
    found = {}
    for name, masks in (("resident", own), ("missing", [~mask for mask in own])):
        chosen = [mask & (np.cumsum(mask) <= experts // 2) for mask in masks]
        compiled.set_moe_resident_experts_per_layer(chosen)
        np.testing.assert_array_equal(compiled.run({"x": x})[0], expected)
        found[f"{name}_ms"] = median_ms(lambda: compiled.run({"x": x}), runs)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--stored-layers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="small layers, to try the script")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    width, hidden = (64, 96) if options.small else (2048, 7168)
    x = np.ones((1, width), ml_dtypes.bfloat16)
    graph = layers(options.layers, 8, width, hidden)
    read = options.layers * 2 * 3 * width * hidden * 2
    result: dict[str, Any] = {"error": error(options.device), "bytes": read}
    result["floor_ms"] = 1e3 * read / BANDWIDTH
    session = ost.Session(options.device)
    for name, ways in WAYS.items():
        compiled = session.compile(graph, options=ost.CompileOptions(**ways))
        result[f"{name}_ms"] = median_ms(lambda run=compiled.run: run({"x": x}), options.runs)
        if not ways:
            profile = compiled.plan.execute_profiled()
            kernels = len(profile) // options.layers
            print("\n".join(map(str, profile[kernels : 2 * kernels])))
        del compiled
    sizes = (options.stored_layers, 8, width, hidden)
    stored = with_half_resident(session, sizes, options.runs // 4)
    result["stored_layers"] = {"layers": options.stored_layers, **stored}
    result["stored_layers"]["copied_bytes"] = options.stored_layers * 2 * 3 * width * hidden * 2
    print(json.dumps(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
