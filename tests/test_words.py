"""Words of docstrings, comments, messages and documentation: the rules of ``CONTRIBUTING.md``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "bench", "examples", "scripts")

#: First words of an indirect question, in place of what something is or does.
QUESTION = re.compile(
    r"(what|which|who|whom|whose|how|where|when|why|whoever|whatever|whichever|wherever|whenever)\b",
    re.IGNORECASE,
)

#: Words for people, which code and data are not.
PEOPLE = re.compile(
    r"\b((no|some|any|every)(body|one)|who(m|ever)?|knows?\s+better|(is|are|was|were)\s+told)\b",
    re.IGNORECASE,
)

#: Documents outside the project.
POINTER = re.compile(r"\b(SPEC|DESIGN|STYLE)\b|\bfirst plan\b")

#: A wave is a GPU's word for the blocks that run at a time.
GPU_TERMS = {"wave"}

#: The compiler and the runtime, whose names :data:`REJECTED` concerns.
PACKAGES = ("plan", "backends", "lower", "runtime", "eager")

#: Parts of names that have a term in the field, and that term.
REJECTED = {
    "anchor": "fusion root",
    "fold": "reduction",
    "passing": "non_retained",
    "placed": "resident, or subview",
    "rival": "contention",
    "stripe": "segment",
    "tangled": "non_affine",
    "tenancy": "copy on write",
    "turn": "lock, order, or iteration",
    "wave": "round",
    "wheel": "axis",
}

#: A string or a comment of a name that may open with a question, wherever it stands: what need not
#: be parsed has none of these.
MAY_ASK = re.compile(rf"""(['"]|#: )(\\n|[\s\\])*{QUESTION.pattern}""", re.IGNORECASE)

#: A text that may define a rejected name.
MAY_REJECT = re.compile(rf"(?<![a-z0-9])({'|'.join(REJECTED)})s?(?![a-z0-9])", re.IGNORECASE)

#: The lines of a comment that documents the name below it.
DOC_COMMENT = re.compile(r"^ *#: (?P<text>.*)(\n *#: .*)*", re.MULTILINE)


def files(*suffixes: str) -> list[Path]:
    """All files of these kinds, this one aside."""
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    return sorted(path for path in found if path.suffix in suffixes and path != Path(__file__))


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *files(".md")])


def openings(text: str) -> Iterator[tuple[int, str]]:
    """The line and the first words of every docstring, attributes' and ``#:`` comments included."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(docstring))):
                yield node.lineno, docstring.strip()[:80]
    for comment in DOC_COMMENT.finditer(text):
        yield text.count("\n", 0, comment.start()) + 1, comment["text"]


def found(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    """Every match of ``pattern``, as ``file:line: word``."""
    return [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for path in paths
        for text in (path.read_text("utf-8"),)
        for match in pattern.finditer(text)
    ]


def names(text: str) -> Iterator[tuple[int, str]]:
    """The line of every class, function, parameter and attribute that is defined, and its name."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name


def test_names_are_terms_of_the_field() -> None:
    rejected = [
        f"{path.relative_to(ROOT)}:{line}: {name}: say {REJECTED[part]}"
        for package in PACKAGES
        for path in sorted((ROOT / "src/ostinato" / package).rglob("*.py"))
        for text in (path.read_text("utf-8"),)
        if MAY_REJECT.search(text)
        for line, name in names(text)
        for part in {word.removesuffix("s") for word in name.lower().split("_")}
        if part in REJECTED and not (part in GPU_TERMS and "cuda" in path.parts)
    ]
    assert not rejected, "\n".join(rejected)


def test_docstrings_open_with_a_noun_phrase_or_a_verb() -> None:
    questions = [
        f"{path.relative_to(ROOT)}:{line}: {opening}"
        for path in files(".py")
        for text in (path.read_text("utf-8"),)
        if MAY_ASK.search(text)
        for line, opening in openings(text)
        if QUESTION.match(opening)
    ]
    assert not questions, "\n".join(questions)


@pytest.mark.parametrize("pattern", [PEOPLE, POINTER], ids=["people", "pointers"])
def test_sources_and_pages_avoid(pattern: re.Pattern[str]) -> None:
    words = found(pattern, [*files(".py", ".c", ".h"), *pages()])
    assert not words, "\n".join(words)
