"""Reading the small pieces of the text form: tokens, dims, types and attribute values.

A :class:`Cursor` walks over the tokens of one line. It evaluates nothing but integer arithmetic,
and it bounds nesting, sizes and the number of terms, so that no text can make it run away.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from ostinato.dtypes import ALL_DTYPES, NARROW_DTYPES
from ostinato.errors import GraphError
from ostinato.ir.types import TensorType
from ostinato.lazy import LazyModule
from ostinato.variables import Expr, bounds, floor_div, maximum, minimum, remainder

if TYPE_CHECKING:
    import json
    from collections.abc import Callable, Mapping

    from ostinato.ir.op import Attr
    from ostinato.variables import Dim
else:
    json = LazyModule("json")

__all__ = ["Cursor", "Digest"]

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<comment>\#.*)
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<digest>sha256:[0-9a-f]+)
    | (?P<value>%\w+)
    | (?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
    | (?P<int>\d+)
    | (?P<word>(?:[A-Za-z_]|[^\x00-\x7f])(?:\w|[^\x00-\x7f])*)
    | (?P<sign>//|\.\.|[-()\[\]{}<>,:=*+%@$])
    )""",
    re.VERBOSE | re.ASCII,
)

_MAX_NUMBER = 40  # characters
_MAX_DEPTH = 48  # nested parentheses
_MAX_TERMS = 256  # of one symbolic dim
_MAX_INT = 2**64

_LITERALS: dict[str, Attr] = {
    "True": True,
    "False": False,
    "None": None,
    "inf": math.inf,
    "nan": math.nan,
    **{dtype.short: dtype for dtype in (*ALL_DTYPES, *NARROW_DTYPES)},
}
_DTYPES = {dtype.short: dtype for dtype in (*ALL_DTYPES, *NARROW_DTYPES)}


class Digest(str):
    """Hexadecimal digits that stand for an array (``sha256:...``)."""

    __slots__ = ()


class Token(NamedTuple):
    """A token: its kind (a group of the pattern above, or ``"end"``) and its text."""

    kind: str
    text: str


class Cursor:
    """A position in the tokens of one line.

    Args:
        line: the text.
        variables: the symbols that dims may mention, by name.

    Raises:
        GraphError: (here and in every method) the line does not continue as it should.
    """

    def __init__(self, line: str, variables: Mapping[str, Expr]) -> None:
        self._tokens = _tokenize(line)
        self._position = 0
        self._depth = 0
        self._variables = variables

    # -- tokens -----------------------------------------------------------------------------

    def at(self, text: str) -> bool:
        """Whether the next token is the word or sign ``text``."""
        token = self._tokens[self._position]
        return token.text == text and token.kind in ("word", "sign")

    def at_kind(self, kind: str) -> bool:
        """Whether the next token is of that kind."""
        return self._tokens[self._position].kind == kind

    def accept(self, text: str) -> bool:
        """Step over the word or sign ``text`` if it is next."""
        found = self.at(text)
        self._position += found
        return found

    def expect(self, text: str) -> None:
        """Step over the word or sign ``text``, which must be next."""
        if not self.accept(text):
            raise self.error(repr(text))

    def take(self, kind: str) -> str:
        """The text of the next token, which must be of that kind."""
        if not self.at_kind(kind):
            raise self.error(f"a {kind}")
        self._position += 1
        return self._tokens[self._position - 1].text

    def next_is_assignment(self) -> bool:
        """Whether ``word =`` follows: a keyword argument."""
        return self.at_kind("word") and self._tokens[self._position + 1] == ("sign", "=")

    def string(self) -> str:
        """A quoted string's contents."""
        text = self.take("string")
        try:
            return str(json.loads(text))
        except ValueError as error:
            raise GraphError(f"{text[:60]} is no string: {error}") from None

    def integer(self) -> int:
        """A plain non-negative integer."""
        return int(_short(self.take("int")))

    def end(self) -> None:
        """Expect the end of the line."""
        if not self.at_kind("end"):
            raise self.error("the end of the line")

    def error(self, expected: str) -> GraphError:
        token = self._tokens[self._position]
        found = "the line ends" if token.kind == "end" else f"found {token.text[:60]!r}"
        return GraphError(f"expected {expected}, {found}")

    # -- types and attributes ----------------------------------------------------------------

    def tensor_type(self) -> TensorType:
        """A type such as ``f32[n,4]``."""
        word = self.take("word")
        if word not in _DTYPES:
            raise GraphError(f"unknown dtype {word!r}; there are {', '.join(_DTYPES)}")
        self.expect("[")
        shape: list[Dim] = []
        while not self.accept("]"):
            if shape:
                self.expect(",")
            shape.append(self.dim())
        return TensorType(_DTYPES[word], tuple(shape))

    def dim(self) -> Dim:
        """A size: an expression of integers and symbols."""
        dim = self._sum()
        if not isinstance(dim, int | Expr) or isinstance(dim, bool):
            raise GraphError(f"a dim is an integer expression, got {dim!r}")
        if isinstance(dim, int) and dim < 0:
            raise GraphError(f"a dim is never negative, got {dim}")
        return dim

    def attribute(self) -> Attr:
        """An attribute's value, or a :class:`Digest`."""
        if self.at_kind("digest"):
            return Digest(self.take("digest").partition(":")[2])
        return self._sum()

    # -- integer arithmetic, by precedence -----------------------------------------------------

    def _sum(self) -> Attr:
        left = self._product()
        while self.at("+") or self.at("-"):
            if self.accept("+"):
                left = _checked(_dim(left) + _dim(self._product()))
            else:
                self.expect("-")
                left = _checked(_dim(left) - _dim(self._product()))
        return left

    def _product(self) -> Attr:
        left = self._unary()
        while self.at("*") or self.at("//") or self.at("%"):
            if self.accept("*"):
                left = _checked(_dim(left) * _dim(self._unary()))
            elif self.accept("//"):
                left = _checked(floor_div(_dim(left), _divisor(self._unary())))
            else:
                self.expect("%")
                left = _checked(remainder(_dim(left), _divisor(self._unary())))
        return left

    def _unary(self) -> Attr:
        if not self.accept("-"):
            return self._primary()
        operand = self._primary()
        return -operand if isinstance(operand, float) else _checked(-_dim(operand))

    def _primary(self) -> Attr:
        if self.at("("):
            return self._nested(self._parenthesised)
        if self.at_kind("string"):
            return self.string()
        if self.at_kind("int"):
            return _checked(self.integer())
        if self.at_kind("float"):
            return float(_short(self.take("float")))
        if self.accept("$"):
            return self._literal(self.take("word"))
        word = self.take("word")
        if word in ("min", "max") and self.at("("):
            return self._nested(lambda: self._extremum(word))
        if word in self._variables:
            return self._variables[word]
        return self._literal(word)

    def _literal(self, word: str) -> Attr:
        if word not in _LITERALS:
            raise GraphError(f"{word!r} is neither a declared Variable nor a literal")
        return _LITERALS[word]

    def _nested(self, parse: Callable[[], Attr]) -> Attr:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise GraphError(f"parentheses are nested more than {_MAX_DEPTH} deep")
        result = parse()
        self._depth -= 1
        return result

    def _parenthesised(self) -> Attr:
        """A parenthesised expression, or a tuple: it is one when a comma (or nothing) is inside."""
        self.expect("(")
        items: list[Attr] = []
        comma = False
        while not self.accept(")"):
            if items:
                self.expect(",")
                comma = True
                if self.accept(")"):
                    break
            items.append(self._sum())
        return items[0] if len(items) == 1 and not comma else tuple(items)

    def _extremum(self, word: str) -> Attr:
        self.expect("(")
        left = _dim(self._sum())
        self.expect(",")
        right = _dim(self._sum())
        self.expect(")")
        return _checked(minimum(left, right) if word == "min" else maximum(left, right))


def _tokenize(line: str) -> list[Token]:
    tokens: list[Token] = []
    position, end = 0, len(line.rstrip())
    while position < end:
        match = _TOKEN.match(line, position)
        if match is None or match.lastgroup is None:
            raise GraphError(f"cannot read {line[position:end].strip()[:40]!r}")
        position = match.end()
        if match.lastgroup != "comment":
            tokens.append(Token(match.lastgroup, match[match.lastgroup]))
    # Two ends, so that looking one token ahead of the end is no special case.
    return [*tokens, Token("end", ""), Token("end", "")]


def _short(text: str) -> str:
    """The text of a number, refused if it is longer than any number is."""
    if len(text) > _MAX_NUMBER:
        raise GraphError(f"the number {text[:20]}... is too long")
    return text


def _dim(value: Attr) -> Dim:
    if isinstance(value, bool) or not isinstance(value, int | Expr):
        raise GraphError(f"arithmetic is on integers and Variables, got {value!r}")
    return value


def _divisor(value: Attr) -> Dim:
    divisor = _dim(value)
    low, high = bounds(divisor)
    if high < 1 or (isinstance(divisor, int) and low < 1):
        raise GraphError(f"a divisor must be positive, got {divisor}")
    return divisor


def _checked(dim: Dim) -> Dim:
    if isinstance(dim, Expr):
        if len(dim.terms) > _MAX_TERMS:
            raise GraphError(f"an expression has more than {_MAX_TERMS} terms")
        sizes = [abs(factor) for _, factor in dim.terms]
        if max([abs(dim.const), *sizes]) > _MAX_INT:
            raise GraphError("an expression's coefficients are beyond 64 bits")
        if any(len(monomial) > _MAX_DEPTH for monomial, _ in dim.terms):
            raise GraphError(f"an expression's degree is beyond {_MAX_DEPTH}")
    elif abs(dim) > _MAX_INT:
        raise GraphError("a number is beyond 64 bits")
    return dim
