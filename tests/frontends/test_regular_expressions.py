"""Regular expressions match what RE2 matches, in ONNX Runtime, and no pattern takes for ever."""

from __future__ import annotations

import random

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import ostinato as ost
from ostinato.frontends.onnx.regular_expressions import Pattern, PatternError
from tests.peer_runtime import onnxruntime_session

PIECES = (
    "a", "b", "k", "s", "\u017f", "\u212a", "é", "ß", "ẞ", "İ", "1", "_", " ", "\n", "-", "^", "$",
    ".", "*", "+", "?", "{2}", "{1,2}", "{0,}", "{,2}", "{0}", "|", "(", ")", "(?:", "(?i)", "(?s:",
    "(?m)", "(?P<n>", "(?-i)", "[", "]", "[^", "[a-k]", "[:alpha:]", "[[:^digit:]s]", r"\d", r"\D",
    r"\w", r"\W", r"\s", r"\b", r"\B", r"\A", r"\z", r"\pL", r"\PL", r"\p{Lu}", r"\p{^Ll}", r"\x41",
    r"\x{e9}", r"\101", r"\.", r"\Qa.b\E", r"\n", "a-k", "(?U)", r"\1", "[^a]", "(?i)[k-s]",
    r"(?i)\w", "(?i)[^k]", "{01}", "{1", r"\-", r"\07", r"\p{Any}", r"[\d-z]", r"[a\-z]", "[]a]",
    "(?i-s:", "(?i:", "[[:word:]-]", "(a|b)*", "(|a)+", "{3}",
)  # fmt: skip

LETTERS = "aAbBkKsS\u017f\u212aéÉßẞİi1_ \n-.σςΣ"


def model(pattern: str) -> ModelProto:
    """A model of one node."""
    node = helper.make_node("RegexFullMatch", ["x"], ["y"], "matcher", pattern=pattern)
    x = helper.make_tensor_value_info("x", TensorProto.STRING, [None])
    y = helper.make_tensor_value_info("y", TensorProto.BOOL, [None])
    graph = helper.make_graph([node], "matching", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def matched(pattern: str, texts: list[str]) -> list[bool] | None:
    """The texts that match in whole; ``None``: the pattern is refused."""
    try:
        compiled = Pattern(pattern)
    except PatternError:
        return None
    return [compiled.matches(text) for text in texts]


def matched_by_runtime(pattern: str, texts: list[str]) -> list[bool] | None:
    pytest.importorskip("onnxruntime").set_default_logger_severity(4)
    try:
        (found,) = onnxruntime_session(model(pattern)).run(None, {"x": np.array(texts, object)})
    except Exception:  # ONNX Runtime's own, of any kind
        return None
    return list(map(bool, found))


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_random_patterns(first: int) -> None:
    for number in range(first, first + 500):
        rng = random.Random(number)
        pattern = "".join(rng.choices(PIECES, k=rng.randint(1, 7)))
        texts = ["", "a", "ab", "aa", "k", "K", "\n"]
        texts += ["".join(rng.choices(LETTERS, k=rng.randint(0, 5))) for _ in range(25)]
        assert matched(pattern, texts) == matched_by_runtime(pattern, texts), repr(pattern)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a*)*b", "a" * 100_000),
        ("(a|aa)+$", "a" * 10_000 + "b"),
        ("(x+x+)+y", "x" * 100_000),
        ("(.*){1000}x", "a" * 3000),
        ("(.|a)*" * 300 + "b", "a" * 3000),
        ("(" * 999 + "a" + ")" * 999, "b"),
    ],
)
def test_backtracking_would_take_for_ever(pattern: str, text: str) -> None:
    assert not Pattern(pattern).matches(text)


@pytest.mark.parametrize(
    ("pattern", "text", "problem"),
    [
        ("(a" * 999 + ")*" * 999, "a" * 20_000, "too many states"),
        ("a{1000}" * 101, "", "more than 100,000 instructions, at 701"),
        ("((a{100}){100}){100}", "", "at most 1000 in all"),
        ("a{1001}", "", "at most 1000"),
        ("a{2,1}", "", "its least count first"),
        ("a" * 100_001, "", "100,001 characters"),
        ("(" * 1001, "", "more than 1000 deep"),
        ("(a", "", r"a \) is missing, at 2 of '\(a'"),
        ("[a", "", r"a \] is missing"),
        ("a**", "", "needs a group"),
        ("|*", "", "repetition of nothing"),
        (r"(a)\1", "", r"RE2 has no escape \\1"),
        ("(?=a)", "", "RE2 has no such group"),
        ("[z-a]", "", "from 'z' to 'a'"),
        (r"\p{Greek}", "", "'Greek'"),
        (r"\x{110000}", "", "no such character"),
        ("\\", "", "no escape"),
    ],
)
def test_refused(pattern: str, text: str, problem: str) -> None:
    with pytest.raises(PatternError, match=problem):
        Pattern(pattern).matches(text)


def test_node() -> None:
    texts = np.array(["a@example.org", "example.org"], object)
    graph = ost.load_onnx(model(r"\w+@[\w.]+"), constants={"x": texts})
    (found,) = ost.Session("cpu").compile(graph).run({})
    assert found.tolist() == [True, False]


def test_node_with_a_bad_pattern() -> None:
    texts = np.array(["a"], object)
    with pytest.raises(ost.ModelFormatError, match=r"matcher.*cannot be .*missing, at 2"):
        ost.load_onnx(model("(a"), constants={"x": texts})
