"""Greedy decoding three ways: op by op, compiled, and by replaying one recorded step.

    python examples/decode_loop.py [--tokens 64] [--threads 1] [--seed 0] [--seconds 1]

The model is a small Llama with random weights (``tiny_llama.py``). Ends with exit code 1 if the
ways do not generate the same tokens.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from tiny_llama import Array, Config, Decoder, decoder_graph, random_weights

import ostinato as ost
from ostinato.tools.timing import Timing, interleave

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FIRST_TOKEN = 1


@dataclass(frozen=True)
class Way:
    """A way to make one step of the model.

    Attributes:
        submit: makes the step that the context's variable block describes.
        read: the token that it found to follow.
    """

    submit: Callable[[], object]
    read: Callable[[], int]


class Operations:
    """The model's weights and caches as buffers, for sessions to work on."""

    def __init__(
        self, executor: ost.GraphExecutor, config: Config, weights: Mapping[str, Array]
    ) -> None:
        self.config = config
        self.weights = {name: executor.buffer(array) for name, array in weights.items()}
        self.caches = {name: executor.empty(config.cache_shape) for name in config.cache_names}
        self.following = executor.empty((1,), "int64")

    def encode(self, session: ost.GraphSession) -> None:
        """Encode one step, op by op; caches are updated in place."""

        def append(name: str, row: ost.Buffer) -> ost.Buffer:
            cache, start = self.caches[name], (0, 0, self.config.position, 0)
            return session.dynamic_update_slice(cache, row, start, out=cache)

        Decoder(session, self.config, self.weights, append).step(out=self.following)

    def read(self) -> int:
        """Read the next token of the last step."""
        return int(self.following.copyout()[0])


def op_by_op(session: ost.Session, config: Config, weights: Mapping[str, Array]) -> Way:
    """Every op is encoded anew at every step; nothing is compiled as a whole."""
    executor = ost.GraphExecutor(session.context)
    operations = Operations(executor, config, weights)

    def submit() -> None:
        with executor.begin() as s:
            operations.encode(s)

    return Way(submit, operations.read)


def compiled(session: ost.Session, config: Config, weights: Mapping[str, Array]) -> Way:
    """The step is one graph, run with all that an ordinary call checks."""
    decoder = session.compile(decoder_graph(config, weights))
    following = np.zeros(1, np.int64)
    return Way(partial(decoder.run, out=[following]), lambda: int(following[0]))


def bound(session: ost.Session, config: Config, weights: Mapping[str, Array]) -> Way:
    """Bind the graph, with all checks beforehand, ready to be recorded."""
    decoder = session.compile(decoder_graph(config, weights))
    following = np.zeros(1, np.int64)
    return Way(decoder.bind({}, [following]), lambda: int(following[0]))


def replayed(session: ost.Session, way: Way, key: int = 0) -> Way:
    """Replay a recording of one step, which reads token and position from the device."""
    session.context.begin_graph_capture()
    way.submit()  # recorded, not run
    session.context.end_graph_capture(key)
    return Way(partial(session.context.replay_graph, key), way.read)


def generate(session: ost.Session, way: Way, count: int, first: int = FIRST_TOKEN) -> list[int]:
    """The ``count`` tokens that follow ``first``, each the most likely one."""
    token, tokens = first, []
    for position in range(count):
        session.context.set_decode_state(token, position)
        way.submit()
        token = way.read()
        tokens.append(token)
    return tokens


def main() -> int:
    """Generate, compare, time; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1, help="the model is small: 1 is best")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    parser.add_argument("--seconds", type=float, default=1.0, help="to time each way for")
    arguments = parser.parse_args()

    config = Config(length=max(128, arguments.tokens))
    weights = random_weights(config, arguments.seed)
    session = ost.Session("cpu", threads=arguments.threads)
    session.context.set_dev_state_mode(True)
    ways = {
        "op by op": op_by_op(session, config, weights),
        "compiled": compiled(session, config, weights),
        "replayed": replayed(session, bound(session, config, weights)),
    }
    calls = {name: partial(generate, session, way, arguments.tokens) for name, way in ways.items()}
    tokens = {name: call() for name, call in calls.items()}
    console = Console()
    console.print("tokens:", *tokens["replayed"])
    show_speed(console, interleave(calls, seconds=arguments.seconds), arguments.tokens)
    equal = all(found == tokens["replayed"] for found in tokens.values())
    console.print(
        "[bold green]The tokens are equal." if equal else f"[bold red]They differ:[/] {tokens}"
    )
    return 0 if equal else 1


def show_speed(console: Console, timings: Mapping[str, Timing], count: int) -> None:
    slowest = timings["op by op"].median
    table = Table("", "µs a token", "tokens a second", "speed", box=box.SIMPLE_HEAD)
    for name, timing in timings.items():
        seconds = timing.median / count
        speed = f"{slowest / timing.median:.1f} x"
        table.add_row(name, f"{1e6 * seconds:.1f}", f"{1 / seconds:,.0f}", speed)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
