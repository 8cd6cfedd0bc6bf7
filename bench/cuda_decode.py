"""A decode step of a Llama-3.2-1B-shaped model in bfloat16 on a GPU, next to PyTorch.

    python -m bench.cuda_decode [--positions 512 1024] [--runs 200] [--layers 16] [--device cuda]
        [--whole]

The graph is built with the public ops; keys and values are states, token and position Variables.
The weights are random, the same on both sides. PyTorch runs the step eagerly and as a CUDA graph;
``--compile`` adds ``torch.compile`` in its ``max-autotune`` mode. Times are medians of single
steps, the host's clock with a wait after each. The floor is the bytes of weights and live cache
over the bandwidth of a device-to-device copy. ``--chained N`` generates N tokens three times, which
have to be the same. ``--whole`` leaves out what is compiled with optimisations off. Prints a JSON
line after the table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from bench.decoder_step import Config, Decoder

import ostinato as ost

LLAMA_1B = {
    "vocabulary": 128256,
    "width": 2048,
    "heads": 32,
    "key_heads": 8,
    "head_dim": 64,
    "hidden": 8192,
    "length": 2048,
    "rope_base": 500000.0,
}


def decoder(config: Config, weights: Mapping[str, Any], dtype: str) -> ost.Graph:
    """A step as a graph with one output, ``next``, whose head is the embedding, transposed."""
    g = ost.Graph("llama")
    caches = {name: g.state(name, config.cache_shape, dtype) for name in config.cache_names}
    params = {n: g.param(n, w.shape, dtype, value=w) for n, w in weights.items()}

    def append(name: str, row: ost.Value) -> ost.Value:
        updated = g.dynamic_update_slice(caches[name], row, (0, 0, config.position, 0))
        g.assign(caches[name], updated)
        return updated

    named = {**params, "head": g.permute_dims(params["embedding"], (1, 0))}
    g.set_outputs({"next": Decoder(g, config, named, append).step()})
    return g


class TorchDecoder:
    """The same step in PyTorch, on weights and caches that stay where they are."""

    def __init__(self, config: Config, weights: Mapping[str, Any]) -> None:
        import torch

        self.config, self.torch, self.w = config, torch, weights
        any_ = weights["norm"]
        shape = config.cache_shape
        self.caches = {
            name: torch.zeros(shape, dtype=any_.dtype, device=any_.device)
            for name in config.cache_names
        }
        self.token = torch.zeros(1, dtype=torch.int64, device=any_.device)
        self.position = torch.zeros(1, dtype=torch.int64, device=any_.device)
        self.columns = torch.arange(config.length, device=any_.device)

    def _norm(self, x: Any, name: str) -> Any:
        return self.torch.nn.functional.rms_norm(x, x.shape[-1:], self.w[name], self.config.eps)

    def _turned(self, x: Any) -> Any:
        cos, sin = (self.w[n].index_select(0, self.position)[:, None] for n in ("cos", "sin"))
        left, right = x.chunk(2, -1)
        return self.torch.cat([left * cos - right * sin, right * cos + left * sin], -1)

    def step(self) -> Any:
        """The next token, from ``token`` at ``position``; the caches grow by a row."""
        c, w, functional = self.config, self.w, self.torch.nn.functional
        x = functional.embedding(self.token, w["embedding"])
        mask = (self.columns <= self.position)[None, None, None]
        for i in range(c.layers):
            h = self._norm(x, f"{i}.attention_norm")
            q, k, v = (
                (h @ w[f"{i}.{name}"]).view(1, -1, 1, c.head_dim) for name in ("q", "k", "v")
            )
            for name, row in (("keys", self._turned(k)), ("values", v)):
                self.caches[f"{i}.{name}"].index_copy_(2, self.position, row)
            mixed = functional.scaled_dot_product_attention(
                self._turned(q),
                self.caches[f"{i}.keys"],
                self.caches[f"{i}.values"],
                attn_mask=mask,
                enable_gqa=True,
            )
            x = x + mixed.view(1, -1) @ w[f"{i}.o"]
            h = self._norm(x, f"{i}.mlp_norm")
            x = x + (functional.silu(h @ w[f"{i}.gate"]) * (h @ w[f"{i}.up"])) @ w[f"{i}.down"]
        return (self._norm(x, "norm") @ w["embedding"].T).argmax(-1)


def stepper(compiled: ost.CompiledGraph) -> Callable[[int, int], int]:
    """A function from a token and its position to the next token."""

    def run(token: int, position: int) -> int:
        values = {"token": token, "position": position, "kv_len": position + 1}
        return int(compiled.run({}, variables=values)[0][0])

    return run


def torch_weights(config: Config, device: str, dtype: Any) -> dict[str, Any]:
    """Random weights, matrices as ``[inputs, outputs]``."""
    import torch

    made = torch.Generator(device=device).manual_seed(0)

    def matrix(rows: int, columns: int) -> Any:
        values = torch.randn(rows, columns, generator=made, device=device)
        return (values / rows**0.5).to(dtype)

    def gain() -> Any:
        return torch.empty(config.width, device=device).uniform_(0.5, 1.5, generator=made).to(dtype)

    width, hidden = config.width, config.hidden
    queries, keys = (n * config.head_dim for n in (config.heads, config.key_heads))
    weights = {"embedding": matrix(config.vocabulary, width) * 20, "norm": gain()}
    for i in range(config.layers):
        weights |= {
            f"{i}.attention_norm": gain(),
            f"{i}.q": matrix(width, queries),
            f"{i}.k": matrix(width, keys),
            f"{i}.v": matrix(width, keys),
            f"{i}.o": matrix(queries, width),
            f"{i}.mlp_norm": gain(),
            f"{i}.gate": matrix(width, hidden),
            f"{i}.up": matrix(width, hidden),
            f"{i}.down": matrix(hidden, width),
        }
    pairs = torch.arange(config.head_dim // 2, device=device) / (config.head_dim // 2)
    angles = torch.arange(config.length, device=device)[:, None] * config.rope_base**-pairs
    return weights | {"cos": angles.cos().to(dtype), "sin": angles.sin().to(dtype)}


def as_array(tensor: Any, dtype: str) -> Any:
    """The elements of a tensor as a NumPy array of the host."""
    if dtype != "bfloat16":
        return tensor.cpu().numpy()
    import ml_dtypes
    import torch

    return tensor.cpu().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)


def median_ms(step: Callable[[], object], runs: int) -> float:
    """The median of single steps, each waited for."""
    for _ in range(10):
        step()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def copy_bandwidth(device: str) -> float:
    """Bytes per second of a large copy on the device, read and written."""
    import torch

    source = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return 2 * source.numel() / min(seconds)


def tokens(step: Callable[[int, int], int], count: int) -> list[int]:
    """Greedy tokens from token 1 on."""
    found = [1]
    for position in range(count):
        found.append(step(found[-1], position))
    return found[1:]


def agreement(ours: list[int], theirs: list[int]) -> str:
    """The number of equal leading tokens."""
    same = next(
        (i for i, pair in enumerate(zip(ours, theirs, strict=True)) if len({*pair}) > 1), None
    )
    return "all equal" if same is None else f"equal up to token {same}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--positions", type=int, nargs="+", default=[512])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--chained", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--small", action="store_true", help="a tiny model, to try the script")
    parser.add_argument("--whole", action="store_true", help="with all optimisations alone")
    parser.add_argument("--compile", action="store_true", help="torch.compile as well")
    options = parser.parse_args()
    import torch

    sizes = {} if options.small else LLAMA_1B
    config = Config(**sizes, layers=options.layers)
    on_gpu = options.device != "cpu"
    weights = torch_weights(config, options.device, getattr(torch, options.dtype))
    theirs = TorchDecoder(config, weights)
    wait = torch.cuda.synchronize if on_gpu else lambda: None

    arrays = {name: as_array(tensor, options.dtype) for name, tensor in weights.items()}
    graph = decoder(config, arrays, options.dtype)
    started = time.perf_counter()
    session = ost.Session(options.device)
    compiled = session.compile(graph)
    compile_seconds = time.perf_counter() - started
    started = time.perf_counter()
    ost.Session(options.device).compile(graph)
    again_seconds = time.perf_counter() - started
    switches: dict[str, dict[str, bool]] = {
        "run()": {},
        "run(), no exchange": {"segment_exchange": False},
        "run(), no streams": {"stream_weights": False},
        "run(), no segments": {"segments": False},
    }
    if options.whole:
        switches = {"run()": {}}
    run, *others = (
        stepper(session.compile(graph, options=ost.CompileOptions(**off)) if off else compiled)
        for off in switches.values()
    )
    del arrays

    def torch_run(token: int, position: int) -> int:
        theirs.token.fill_(token)
        theirs.position.fill_(position)
        with torch.inference_mode():
            return int(theirs.step())

    found = agreement(tokens(run, options.tokens), tokens(torch_run, options.tokens))
    print(
        f"compiled in {compile_seconds:.2f} s, again in {again_seconds:.2f} s; "
        f"greedy tokens against PyTorch: {found}"
    )
    stored = sum(t.numel() * t.element_size() for t in weights.values())
    result: dict[str, Any] = {
        "compile_s": compile_seconds,
        "compile_again_s": again_seconds,
        "tokens": f"{options.tokens}: {found}",
        "positions": {},
    }
    if options.chained:
        chains, seconds = [], []
        for _ in range(3):
            started = time.perf_counter()
            chains.append(tokens(run, options.chained))
            seconds.append(time.perf_counter() - started)
        result["chained_ms"] = 1e3 * min(seconds) / options.chained
        result["chained_equal"] = all(chain == chains[0] for chain in chains)
        print(
            f"{options.chained} chained steps, three times: {result['chained_ms']:.3f} ms a step,"
        )
        print("  the same tokens" if result["chained_equal"] else "  DIFFERENT TOKENS")
    bandwidth = copy_bandwidth(options.device) if on_gpu else float("nan")
    result["copy_bandwidth"] = bandwidth
    ways: dict[str, Callable[[], object]] = {}
    with torch.inference_mode():
        ways["torch eager"] = lambda: (theirs.step(), wait())
        if on_gpu:
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                for _ in range(3):
                    theirs.step()
            torch.cuda.synchronize()
            recorded = torch.cuda.CUDAGraph()
            with torch.cuda.graph(recorded):
                theirs.step()
            ways["torch CUDA graph"] = lambda: (recorded.replay(), wait())
        if options.compile:
            started = time.perf_counter()
            fast = torch.compile(theirs.step, mode="max-autotune-no-cudagraphs")
            fast()
            result["torch_compile_s"] = time.perf_counter() - started
            captured = torch.cuda.CUDAGraph()
            fast()
            torch.cuda.synchronize()
            with torch.cuda.graph(captured):
                fast()
            ways["torch.compile in a CUDA graph"] = lambda: (captured.replay(), wait())
        for position in options.positions:
            theirs.position.fill_(position)
            row_bytes = 2 * config.layers * config.key_heads * config.head_dim
            live = row_bytes * (position + 1) * weights["norm"].element_size()
            rows = {name: median_ms(way, options.runs) for name, way in ways.items()}
            for name, step in zip(switches, (run, *others), strict=True):
                rows[f"ostinato {name}"] = median_ms(
                    lambda s=step, p=position: s(7, p), options.runs
                )
            rows["floor"] = 1e3 * (stored + live) / bandwidth
            result["positions"][position] = rows
            print(f"position {position}:")
            for name, milliseconds in rows.items():
                print(f"  {name:32} {milliseconds:8.3f} ms")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
