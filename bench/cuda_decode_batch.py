"""A decode step of several sequences at a time, of a Llama-3.2-1B-shaped model, on a GPU.

    python -m bench.cuda_decode_batch [--sequences 8] [--position 512] [--ways all] [--json FILE]

The graph is that of :mod:`bench.cuda_decode` with a row for each sequence; all stand at the same
position. Times are medians of single steps, the host's clock with a wait after each, by what is
switched off; the tokens of all ways are compared. The floor is the bytes of weights and live cache
over the bandwidth of a copy, 3.0 TB/s on an H100.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from bench.cuda_decode import LLAMA_1B, median_ms
from bench.decoder_step import Config, Decoder

import ostinato as ost

BANDWIDTH = 3.0e12

WAYS: dict[str, dict[str, Any]] = {
    "all": {},
    "no exchange": {"segment_exchange": False},
    "no streams": {"stream_weights": False},
    "no segments": {"segments": False},
}


class Rows(Decoder[ost.Value]):
    """A step of several sequences, whose tokens are an input."""

    def __init__(self, count: int, tokens: ost.Value, *arguments: Any) -> None:
        super().__init__(*arguments)
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "tokens", tokens)

    def step(self, **options: Any) -> ost.Value:
        v, w = self.v, self.weights
        x = v.embedding(self.tokens, w["embedding"])  # type: ignore[attr-defined]
        for i in range(self.config.layers):
            x = v.add(x, self._attention(i, self._normed(x, f"{i}.attention_norm")))
            x = v.add(x, self._mlp(i, self._normed(x, f"{i}.mlp_norm")))
        return v.argmax(v.matmul(self._normed(x, "norm"), w["head"]), axis=1, **options)

    def _heads(self, h: ost.Value, weight: str, count: int) -> ost.Value:
        shape = (self.count, count, 1, self.config.head_dim)  # type: ignore[attr-defined]
        return self.v.reshape(self.v.matmul(h, self.weights[weight]), shape)

    def _attention(self, layer: int, h: ost.Value) -> ost.Value:
        v, c, w = self.v, self.config, self.weights
        q = self._turned(self._heads(h, f"{layer}.q", c.heads))
        keys = self._turned(self._heads(h, f"{layer}.k", c.key_heads))
        values = self._heads(h, f"{layer}.v", c.key_heads)
        count = self.count  # type: ignore[attr-defined]
        live = (count, c.key_heads, c.kv_len, c.head_dim)
        seen = [
            v.slice(self.append(f"{layer}.{kind}", row), (0,) * 4, live)
            for kind, row in (("keys", keys), ("values", values))
        ]
        mixed = v.attention(q, *seen)
        return v.matmul(v.reshape(mixed, (count, c.heads * c.head_dim)), w[f"{layer}.o"])


def decoder(config: Config, count: int) -> tuple[ost.Graph, int]:
    """A step of ``count`` sequences, and the bytes of its weights."""
    g, rng = ost.Graph("llama rows"), np.random.default_rng(0)
    total, width = 0, config.width

    def param(name: str, *shape: int, scale: float = 1.0) -> ost.Value:
        nonlocal total
        value = (rng.standard_normal(shape, np.float32) * scale).astype(ml_dtypes.bfloat16)
        total += value.nbytes
        return g.param(name, shape, "bfloat16", value=value)

    queries, keys = (n * config.head_dim for n in (config.heads, config.key_heads))
    weights = {"embedding": param("embedding", config.vocabulary, width)}
    weights["norm"] = param("norm", width)
    for i in range(config.layers):
        sizes = {
            "q": (width, queries),
            "k": (width, keys),
            "v": (width, keys),
            "o": (queries, width),
            "gate": (width, config.hidden),
            "up": (width, config.hidden),
            "down": (config.hidden, width),
        }
        for name in ("attention_norm", "mlp_norm"):
            weights[f"{i}.{name}"] = param(f"{i}.{name}", width)
        for name, size in sizes.items():
            weights[f"{i}.{name}"] = param(f"{i}.{name}", *size, scale=size[0] ** -0.5)
    weights |= {n: param(n, config.length, config.head_dim // 2) for n in ("cos", "sin")}
    weights["head"] = g.permute_dims(weights["embedding"], (1, 0))
    shape = (count, *config.cache_shape[1:])
    caches = {name: g.state(name, shape, "bfloat16") for name in config.cache_names}

    def append(name: str, row: ost.Value) -> ost.Value:
        updated = g.dynamic_update_slice(caches[name], row, (0, 0, config.position, 0))
        g.assign(caches[name], updated)
        return updated

    tokens = g.input("tokens", (count,), "int64")
    g.set_outputs({"next": Rows(count, tokens, g, config, weights, append).step()})
    return g, total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--position", type=int, default=512)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    parser.add_argument("--small", action="store_true", help="a tiny model, to try the script")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    config = Config(**({} if options.small else LLAMA_1B), layers=options.layers)
    position = min(options.position, config.length - 1)
    graph, total = decoder(config, options.sequences)
    live = 4 * config.layers * config.key_heads * config.head_dim * (position + 1)
    floor = 1e3 * (total + options.sequences * live) / BANDWIDTH
    result: dict[str, Any] = {"sequences": options.sequences, "floor_ms": floor}
    tokens = np.arange(1, options.sequences + 1, dtype=np.int64)
    first = None
    for name in options.ways:
        off = WAYS[name]
        session = ost.Session(options.device)
        compiled = session.compile(graph, options=ost.CompileOptions(**off))

        def run(place: int, compiled: ost.CompiledGraph = compiled) -> Any:
            values = {"position": place, "kv_len": place + 1}
            return compiled.run({"tokens": tokens}, variables=values)[0]

        found = np.stack([run(place) for place in range(8)])
        first = found if first is None else first
        result[name] = median_ms(lambda run=run: run(position), options.runs)
        print(f"{name:12} {result[name]:8.3f} ms, {np.mean(found == first):.0%} tokens equal")
        del compiled, run
    print(json.dumps(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
