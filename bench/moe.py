"""Expert residency policies: TIDE, the least recently used out, or the same experts always.

Experts are in a file, a quarter of them is resident, in slots in memory. A prompt is read, then
tokens are decoded one by one, whose routing is drawn from Zipf's law: the expert of rank r is
called as often as 1/r^skew. ``steady``: the ranks stay. ``drifting``: every 100 tokens, a quarter
of the experts trade theirs.

- ``TIDE`` is ``ost.moe.ResidencyLoop``.
- ``LRU`` gives a slot to every expert that is called, and takes it from the least recently
  called one.
- ``static`` are the experts that the prompt has called most.

The hit rate is that of the decoded tokens. Policies alternate in one process, some tokens each.
The file is in the system's cache, so a miss costs a copy from there and the packing; with
``--cold`` the system is asked to forget it before every token, so that a miss costs the disk.

    python -m bench.moe [--tokens 600] [--skew 1.0] [--threads 1] [--cold]
        [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import ostinato as ost

Array = np.ndarray[Any, Any]

EXPERTS, SLOTS, CHOSEN = 64, 16, 2
PROMPT, DRIFT_TOKENS, TURN = 128, 100, 25


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model: ``layers`` of ``EXPERTS`` gated experts each."""

    layers: int = 2
    features: int = 256
    hidden: int = 1024

    @property
    def expert_bytes(self) -> int:
        """The bytes of an expert, in float32."""
        return 4 * 3 * self.features * self.hidden


# -- routing ---------------------------------------------------------------------------------------


def routing(tokens: int, *, skew: float, drifting: bool, seed: int) -> list[Array]:
    """The experts of one layer, ``[tokens, CHOSEN]``: of the prompt, then of each decoded token."""
    rng = np.random.default_rng(seed)
    ranks = rng.permutation(EXPERTS)
    steps = []
    for step in range(tokens + 1):
        if drifting and step and step % DRIFT_TOKENS == 0:
            trading = rng.choice(EXPERTS, EXPERTS // 4, replace=False)
            ranks[trading] = ranks[rng.permutation(trading)]
        # The greatest of log p + Gumbel noise are a draw without replacement.
        noise = rng.gumbel(size=(1 if step else PROMPT, EXPERTS))
        scores = noise - skew * np.log1p(ranks)
        steps.append(np.argsort(-scores, axis=1)[:, :CHOSEN])
    return steps


# -- policies --------------------------------------------------------------------------------------


class Lru(ost.ExpertPool):
    """Slots for the experts that were called last."""

    def __init__(self, num_experts: int, budget: int) -> None:
        super().__init__(num_experts, budget)
        self._last = np.arange(num_experts, 0, -1) - num_experts - 1
        self._clock = 0

    def use(self, ids: Array) -> bool:
        """Give slots to these experts, in the order of their calls; returns whether any changed."""
        before = self.resident
        for expert in ids.reshape(-1).tolist():
            self._clock += 1
            self._last[expert] = self._clock
            recent = np.zeros(self.num_experts)
            recent[np.argsort(-self._last, kind="stable")[: self.budget]] = 1
            self.refresh_from_hits(recent)
        return self.resident != before


def resident_by_lru(pools: Sequence[Lru], step: int, ids: Sequence[Array]) -> bool:
    """Make the experts that were just called resident; returns whether anything changed."""
    changed = [pool.use(layer) for pool, layer in zip(pools, ids, strict=True)]
    return any(changed)


def resident_once(pools: Sequence[ost.ExpertPool], step: int, ids: Sequence[Array]) -> bool:
    """Make the experts that the prompt calls most resident; returns whether anything changed."""
    if step:
        return False
    changed = [pool.refresh_from_indices(i) for pool, i in zip(pools, ids, strict=True)]
    return any(changed)


class PolicyLoop:
    """A compiled graph with a residency policy of the benchmark's own."""

    def __init__(
        self,
        compiled: ost.CompiledGraph,
        pools: Sequence[Any],
        policy: Callable[[Sequence[Any], int, Sequence[Array]], bool],
    ) -> None:
        self.compiled, self.pools, self._policy = compiled, pools, policy
        self._steps = 0
        compiled.enable_moe_topk_capture(EXPERTS)
        self._move()

    def step(self, inputs: dict[str, Array]) -> list[Array]:
        """As that of a :class:`ost.moe.ResidencyLoop`."""
        outputs = self.compiled.run(inputs)
        ids = self.compiled.take_moe_topk_capture()
        assert ids is not None
        for pool, layer in zip(self.pools, ids, strict=True):
            pool.observe(layer)
        if self._policy(self.pools, self._steps, ids):
            self._move()
        self._steps += 1
        return outputs

    def _move(self) -> None:
        self.compiled.set_moe_resident_experts_per_layer([pool.mask for pool in self.pools])


def tide(compiled: ost.CompiledGraph, every: int) -> ost.moe.ResidencyLoop:
    """The loop of the library."""
    pools = [ost.ExpertPool(EXPERTS, SLOTS) for _ in compiled.moe_layers]
    return ost.moe.ResidencyLoop(compiled, pools, ost.TidePolicy(refresh_every=every))


def ways(compile_anew: Callable[[], ost.CompiledGraph], every: int) -> dict[str, Any]:
    """Loops by name, with a compiled graph each."""
    made: dict[str, Any] = {"TIDE": tide(compile_anew(), every)}
    for name, kind, policy in (
        ("LRU", Lru, resident_by_lru),
        ("static", ost.ExpertPool, resident_once),
    ):
        compiled = compile_anew()
        pools = [kind(EXPERTS, SLOTS) for _ in compiled.moe_layers]
        made[name] = PolicyLoop(compiled, pools, policy)
    return made


# -- the model -------------------------------------------------------------------------------------


def layers_graph(sizes: Sizes) -> ost.Graph:
    """Layers of experts, whose ids are inputs."""
    g = ost.Graph("experts")
    count = ost.Variable("count", 1, PROMPT)
    x = g.input("x", (count, sizes.features))
    wide = (EXPERTS, sizes.features, sizes.hidden)
    narrow = (EXPERTS, sizes.hidden, sizes.features)
    for layer in range(sizes.layers):
        shapes = {"gate": wide, "up": wide, "down": narrow}
        matrices = [g.param(f"{layer}.{name}", shape) for name, shape in shapes.items()]
        ids = g.input(f"{layer}.ids", (count, CHOSEN), "int64")
        scale = g.full((count, CHOSEN), 1 / CHOSEN)
        x = g.rms_norm(x + g.expert_mlp(x, ids, scale, *matrices), g.full((sizes.features,), 1.0))
    g.set_outputs([x])
    return g


def write_experts(path: Path, sizes: Sizes) -> None:
    """Write random experts."""
    rng = np.random.default_rng(0)
    arrays = {
        name: (rng.random(param.shape, np.float32) - 0.5) / 16
        for name, param in layers_graph(sizes).params.items()
    }
    ost.moe.write_safetensors(path, arrays)


def compiled_from(path: Path, sizes: Sizes, session: ost.Session) -> ost.CompiledGraph:
    """The model with slots for a quarter of its experts, and staging memory for others."""
    # Panels are a little wider than matrices, and an eighth is for staging.
    budget = int(1.3 * sizes.layers * SLOTS * sizes.expert_bytes)
    file = ost.moe.ExpertFile(path)
    compiled = session.compile(layers_graph(sizes), experts=file, expert_budget=budget)
    assert all(layer.slots >= SLOTS for layer in compiled.moe_layers)
    return compiled


# -- measuring -------------------------------------------------------------------------------------


@dataclass
class Result:
    """The outcome of a policy on the decoded tokens."""

    hit_rate: float = 0.0
    tokens_per_second: float = 0.0
    megabytes_per_token: float = 0.0


def decode(
    loops: dict[str, Any],
    steps: Sequence[Sequence[Array]],
    features: int,
    forget: Callable[[], None] = lambda: None,
) -> dict[str, Result]:
    """Results by name; ``steps`` are the experts of each layer, step by step.

    Before each, ``forget`` is called.
    """
    x = np.random.default_rng(1).standard_normal((PROMPT, features)).astype(np.float32)
    seconds = dict.fromkeys(loops, 0.0)
    outputs: dict[str, list[Array]] = {name: [] for name in loops}

    def run(name: str, step: int) -> None:
        ids = {f"{layer}.ids": array for layer, array in enumerate(steps[step])}
        outputs[name] += loops[name].step({"x": x[: len(steps[step][0])], **ids})

    before = {}
    for name, loop in loops.items():
        run(name, 0)
        for pool in loop.pools:
            pool.hits = pool.misses = 0
        before[name] = loop.compiled.moe_transfers
    for start in range(1, len(steps), TURN):
        for name in loops:
            for step in range(start, min(start + TURN, len(steps))):
                forget()
                began = time.perf_counter()
                run(name, step)
                seconds[name] += time.perf_counter() - began
    first, *others = outputs.values()
    for other in others:
        assert all(map(np.array_equal, first, other)), "a policy has changed a result"
    tokens = len(steps) - 1
    results = {}
    for name, loop in loops.items():
        after, was = loop.compiled.moe_transfers, before[name]
        hits, misses = (sum(getattr(p, key) for p in loop.pools) for key in ("hits", "misses"))
        read = after.bytes_moved + after.bytes_staged - was.bytes_moved - was.bytes_staged
        results[name] = Result(hits / (hits + misses), tokens / seconds[name], read / tokens / 1e6)
    return results


def forget(path: Path) -> None:
    """Ask the system to keep nothing of a file in its cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def show(console: Console, title: str, results: dict[str, Result]) -> None:
    table = Table("", "hit rate", "tokens a second", "MB read a token", box=box.SIMPLE_HEAD)
    table.title = title
    for name, r in results.items():
        rate, speed = f"{r.hit_rate:.1%}", f"{r.tokens_per_second:,.0f}"
        table.add_row(name, rate, speed, f"{r.megabytes_per_token:.1f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--skew", type=float, default=1.0)
    parser.add_argument("--every", type=int, default=4, help="tokens between TIDE's changes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cold", action="store_true", help="read from the disk")
    parser.add_argument("--json", type=Path, help="write the results here")
    arguments = parser.parse_args()
    sizes, console = Sizes(), Console()
    session = ost.Session("cpu", threads=arguments.threads)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "experts.safetensors"
        write_experts(path, sizes)
        for title, drifting in (("steady", False), ("drifting", True)):
            layers = [
                routing(arguments.tokens, skew=arguments.skew, drifting=drifting, seed=layer)
                for layer in range(sizes.layers)
            ]
            loops = ways(partial(compiled_from, path, sizes, session), arguments.every)
            before = partial(forget, path) if arguments.cold else lambda: None
            results = decode(loops, [*zip(*layers, strict=True)], sizes.features, before)
            show(console, f"{title}: {SLOTS} of {EXPERTS} experts in memory", results)
            found[title] = {name: asdict(result) for name, result in results.items()}
    if arguments.json:
        about = {"sizes": asdict(sizes), "experts": EXPERTS, "slots": SLOTS, "chosen": CHOSEN}
        settings = {k: v for k, v in vars(arguments).items() if k != "json"}
        arguments.json.write_text(
            json.dumps(about | settings | {"results": found}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
