"""The engine on a toy model: answers are those of each request alone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import ostinato as ost
from ostinato.llm.engine.blocks import most_blocks
from ostinato.llm.engine.engine import Engine
from ostinato.llm.engine.requests import Request, Ticket
from ostinato.llm.engine.sequence import Sequence
from ostinato.llm.generation import Generation
from ostinato.llm.grammar import Grammar
from ostinato.llm.sampling import Sampling
from ostinato.records import replace
from tests.llm.toy import END, VOCABULARY, LateStep, Limits, ToyStep, engine


def alone(request: Request) -> Generation:
    """The answer of a request in an engine of its own, a row at a time."""
    own = engine(ToyStep(Limits(blocks=64, sequences=1)))
    try:
        return own.submit(request).result(60)
    finally:
        own.close()


def branches(generation: Generation) -> list[Generation]:
    """The answers of a request, each without the others."""
    return [replace(generation, alternatives=()), *generation.alternatives]


def same(found: Generation, expected: Generation) -> None:
    assert found.tokens == expected.tokens
    assert found.text == expected.text
    assert found.logprobs == expected.logprobs
    assert found.prompt_logprobs == expected.prompt_logprobs
    assert found.finish == expected.finish
    for other, another in zip(found.alternatives, expected.alternatives, strict=True):
        same(other, another)


def under_way(
    own: Engine, step: LateStep, request: Request, may_go_on: Callable[[], bool]
) -> Ticket:
    """The ticket of an answer that waits, while its next step runs, until it may go on."""
    runs = threading.Event()

    def listen(_: object) -> None:
        if step.started is not None and not runs.is_set():
            runs.set()
            limit = time.monotonic() + 9
            while not may_go_on():
                assert time.monotonic() < limit
                time.sleep(0.001)

    ticket = own.submit(request, listen)
    assert runs.wait(9)
    return ticket


def settled(own: Engine) -> None:
    """Nothing is left in use but the prefix cache."""
    own.call(lambda: None)
    stats = own.stats()
    assert stats.running == stats.waiting == 0
    assert stats.blocks_used == stats.blocks_cached


@pytest.fixture(params=[ToyStep, LateStep])
def toy(request: pytest.FixtureRequest) -> Iterator[Engine]:
    own = engine(request.param())
    yield own
    own.close()


@st.composite
def samplings(draw: st.DrawFn) -> Sampling:
    most = draw(st.integers(0, 90))
    return Sampling(
        max_tokens=most,
        min_tokens=draw(st.integers(0, min(most, 5))),
        temperature=draw(st.sampled_from([0.0, 0.7, 1.0])),
        top_k=draw(st.sampled_from([0, 5])),
        top_p=draw(st.sampled_from([1.0, 0.9])),
        min_p=draw(st.sampled_from([0.0, 0.05])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3])),
        presence_penalty=draw(st.sampled_from([0.0, 0.5])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.2])),
        penalty_tokens=draw(st.sampled_from([0, 7])),
        logit_bias=draw(st.sampled_from([{}, {3: 2.0, 4: float("-inf")}])),
        seed=draw(st.integers(0, 3)),
        stop=draw(st.sampled_from([(), ("BA", "AAA")])),
        ignore_eos=draw(st.booleans()),
        logprobs=draw(st.sampled_from([None, 0, 3])),
        prompt_logprobs=draw(st.sampled_from([None, None, 2])),
        n=draw(st.sampled_from([1, 1, 3])),
        grammar=draw(st.sampled_from([None, None, Grammar.choice(["even"])])),
    )


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Prompts with common prefixes, of blocks and of parts of one."""
    length = draw(st.integers(1, 200))
    shared = draw(st.integers(0, length))
    own = np.random.default_rng(draw(st.integers(0, 3))).integers(0, VOCABULARY - 1, length)
    common = np.random.default_rng(99).integers(0, VOCABULARY - 1, length)
    tokens = np.where(np.arange(length) < shared, common, own)
    salt = draw(st.sampled_from(["", "", "other"]))
    return Request(tokens.tolist(), draw(samplings()), salt=salt)


class Guesses:
    """Speculation that knows the answers, and is wrong now and then."""

    def __init__(self, asked: list[Request], answers: list[Generation], seed: int) -> None:
        self.known = {
            (id(request), number): branch.tokens
            for request, answer in zip(asked, answers, strict=True)
            for number, branch in enumerate(branches(answer))
        }
        self.rng = np.random.default_rng(seed)

    def propose(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            room = min(int(self.rng.integers(0, 7)), sequence.end - sequence.length - 1)
            known = self.known[id(sequence.request), sequence.branch]
            guesses = list(known[sequence.generated :][: max(room, 0)])
            if guesses and self.rng.random() < 0.5:
                guesses[self.rng.integers(len(guesses))] = 7
            if END in guesses:
                del guesses[guesses.index(END) :]
            sequence.tokens[sequence.length : sequence.length + len(guesses)] = guesses
            sequence.drafts = len(guesses)

    def forget(self, sequence: Sequence) -> None:
        pass


@settings(max_examples=20, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data())
def test_any_guesses_leave_the_answers_as_they_are(data: st.DataObject) -> None:
    asked = data.draw(st.lists(requests(), min_size=1, max_size=4))
    answers = [alone(request) for request in asked]
    limits = Limits(
        blocks=data.draw(st.sampled_from([6, 24])),
        picks=data.draw(st.sampled_from([4, 40])),
        adjustments=data.draw(st.sampled_from([400, 4096])),
    )
    guesses = Guesses(asked, answers, data.draw(st.integers(0, 9)))
    rows = data.draw(st.sampled_from([3, 64, 512]))
    own = engine(ToyStep(limits), guesses, step_rows=rows)
    try:
        tickets = [own.submit(request) for request in asked]
        for ticket, expected in zip(tickets, answers, strict=True):
            same(ticket.result(60), expected)
        settled(own)
    finally:
        own.close()


@settings(max_examples=20, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data())
def test_any_mix_of_requests_gives_the_answers_of_each_alone(data: st.DataObject) -> None:
    asked = data.draw(st.lists(requests(), min_size=1, max_size=7))
    step = data.draw(st.sampled_from([ToyStep, LateStep]))(
        Limits(
            blocks=data.draw(st.sampled_from([6, 9, 24])),
            sequences=data.draw(st.integers(1, 4)),
            picks=data.draw(st.sampled_from([4, 40])),
            adjustments=data.draw(st.sampled_from([400, 4096])),
        )
    )
    step_rows = data.draw(st.sampled_from([1, 7, 64, 512]))
    own = engine(
        step,
        step_rows=step_rows,
        prefill_rows=data.draw(st.sampled_from([1, 7, 64, 256])),
        policy=data.draw(st.sampled_from(["fcfs", "prefix"])),
    )
    cancelled = data.draw(st.sets(st.integers(0, len(asked) - 1)))
    after = data.draw(st.integers(0, 60))
    try:
        tickets = [own.submit(request) for request in asked]
        while cancelled and len(step.runs) < after and not all(t.done for t in tickets):
            pass
        for number in cancelled:
            tickets[number].cancel()
        for number, (request, ticket) in enumerate(zip(asked, tickets, strict=True)):
            found, expected = ticket.result(60), alone(request)
            for one, own_one in zip(branches(found), branches(expected), strict=True):
                if number in cancelled and one.finish == "cancelled":
                    assert own_one.tokens[: len(one.tokens)] == one.tokens
                else:
                    same(one, own_one)
        settled(own)
    finally:
        own.close()


def test_a_prompt_is_reused_by_token(toy: Engine) -> None:
    prompt = (np.arange(150) % 40).tolist()
    first = toy.submit(Request(prompt, Sampling(max_tokens=4, ignore_eos=True))).result(9)
    assert first.usage.cached == 0
    again = Request([*prompt[:140], 1, 2, 3], Sampling(max_tokens=4, ignore_eos=True, seed=1))
    second = toy.submit(again).result(9)
    assert second.usage.cached == 140
    same(second, alone(again))
    salted = Request(prompt, Sampling(max_tokens=1), salt="b")
    assert toy.submit(salted).result(9).usage.cached == 0


def test_a_conversation_reuses_its_answers(toy: Engine) -> None:
    prompt = [5, 6, 7]
    for _ in range(8):
        request = Request(prompt, Sampling(max_tokens=30, temperature=0, ignore_eos=True))
        answer = toy.submit(request).result(9)
        same(answer, alone(request))
        if len(prompt) > 3:
            assert answer.usage.cached == len(prompt) - 3  # two new tokens, and the last one's row
        prompt = [*prompt, *answer.tokens, 8, 9]
    settled(toy)


def test_answers_of_one_request_share_its_prompt() -> None:
    step = ToyStep()
    own = engine(step)
    request = Request([7] * 100, Sampling(max_tokens=5, n=4, seed=3, ignore_eos=True))
    found = own.submit(request).result(9)
    own.close()
    assert len(found.alternatives) == 3
    assert len({found.tokens, *(other.tokens for other in found.alternatives)}) > 1
    assert sum(rows for rows, _, _ in step.runs) == 100 + 3 + 4 * 4


@pytest.mark.parametrize("kind", [ToyStep, LateStep])
def test_preempted_requests_have_the_tokens_of_others(kind: type[ToyStep]) -> None:
    own = engine(kind(Limits(blocks=6)))
    asked = [Request([i] * 50, Sampling(max_tokens=200, seed=i, ignore_eos=True)) for i in range(4)]
    found = [ticket.result(60) for ticket in [own.submit(request) for request in asked]]
    assert own.stats().preempted > 0
    settled(own)
    own.close()
    for request, answer in zip(asked, found, strict=True):
        same(answer, alone(request))


def test_steps_of_growing_answers_are_started_ahead() -> None:
    step = LateStep()
    own = engine(step)
    try:
        plain = Request([1, 2], Sampling(max_tokens=40, temperature=0.7, seed=2, ignore_eos=True))
        same(own.submit(plain).result(9), alone(plain))
        assert step.starts == 38  # not that of the prompt, and that behind it, whose rows are new
        settled(own)
        for changed in (
            {"logprobs": 0},
            {"grammar": Grammar.choice(["even"])},
            {"presence_penalty": 0.5},
            {"logit_bias": {3: -np.inf}},
            {"min_tokens": 40},
        ):
            request = Request([1, 2], replace(plain.sampling, **changed))
            before = step.starts
            same(own.submit(request).result(9), alone(request))
            assert step.starts == before
    finally:
        own.close()


def test_answers_that_end_while_their_next_step_runs() -> None:
    """By a stop that the text shows, and by a call from another thread."""
    step = LateStep()
    own = engine(step)
    try:
        long = Sampling(max_tokens=300, temperature=0, ignore_eos=True)
        text = own.submit(Request([1, 2], long)).result(9).text
        stopped = Request([1, 2], replace(long, stop=(text[5:9],)))
        found = own.submit(stopped).result(9)
        same(found, alone(stopped))
        assert (found.finish, len(found.tokens)) == ("stop", 9)
        limit = time.monotonic() + 9
        while step.started is not None:  # nothing is left under way until the next request
            assert time.monotonic() < limit
            time.sleep(0.001)
        others = [Request([n], replace(long, max_tokens=n * 20)) for n in (1, 2, 3)]
        tickets = [own.submit(request) for request in (stopped, *others)]
        for request, ticket in zip((stopped, *others), tickets, strict=True):
            same(ticket.result(9), alone(request))
        settled(own)
        cancelled = threading.Event()
        ticket = under_way(own, step, Request([4], long), cancelled.is_set)
        ticket.cancel()
        cancelled.set()
        ended = ticket.result(9)
        assert len(ended.tokens) < 9
        assert ended.tokens == alone(Request([4], long)).tokens[: len(ended.tokens)]
        settled(own)
        under_way(own, step, Request([5], long), lambda: own.closed)
    finally:
        own.close()
    assert step.started is None


def test_requests_join_answers_whose_steps_are_started_ahead() -> None:
    step = LateStep()
    own = engine(step)
    try:
        joined, ended = threading.Event(), list[bool]()
        request = Request([1], Sampling(max_tokens=400, seed=1, ignore_eos=True))
        long = under_way(own, step, request, joined.is_set)
        asked = Request([2], Sampling(max_tokens=5, seed=1, ignore_eos=True))
        ticket = own.submit(asked, lambda _: ended.append(long.done))
        joined.set()
        same(ticket.result(9), alone(asked))
        assert not any(ended)
        assert long.result(9).finish == "length"
    finally:
        own.close()


def test_a_step_that_fails_ahead_fails_its_requests() -> None:
    step = LateStep()
    own = engine(step)
    try:
        request = Request([4], Sampling(max_tokens=300, temperature=0, ignore_eos=True))
        failing = threading.Event()
        ticket = under_way(own, step, request, failing.is_set)
        step.failing = True
        failing.set()
        with pytest.raises(ost.OstinatoError, match="a step failed: RuntimeError: injected"):
            ticket.result(9)
        same(own.submit(request).result(9), alone(request))
        settled(own)
    finally:
        own.close()


def test_recurrent_models_reuse_saved_states() -> None:
    prompt = (np.arange(300) % 40).tolist()
    asked = [
        Request(prompt, Sampling(max_tokens=30, seed=1, ignore_eos=True)),
        Request([*prompt[:280], 4, 5], Sampling(max_tokens=30, seed=2, ignore_eos=True)),
    ]
    own = engine(ToyStep(recurrent=True))
    found = [own.submit(request).result(9) for request in asked]
    assert found[1].usage.cached == 256
    longer = Request([*prompt, *found[0].tokens, 3], Sampling(max_tokens=9, seed=5))
    more = own.submit(longer).result(9)
    assert more.usage.cached == 329
    own.close()
    fresh = engine(ToyStep(Limits(sequences=1), recurrent=True))
    for request, answer in zip([longer, *asked], [more, *found], strict=True):
        same(
            answer,
            fresh.submit(Request(request.prompt, request.sampling, salt=str(id(request)))).result(
                9
            ),
        )
    fresh.close()


def test_streams_deliver_the_answer_in_parts(toy: Engine) -> None:
    request = Request([1, 2], Sampling(max_tokens=20, seed=4, ignore_eos=True, stop=("ZZZ",), n=2))
    with toy.open_stream(request) as stream:
        parts = [*stream]
        answer = stream.result()
    for index, expected in enumerate([answer, *answer.alternatives]):
        own = [part for part in parts if part.index == index]
        assert "".join(part.text for part in own) == expected.text
        assert sum((part.tokens for part in own), ()) == expected.tokens


def test_leaving_a_stream_cancels_it(toy: Engine) -> None:
    request = Request([1, 2], Sampling(max_tokens=400, ignore_eos=True, temperature=0))
    with toy.open_stream(request) as stream:
        next(stream)
    answer = stream.result()
    assert answer.finish == "cancelled"
    assert answer.tokens == alone(request).tokens[: len(answer.tokens)]
    settled(toy)


def test_streams_of_an_event_loop(toy: Engine) -> None:
    request = Request([1, 2], Sampling(max_tokens=50, seed=4, ignore_eos=True))

    async def read(count: int) -> list[int]:
        found: list[int] = []
        async for delta in toy.stream(request):
            found += delta.tokens
            if len(found) >= count:
                break
        return found

    async def both() -> list[list[int]]:
        return await asyncio.gather(read(1000), read(3), read(1000))

    whole, part, other = asyncio.run(both())
    assert tuple(whole) == tuple(other) == alone(request).tokens
    assert whole[: len(part)] == part


def test_a_failing_step_fails_its_requests_once(toy: Engine) -> None:
    step = toy._scheduler._step
    step.failing = True
    with pytest.raises(ost.OstinatoError, match="a step failed: RuntimeError: injected"):
        toy.submit(Request([1, 2, 3], Sampling(seed=1))).result(9)
    stream = toy.open_stream(Request([1, 2, 3], Sampling(seed=1, max_tokens=3)))
    same(stream.result(), alone(Request([1, 2, 3], Sampling(seed=1, max_tokens=3))))
    assert toy.stats().failed == 1
    settled(toy)


def test_a_listener_that_fails_ends_its_request_alone(toy: Engine) -> None:
    def listener(delta: object) -> None:
        raise RuntimeError

    bad = toy.submit(Request([1], Sampling(max_tokens=300, ignore_eos=True)), listener)
    good = toy.submit(Request([2], Sampling(max_tokens=30, ignore_eos=True)))
    assert bad.result(9).finish == "cancelled"
    assert good.result(9).finish == "length"


def test_deadlines_end_answers_as_they_are() -> None:
    own = engine(request_seconds=0.05)
    request = Request([1], Sampling(max_tokens=500, ignore_eos=True))
    answer = own.submit(request, lambda _: time.sleep(0.002)).result(9)  # 1 s for all tokens
    own.close()
    assert (answer.finish, answer.stop_reason) == ("cancelled", "deadline")


def test_a_full_queue_refuses_with_a_time() -> None:
    own = engine(ToyStep(Limits(sequences=1)), queue=3)
    hold = threading.Event()
    entered = threading.Event()

    def wait() -> None:
        entered.set()
        hold.wait(9)

    blocked = threading.Thread(target=own.call, args=(wait,))
    blocked.start()
    entered.wait(9)
    tickets = [own.submit(Request([i], Sampling(max_tokens=3))) for i in range(3)]
    with pytest.raises(ost.Overloaded, match="3 answers wait, of at most 3") as caught:
        own.submit(Request([4], Sampling()))
    assert caught.value.retry_after > 0
    hold.set()
    blocked.join()
    own.submit(Request([4], Sampling(max_tokens=3)), wait=True).result(9)
    assert all(ticket.result(9).tokens for ticket in tickets)
    own.close()


def test_what_can_never_be_served_is_refused(toy: Engine) -> None:
    with pytest.raises(ost.ContextError, match="prompt of 500 tokens and max_tokens=256 exceed"):
        toy.submit(Request([1] * 500, Sampling()))
    small = engine(ToyStep(Limits(blocks=2)))
    with pytest.raises(ost.ContextError, match="memory for keys and values of 128 tokens"):
        small.submit(Request([1] * 100, Sampling(max_tokens=29)))
    small.submit(Request([1] * 100, Sampling(max_tokens=28))).result(9)
    small.close()
    for prompt, message in [([], "no tokens"), ([50], "token 50"), ([-1], "token -1")]:
        with pytest.raises(ost.InputError, match=message):
            toy.submit(Request(prompt, Sampling(max_tokens=3)))
    with pytest.raises(ost.InputError, match="token 50 of logit_bias"):
        toy.submit(Request([1], Sampling(logit_bias={50: 1.0})))
    few = engine(ToyStep(Limits(adjustments=20)))
    with pytest.raises(ost.InputError, match="30 tokens, more than the 20 of a step"):
        few.submit(Request([1] * 10, Sampling(max_tokens=20, presence_penalty=1.0)))
    few.close()


def test_draining_ends_what_is_under_way(toy: Engine) -> None:
    tickets = [toy.submit(Request([i], Sampling(max_tokens=50))) for i in range(9)]
    assert toy.drain(30)
    assert all(ticket.done for ticket in tickets)
    with pytest.raises(ost.Overloaded, match="drained"):
        toy.submit(Request([1], Sampling()))


def test_closing_ends_requests_with_an_error(toy: Engine) -> None:
    ticket = toy.submit(Request([1], Sampling(max_tokens=500, ignore_eos=True)))
    toy.close()
    with pytest.raises(ost.Cancelled, match="the engine was closed"):
        ticket.result(9)
    with pytest.raises(ost.SessionStateError, match="closed"):
        toy.submit(Request([1], Sampling()))
    toy.close()


def test_stops_and_reasons(toy: Engine) -> None:
    base = Sampling(max_tokens=200, seed=2)
    ended = toy.submit(Request([9], base)).result(9)
    assert (ended.finish, ended.stop_reason, ended.tokens[-1]) == ("stop", END, END)
    assert len(ended.text) == len(ended.tokens) - 1
    text = ended.text[4:6]
    stopped = toy.submit(Request([9], Sampling(max_tokens=200, seed=2, stop=text))).result(9)
    assert (stopped.finish, stopped.stop_reason) == ("stop", text)
    assert stopped.text == ended.text.split(text)[0]
    later = Sampling(max_tokens=200, seed=2, min_tokens=len(ended.tokens) + 1)
    assert len(toy.submit(Request([9], later)).result(9).tokens) > len(ended.tokens)


def test_log_probabilities_are_of_the_unadjusted_distribution(toy: Engine) -> None:
    sampling = Sampling(max_tokens=4, temperature=0, logprobs=3, prompt_logprobs=2, ignore_eos=True)
    plain = toy.submit(Request([3, 4, 5, 6], sampling)).result(9)
    assert plain.logprobs is not None
    assert plain.prompt_logprobs is not None
    assert [entry.token for entry in plain.logprobs] == list(plain.tokens)
    assert [entry.token for entry in plain.prompt_logprobs] == [4, 5, 6]
    for entry in plain.logprobs:
        assert entry.top[0] == (entry.token, entry.logprob)
        assert all(a[1] >= b[1] for a, b in pairwise(entry.top))
    best = plain.tokens[0]
    barred = Sampling(max_tokens=1, temperature=0, logprobs=1, logit_bias={best: float("-inf")})
    other = toy.submit(Request([3, 4, 5, 6], barred)).result(9)
    assert other.logprobs is not None
    assert other.tokens[0] != best
    assert other.logprobs[0].top[0][0] == best


def test_seeds_are_drawn_and_reported(toy: Engine) -> None:
    first = toy.submit(Request([1], Sampling(max_tokens=40, ignore_eos=True))).result(9)
    again = toy.submit(
        Request([1], Sampling(max_tokens=40, ignore_eos=True, seed=first.seed))
    ).result(9)
    assert first.tokens == again.tokens


def test_counters_add_up(toy: Engine) -> None:
    answers = [
        toy.submit(Request([i] * 20, Sampling(max_tokens=9, seed=i))).result(9) for i in range(5)
    ]
    stats = toy.stats()
    assert stats.finished == 5
    assert stats.prompt_tokens == 100
    assert stats.completion_tokens == sum(len(answer.tokens) for answer in answers)
    assert stats.blocks == 24


def windowed(
    window: int | None, blocks: int, sequences: int = 2, *, whole: int | None = None
) -> Engine:
    """An engine on a model whose tokens attend to the last ones alone.

    Args:
        window: tokens that a token attends to.
        blocks: of layers with a window.
        sequences: at a time.
        whole: blocks of layers that attend to all tokens, if there are some.
    """
    limits = Limits(
        rows=64,
        sequences=sequences,
        blocks=blocks if whole is None else whole,
        window_blocks=0 if whole is None else blocks,
        context=960,
    )
    return engine(ToyStep(limits, window=window), step_rows=64, prefill_rows=64)


@pytest.mark.parametrize(
    ("window", "mixed"),
    [
        *((window, False) for window in (1, 30, 65, 200)),
        *(pytest.param(window, False, marks=pytest.mark.slow) for window in (64, 100)),
        (30, True),
        pytest.param(100, True, marks=pytest.mark.slow),
    ],
)
def test_blocks_behind_a_window_are_given_back(window: int, mixed: bool) -> None:
    draw = np.random.default_rng(window)
    prompts = [draw.integers(0, END, length).tolist() for length in (300, 5, 640, 130)]
    sampling = Sampling(max_tokens=300, temperature=0.8, seed=3, ignore_eos=True)
    plain = windowed(window, 64, sequences=1, whole=64 if mixed else None)
    for kind in plain._scheduler.cache.kinds:
        object.__setattr__(kind, "window", None)  # nothing is given back
    wanted = [plain.submit(Request(prompt, sampling)).result(60) for prompt in prompts]
    plain.close()
    few = most_blocks(940, window, 64)
    assert few < 15
    # As few as one takes; too few for two, so that they are preempted; enough for both.
    for blocks, whole in ((few, 20), (few + 3, 15), (2 * few + 2, 40)):
        own = windowed(window, blocks, whole=whole if mixed else None)
        try:
            for _ in range(2):  # again, from what the prefix tree has kept
                tickets = [own.submit(Request(prompt, sampling)) for prompt in prompts]
                for ticket, answer in zip(tickets, wanted, strict=True):
                    same(ticket.result(60), answer)
                settled(own)
            more = [*prompts[0], *wanted[0].tokens]
            found = own.submit(Request(more, replace(sampling, max_tokens=1))).result(60)
            assert found.usage.cached == 0 or found.usage.cached > len(more) - 128
        finally:
            own.close()
    for blocks, whole in ((few - 1, 15 if mixed else None), *([(few, 14)] if mixed else [])):
        small = windowed(window, blocks, whole=whole)
        with pytest.raises(ost.ContextError, match="exceed the memory for keys and values"):
            small.submit(Request(prompts[2], sampling))
        small.close()


@pytest.mark.parametrize("whole", [None, 40])
def test_prefixes_behind_a_window_are_found_again(whole: int | None) -> None:
    own = windowed(100, 16, whole=whole)
    sampling = Sampling(max_tokens=4, temperature=0, ignore_eos=True)
    long, other = ([n] * 600 for n in (1, 2))
    first = own.submit(Request(long, sampling)).result(60)
    own.submit(Request(other, sampling)).result(60)
    again = own.submit(Request([*long, 3, 4], sampling)).result(60)
    assert first.usage.cached == 0
    assert again.usage.cached == 600
    # Shorter than what is left of it: nothing of it can be used, and the answer is right.
    part = own.submit(Request([*long[:200], 5], sampling)).result(60)
    own.close()
    fresh = windowed(100, 16, whole=whole)
    same(part, fresh.submit(Request([*long[:200], 5], sampling)).result(60))
    same(again, fresh.submit(Request([*long, 3, 4], sampling)).result(60))
    fresh.close()


@pytest.mark.parametrize("whole", [None, 60])
def test_a_part_of_an_evicted_block_does_not_stand_for_it(whole: int | None) -> None:
    """A shorter prompt ends within tokens whose block was evicted."""
    own = windowed(100, 12, whole=whole)
    try:
        draw = np.random.default_rng(5)
        long, other = (draw.integers(0, END, 600).tolist() for _ in range(2))
        none, one = (Sampling(max_tokens=n, temperature=0, ignore_eos=True) for n in (0, 1))
        own.submit(Request(long, none)).result(60)
        own.submit(Request(other, none)).result(60)  # evicts the first blocks of the other
        for length in (70, 200, 250):
            own.submit(Request(long[:length], none)).result(60)
        found = [own.submit(Request(long[:n], one)).result(60) for n in (128, 257, 320, 600)]
    finally:
        own.close()
    fresh = windowed(100, 12, whole=whole)
    for length, answer in zip((128, 257, 320, 600), found, strict=True):
        request = Request(long[:length], one, salt=str(length))
        same(answer, fresh.submit(request).result(60))
    fresh.close()


@pytest.mark.parametrize(("window", "whole"), [(None, None), (100, None), (100, 40)])
def test_blocks_of_a_prefix_are_written_again(window: int | None, whole: int | None) -> None:
    tokens = np.random.default_rng(6).integers(0, END, 600).astype(np.int32)
    none, some = (Sampling(max_tokens=n, temperature=0, ignore_eos=True) for n in (0, 5))
    first = windowed(window, 40, whole=whole)
    first.submit(Request(tokens.tolist(), none)).result(60)
    cache = first._scheduler.cache
    count, saved = first.call(lambda: cache.read_prefix(tokens, ""))
    assert count == 576
    assert [len(blocks.data) for blocks in saved.values()][-1] == (9 if window is None else 2)
    wanted = first.submit(Request([*tokens.tolist(), 3], some, salt="other")).result(60)
    first.close()
    kept = list(saved.values())
    for blocks in (11, 40):
        second = windowed(window, blocks, whole=whole)
        write = partial(second._scheduler.cache.write_prefix, tokens[:576], "", kept)
        assert second.call(write) == 576
        settled(second)
        again = second.submit(Request([*tokens.tolist(), 3], some)).result(60)
        same(again, wanted)
        assert again.usage.cached == 576
        second.close()
    small = windowed(window, 1 if window is not None else 5, whole=whole)
    few = small.call(partial(small._scheduler.cache.write_prefix, tokens[:576], "", kept))
    assert few == (0 if window is not None else 320)
    small.close()
