"""Ways to decode greedily: op by op, compiled, bound, and by replaying one recorded step.

The step is that of :mod:`bench.decoder_step`, on a device whose variable block has the token and
its position (``Context.set_dev_state_mode``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from bench.decoder_step import Array, Config, Decoder, decoder_graph

import ostinato as ost

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
