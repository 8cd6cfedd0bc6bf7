"""Time the device "xla" next to hand-written ``jax.jit`` of the same networks.

An encoder as BERT's, a perceptron of three layers, and a step of a decoder with its cache. Both
sides take NumPy arrays and give NumPy arrays, in turns of a few calls; ``tiny`` adds one to four
numbers, which shows the time of a call.

    python -m bench.xla [--seconds 4] [--places 6] [--remark TEXT] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ostinato as ost
from ostinato.ir.graph import Value
from ostinato.tools.timing import Timing, interleave

Array = np.ndarray[Any, Any]
Call = Callable[[], Array]
#: Functions that make our call and the hand-written one: each places its own arrays.
Makers = tuple[Callable[[], Call], Callable[[], Call]]

RNG = np.random.default_rng(0)


def weights(**shapes: tuple[int, ...]) -> dict[str, Array]:
    return {
        name: (RNG.normal(size=shape) / math.sqrt(shape[0])).astype(np.float32)
        for name, shape in shapes.items()
    }


# -- a perceptron ----------------------------------------------------------------------------------


def perceptron(rows: int = 64, width: int = 1024, layers: int = 3) -> Makers:
    """``gelu(x @ w + b)``, layer after layer."""
    params = weights(
        **{f"w{i}": (width, width) for i in range(layers)},
        **{f"b{i}": (width,) for i in range(layers)},
    )
    x = RNG.normal(size=(rows, width)).astype(np.float32)
    g = ost.Graph("perceptron")
    y = g.input("x", x.shape)
    for i in range(layers):
        w, b = (g.param(f"{n}{i}", params[f"{n}{i}"].shape) for n in "wb")
        y = g.gelu(g.matmul(y, w) + b)
    g.set_outputs([y])

    def ours() -> Call:
        compiled = ost.Session("xla").compile(g, params)
        return lambda: compiled.run({"x": x})[0]

    @jax.jit
    def theirs(params: Any, x: Any) -> Any:
        for i in range(layers):
            x = jax.nn.gelu(x @ params[f"w{i}"] + params[f"b{i}"], approximate=False)
        return x

    def written() -> Call:
        held = jax.device_put(params)
        return lambda: np.asarray(theirs(held, x))

    return ours, written


# -- an encoder ------------------------------------------------------------------------------------


def encoder_weights(width: int, layers: int) -> dict[str, Array]:
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(layers):
        for name in ("q", "k", "v", "o"):
            shapes[f"{name}{i}"] = (width, width)
        shapes[f"up{i}"], shapes[f"down{i}"] = (width, 4 * width), (4 * width, width)
        for name in ("s1", "t1", "s2", "t2"):
            shapes[f"{name}_{i}"] = (width,)
    return weights(**shapes)


def encoder(length: int = 128, width: int = 384, layers: int = 6, heads: int = 12) -> Makers:
    """As BERT, with its layer norms behind the sums."""
    params = encoder_weights(width, layers)
    x = RNG.normal(size=(length, width)).astype(np.float32)
    size = width // heads
    g = ost.Graph("encoder")
    p = {name: g.param(name, array.shape) for name, array in params.items()}

    def split(y: Value) -> Value:
        return g.permute_dims(g.reshape(y, (1, length, heads, size)), (0, 2, 1, 3))

    y: Value = g.input("x", x.shape)
    for i in range(layers):
        q, k, v = (split(g.matmul(y, p[f"{n}{i}"])) for n in "qkv")
        a = g.reshape(g.permute_dims(g.attention(q, k, v), (0, 2, 1, 3)), (length, width))
        y = g.layer_norm(y + g.matmul(a, p[f"o{i}"]), p[f"s1_{i}"], p[f"t1_{i}"], eps=1e-5)
        h = g.matmul(g.gelu(g.matmul(y, p[f"up{i}"])), p[f"down{i}"])
        y = g.layer_norm(y + h, p[f"s2_{i}"], p[f"t2_{i}"], eps=1e-5)
    g.set_outputs([y])

    def ours() -> Call:
        compiled = ost.Session("xla").compile(g, params)
        return lambda: compiled.run({"x": x})[0]

    def norm(x: Any, scale: Any, shift: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift

    @jax.jit
    def theirs(p: Any, y: Any) -> Any:
        for i in range(layers):
            q, k, v = (
                (y @ p[f"{n}{i}"]).reshape(length, heads, size).transpose(1, 0, 2) for n in "qkv"
            )
            scores = jax.nn.softmax(q @ k.transpose(0, 2, 1) / math.sqrt(size), -1)
            a = (scores @ v).transpose(1, 0, 2).reshape(length, width)
            y = norm(y + a @ p[f"o{i}"], p[f"s1_{i}"], p[f"t1_{i}"])
            h = jax.nn.gelu(y @ p[f"up{i}"], approximate=False) @ p[f"down{i}"]
            y = norm(y + h, p[f"s2_{i}"], p[f"t2_{i}"])
        return y

    def written() -> Call:
        held = jax.device_put(params)
        return lambda: np.asarray(theirs(held, x))

    return ours, written


# -- a step of a decoder ---------------------------------------------------------------------------


def decoder(length: int = 512, width: int = 512, layers: int = 4, heads: int = 8) -> Makers:
    """One token after another, its keys and values appended to caches that stay on the device."""
    params = weights(**{f"{n}{i}": (width, width) for i in range(layers) for n in "qkvo"})
    size, shape = width // heads, (heads, length, width // heads)
    g = ost.Graph("decoder")
    p = {name: g.param(name, array.shape) for name, array in params.items()}
    y: Value = g.input("x", (1, width))
    at = g.input("at", (), "int32")
    seen = g.less_equal(g.iota((1, length), 1, "int32"), at)
    for i in range(layers):
        q, k, v = (g.reshape(g.matmul(y, p[f"{n}{i}"]), (heads, 1, size)) for n in "qkv")
        caches = []
        for name, new in (("keys", k), ("values", v)):
            cache = g.state(f"{name}{i}", shape)
            caches.append(g.dynamic_update_slice(cache, new, (0, at, 0)))
            g.assign(cache, caches[-1])
        keys, values = caches
        scores = g.matmul(q, g.permute_dims(keys, (0, 2, 1))) * (1 / math.sqrt(size))
        chosen = g.softmax(g.where(seen, scores, -math.inf), -1)
        y = y + g.matmul(g.reshape(g.matmul(chosen, values), (1, width)), p[f"o{i}"])
    g.set_outputs([y])
    x = RNG.normal(size=(1, width)).astype(np.float32)
    position = np.array(length // 2, np.int32)

    def ours() -> Call:
        compiled = ost.Session("xla").compile(g, params)
        return lambda: compiled.run({"x": x, "at": position})[0]

    @partial(jax.jit, donate_argnums=1)
    def theirs(p: Any, caches: Any, y: Any, at: Any) -> Any:
        seen = jnp.arange(length)[None] <= at
        following = []
        for i, (old_keys, old_values) in enumerate(caches):
            q, k, v = ((y @ p[f"{n}{i}"]).reshape(heads, 1, size) for n in "qkv")
            keys = jax.lax.dynamic_update_slice(old_keys, k, (0, at, 0))
            values = jax.lax.dynamic_update_slice(old_values, v, (0, at, 0))
            scores = q @ keys.transpose(0, 2, 1) / math.sqrt(size)
            chosen = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1)
            y = y + (chosen @ values).reshape(1, width) @ p[f"o{i}"]
            following.append((keys, values))
        return y, following

    def written() -> Call:
        held = jax.device_put(params)
        kept = [[(jnp.zeros(shape), jnp.zeros(shape)) for _ in range(layers)]]

        def step() -> Array:
            y, kept[0] = theirs(held, kept[0], x, position)
            return np.asarray(y)

        return step

    return ours, written


# -- next to nothing -------------------------------------------------------------------------------


def tiny() -> Makers:
    """``x + 1`` of four numbers."""
    x = np.ones(4, np.float32)
    g = ost.Graph("tiny")
    g.set_outputs([g.input("x", x.shape) + 1.0])

    def ours() -> Call:
        compiled = ost.Session("xla").compile(g)
        return lambda: compiled.run({"x": x})[0]

    @jax.jit
    def theirs(x: Any) -> Any:
        return x + 1.0

    return ours, lambda: lambda: np.asarray(theirs(x))


WORKLOADS = {"encoder": encoder, "perceptron": perceptron, "decode": decoder, "tiny": tiny}


def compared(make: Callable[[], Makers], places: int, seconds: float) -> dict[str, Any]:
    """The medians of both sides, over arrays in several places of the memory.

    Where arrays lie decides some percent of the time of either side, as long as they live.

    Args:
        make: makes a workload.
        places: how often both sides make their arrays, one before the other by turns.
        seconds: how long each side may take at each place.
    """
    found: list[tuple[Timing, Timing]] = []
    for place in range(places):
        ours, written = make()
        if place % 2:
            theirs, mine = written(), ours()
        else:
            mine, theirs = ours(), written()
        np.testing.assert_allclose(mine(), theirs(), rtol=1e-3, atol=1e-4)
        timings = interleave({"ostinato": mine, "jax.jit": theirs}, seconds=seconds)
        found.append((timings["ostinato"], timings["jax.jit"]))
    ratios = [mine.median / theirs.median for mine, theirs in found]
    return {
        "ostinato_ms": median(mine.median for mine, _ in found) * 1e3,
        "jax_jit_ms": median(theirs.median for _, theirs in found) * 1e3,
        "ratio": median(ratios),
        "ratio_of_least": min(m.min for m, _ in found) / min(t.min for _, t in found),
        "ratios": ratios,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each side at each place")
    parser.add_argument("--places", type=int, default=6, help="how often both sides are made anew")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="with commas between")
    parser.add_argument("--remark", default="")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = {}
    for name in arguments.workloads.split(","):
        found[name] = compared(WORKLOADS[name], arguments.places, arguments.seconds)
        shown = {k: np.round(v, 3).tolist() for k, v in found[name].items()}
        print(f"{name:<12} {json.dumps(shown)}", flush=True)
    if arguments.json is not None:
        about = {"device": str(jax.devices()[0]), "jax": jax.__version__}
        outcome = {**about, "remark": arguments.remark, "workloads": found}
        arguments.json.write_text(json.dumps(outcome, indent=1) + "\n")


if __name__ == "__main__":
    main()
