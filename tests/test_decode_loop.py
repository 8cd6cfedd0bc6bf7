"""The decode loop of ``bench`` against NumPy, token by token, however its steps are run."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bench import decode_ways, decoder_step

import ostinato as ost
from tests.devices.registered import open_session
from tests.pairwise import every_second

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.needs("capture", "quick", "single_ops")

COUNT = 64


# -- the model in NumPy ----------------------------------------------------------------------------


def numpy_tokens(weights: dict[str, Array], sizes: Any, first: int, count: int) -> list[int]:
    """Generate tokens in float64, without a cache: every step reads all tokens again."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    tokens = [first]
    for _ in range(count):
        tokens.append(int(numpy_logits(w, sizes, tokens).argmax()))
    return tokens[1:]


def numpy_logits(w: dict[str, Array], sizes: Any, tokens: list[int]) -> Array:
    """The logits of the token that follows ``tokens``."""
    h = w["embedding"][tokens]
    for i in range(sizes.layers):
        h = h + numpy_attention(w, sizes, i, rms(h, w[f"{i}.attention_norm"], sizes.eps))
        n = rms(h, w[f"{i}.mlp_norm"], sizes.eps)
        gate = n @ w[f"{i}.gate"]
        h = h + (gate / (1 + np.exp(-gate)) * (n @ w[f"{i}.up"])) @ w[f"{i}.down"]
    return rms(h[-1], w["norm"], sizes.eps) @ w["head"]


def rms(x: Array, gain: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain


def numpy_attention(w: dict[str, Array], sizes: Any, layer: int, x: Array) -> Array:
    """Causal attention of all positions at once; query heads share key heads in order."""
    length, depth = len(x), sizes.head_dim
    q, k, v = (
        (x @ w[f"{layer}.{name}"]).reshape(length, -1, depth).swapaxes(0, 1) for name in "qkv"
    )
    q, k = numpy_rope(q, sizes.rope_base), numpy_rope(k, sizes.rope_base)
    mixed = np.empty_like(q)
    for head in range(sizes.heads):
        shared = head * sizes.key_heads // sizes.heads
        scores = q[head] @ k[shared].T / np.sqrt(depth)
        scores[np.triu_indices(length, 1)] = -np.inf
        chances = np.exp(scores - scores.max(1, keepdims=True))
        mixed[head] = chances / chances.sum(1, keepdims=True) @ v[shared]
    return mixed.swapaxes(0, 1).reshape(length, -1) @ w[f"{layer}.o"]


def numpy_rope(x: Array, base: float) -> Array:
    """Rope: pairs of features as complex numbers, rotated by multiplication."""
    pairs = x.shape[-1] // 2
    speeds = base ** -(np.arange(pairs) / pairs)
    turned = (x[..., :pairs] + 1j * x[..., pairs:]) * np.exp(
        1j * np.outer(np.arange(x.shape[-2]), speeds)
    )
    return np.concatenate([turned.real, turned.imag], -1)


# -- models --------------------------------------------------------------------------------------


@pytest.fixture
def session(device: str) -> ost.Session:
    session = open_session(device, threads=1)
    session.context.set_dev_state_mode(True)
    return session


class Case:
    """A model, and what it generates according to NumPy."""

    def __init__(self, seed: int, first: int = 1, **sizes: Any) -> None:
        self.config = decoder_step.Config(**sizes)
        self.weights = decoder_step.random_weights(self.config, seed)
        self.first = first
        self.tokens = numpy_tokens(self.weights, self.config, first, COUNT)


CASES: dict[str, dict[str, Any]] = {
    **{f"seed {seed}": {"seed": seed} for seed in range(2)},
    "one key head": {"seed": 5, "heads": 6, "key_heads": 1, "head_dim": 16, "width": 96},
    "a key head each": {"seed": 8, "key_heads": 4, "vocabulary": 300, "hidden": 100},
    "one layer, filled to the end": {"seed": 7, "layers": 1, "length": COUNT, "first": 9},
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(**CASES[request.param])


@pytest.fixture(scope="module")
def pair() -> list[Case]:
    """Two models of different sizes."""
    return [Case(11), Case(12, heads=2, key_heads=1, hidden=64, first=3)]


# -- every way to run a step -----------------------------------------------------------------------


def test_the_tokens_are_many(case: Case) -> None:
    """Else it would mean little that they are equal."""
    assert len(set(case.tokens)) > 10


def test_as_a_plan(case: Case, device: str) -> None:
    """The Variables given as launch arguments, with no context in sight."""
    plan = open_session(device, threads=1).prepare(
        decoder_step.decoder_graph(case.config, case.weights)
    )
    following = plan.output_buffer()
    token, tokens = case.first, []
    for position in range(COUNT):
        plan.execute_with_vars({"token": token, "position": position, "kv_len": position + 1})
        token = int(following.copyout()[0])
        tokens.append(token)
    assert tokens == case.tokens


@pytest.mark.parametrize("name", ["op_by_op", "compiled", "bound"])
def test_eagerly(session: ost.Session, case: Case, name: str) -> None:
    way = getattr(decode_ways, name)(session, case.config, case.weights)
    assert decode_ways.generate(session, way, COUNT, case.first) == case.tokens


@pytest.mark.parametrize("name", ["op_by_op", "bound"])
def test_replayed(session: ost.Session, case: Case, name: str) -> None:
    """A session's commit and a bound call are recorded alike."""
    way = getattr(decode_ways, name)(session, case.config, case.weights)
    replayed = decode_ways.replayed(session, way, key=3)
    for _ in range(2):  # what one sequence left in the caches is nothing to the next
        assert decode_ways.generate(session, replayed, COUNT, case.first) == case.tokens


def test_queued_and_replayed(session: ost.Session, pair: list[Case]) -> None:
    """``commit_no_wait``; the token is a row of its output."""
    case = pair[0]
    decoder = session.compile(decoder_step.decoder_graph(case.config, case.weights))
    way = decode_ways.Way(decoder.commit_no_wait, lambda: int(decoder.read_output_row(0, 0)))
    assert decode_ways.generate(session, way, COUNT, case.first) == case.tokens
    replayed = decode_ways.replayed(session, way)
    assert decode_ways.generate(session, replayed, COUNT, case.first) == case.tokens


@pytest.mark.parametrize("change", ["as it is", "fused", "reordered", "both"])
def test_a_recorded_session(session: ost.Session, pair: list[Case], change: str) -> None:
    """Its graph, replayed without the context recording anything."""
    case, executor = pair[1], ost.GraphExecutor(session.context)
    step = decode_ways.Operations(executor, case.config, case.weights)
    with executor.begin_recorded() as s:
        step.encode(s)
    graph = s.graph
    if change in ("fused", "both"):
        graph = graph.fuse()
        assert graph.fused
    if change in ("reordered", "both"):
        graph = graph.reorder()
    way = decode_ways.Way(graph.replay, step.read)
    assert decode_ways.generate(session, way, COUNT, case.first) == case.tokens


def test_on_two_threads(pair: list[Case], device: str) -> None:
    session = open_session(device, threads=2)
    session.context.set_dev_state_mode(True)
    case = pair[0]
    way = decode_ways.replayed(session, decode_ways.bound(session, case.config, case.weights))
    assert decode_ways.generate(session, way, COUNT, case.first) == case.tokens


# -- under a GraphRunner ---------------------------------------------------------------------------


def run_by(runner: ost.GraphRunner, key: int, way: Any) -> Any:
    return decode_ways.Way(lambda: runner.run(key, way.submit), way.read)


@pytest.mark.parametrize("name", ["op_by_op", "bound"])
def test_by_a_runner(session: ost.Session, pair: list[Case], name: str) -> None:
    case, runner = pair[0], ost.GraphRunner(session.context)
    way = getattr(decode_ways, name)(session, case.config, case.weights)
    driven = run_by(runner, 0, way)
    assert decode_ways.generate(session, driven, COUNT, case.first) == case.tokens
    assert (runner.eager, runner.captured, runner.replayed) == (3, 1, COUNT - 3)
    assert not runner.skipped


def refuse(*_: object) -> None:
    raise RuntimeError("injected")


def drop_and_refuse(context: Any) -> Callable[[int], bool]:
    """A replay that fails after the device has done a part of its work."""
    replay = context.replay_graph

    def replacement(key: int) -> bool:
        replay(key)
        raise RuntimeError("injected")

    return replacement


INJECTED: dict[str, Callable[[Any], dict[str, Any]]] = {
    "begin": lambda c: {"begin_graph_capture": refuse},
    "end": lambda c: {"end_graph_capture": refuse},
    "replay": lambda c: {"replay_graph": refuse},
    "replay, half-way": lambda c: {"replay_graph": drop_and_refuse(c)},
    "replay, False": lambda c: {"replay_graph": lambda key: False},
}


@pytest.mark.parametrize(
    ("name", "failure", "healed"),
    every_second(["op_by_op", "bound"], list(INJECTED), [False, True]),
)
def test_injected_failures_leave_the_tokens_right(
    session: ost.Session,
    pair: list[Case],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    failure: str,
    healed: bool,
) -> None:
    """Whether the context recovers after the failure or not."""
    case, context = pair[1], session.context
    runner = ost.GraphRunner(context)
    way = getattr(decode_ways, name)(session, case.config, case.weights)
    for method, replacement in INJECTED[failure](context).items():
        monkeypatch.setattr(context, method, replacement)
    driven = run_by(runner, 0, way)
    with pytest.warns(RuntimeWarning, match="graph 0 could not be captured") as caught:
        tokens = decode_ways.generate(session, driven, COUNT // 2, case.first)
    if healed:
        monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for position in range(COUNT // 2, COUNT):
            context.set_decode_state(tokens[-1], position)
            driven.submit()
            tokens.append(driven.read())
    assert tokens == case.tokens
    assert len(caught) == 1
    assert (runner.eager, runner.captured, runner.replayed) == (COUNT, 0, 0)
    assert runner.skipped == {failure.partition(",")[0]: 1}
    assert not context.capturing


def test_a_recording_dropped_on_the_way(session: ost.Session, pair: list[Case]) -> None:
    case, runner = pair[0], ost.GraphRunner(session.context)
    driven = run_by(runner, 5, decode_ways.bound(session, case.config, case.weights))
    submit = driven.submit

    def dropped_now_and_then() -> None:
        if runner.replayed % 10 == 7:
            session.context.reset_all_graphs()
        submit()

    way = decode_ways.Way(dropped_now_and_then, driven.read)
    assert decode_ways.generate(session, way, COUNT, case.first) == case.tokens
    assert runner.captured > 1
    assert runner.eager == 3


# -- several models in one context -----------------------------------------------------------------


@pytest.mark.parametrize("max_graphs", [16, 3])
def test_two_models_and_shuffled_keys_never_cross(
    session: ost.Session, pair: list[Case], max_graphs: int
) -> None:
    """Six sequences, three of each model, in random order; with few keys they evict each other."""
    rng = random.Random(max_graphs)
    runner = ost.GraphRunner(session.context, warmup=1, max_graphs=max_graphs)
    keys = rng.sample(range(-100, 100), 6)
    sequences = []
    for number, key in enumerate(keys):
        case, name = pair[number % 2], ("op_by_op", "bound")[number // 2 % 2]
        way = getattr(decode_ways, name)(session, case.config, case.weights)
        sequences.append((case, run_by(runner, key, way), [case.first]))
    turns = [sequence for sequence in sequences for _ in range(COUNT)]
    rng.shuffle(turns)
    for _, way, tokens in turns:
        session.context.set_decode_state(tokens[-1], len(tokens) - 1)
        way.submit()
        tokens.append(way.read())
    for case, _, tokens in sequences:
        assert tokens[1:] == case.tokens
    assert runner.captured >= 6 if max_graphs == 16 else len(runner) == 3
    assert runner.eager + runner.replayed == 6 * COUNT


def test_the_same_key_in_two_contexts(pair: list[Case], device: str) -> None:
    sessions = [open_session(device, threads=1) for _ in pair]
    ways = []
    for session, case in zip(sessions, pair, strict=True):
        session.context.set_dev_state_mode(True)
        ways.append(
            decode_ways.replayed(
                session, decode_ways.bound(session, case.config, case.weights), key=1
            )
        )
    tokens = [[case.first] for case in pair]
    for position in range(COUNT):
        for session, way, found in zip(sessions, ways, tokens, strict=True):
            session.context.set_decode_state(found[-1], position)
            way.submit()
            found.append(way.read())
    assert [found[1:] for found in tokens] == [case.tokens for case in pair]
