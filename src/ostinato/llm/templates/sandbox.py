"""Jinja with bounds on time and on the size of everything that a template makes.

Templates come with models, so they are code of strangers. Jinja's immutable sandbox keeps them
from Python's internals and from changing their arguments. This module bounds what they use: each
loop iteration, call and filter checks the time; each operation that could make a large value checks
its size, before it allocates where the result could be much larger than the operands.
"""

from __future__ import annotations

import json
import re
from functools import partial, wraps
from time import thread_time
from typing import TYPE_CHECKING, Any, Final

import jinja2
from jinja2 import ext, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from ostinato.errors import ModelFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import CodeType

    from jinja2.parser import Parser

__all__ = ["LimitExceeded", "Meter", "compile_template", "run_template"]

#: Widths, counts and digits that a template may ask a function for.
_LARGEST_WIDTH: Final = 10_000

#: Bits of an integer.
_LARGEST_INTEGER: Final = 4096

#: Values made in a run, in units of the largest single one.
_VALUES: Final = 128

#: Nested lists and objects that JSON is made of, at most.
_WIDEST_INDENT: Final = 64

#: Filters of Jinja that no chat needs, and that are slow, or different each time.
_LEFT_OUT: Final = ("pprint", "random", "urlize", "wordwrap", "xmlattr", "striptags")

#: Names of filters that the compiled template uses for its own operations.
_LOOP, _CONCAT, _VALUE = " loop", " concat", " value"

_NUMBER = re.compile(r"\d+")


class LimitExceeded(Exception):
    """A template took too long, or made too large a value."""


class Meter:
    """The time and the sizes of a run.

    Args:
        seconds: of processor time, at most.
        size: characters and elements of a value, at most.
    """

    def __init__(self, seconds: float, size: int) -> None:
        self._end = thread_time() + seconds
        self._seconds = seconds
        self._largest = size
        self._left = size * _VALUES

    def step(self) -> None:
        """Check the time.

        Raises:
            LimitExceeded: it is over.
        """
        if thread_time() > self._end:
            raise LimitExceeded(f"it runs for more than {self._seconds:g} s")

    def check(self, size: int) -> None:
        """Check the size of a value to be.

        Raises:
            LimitExceeded: it is too large.
        """
        if size > self._largest:
            raise LimitExceeded(f"it makes a value of more than {self._largest:,} characters")

    def width(self, *values: object) -> None:
        """Check numbers that say how large a result is to be.

        Raises:
            LimitExceeded: one is too large.
        """
        for value in values:
            if isinstance(value, int | float) and not abs(value) <= _LARGEST_WIDTH:
                raise LimitExceeded(f"it asks for a width or a count above {_LARGEST_WIDTH:,}")

    def value(self, value: Any) -> Any:
        """Check a new value, and count it.

        Raises:
            LimitExceeded: it is too large, or there are too many.
        """
        if isinstance(value, str | list | tuple | dict | set | frozenset | bytes):
            self._left -= self.size_of(value)
            if self._left < 0:
                raise LimitExceeded("its values together are too large")
        elif isinstance(value, int) and value.bit_length() > _LARGEST_INTEGER:
            raise LimitExceeded(f"it makes an integer of more than {_LARGEST_INTEGER:,} bits")
        return value

    def size_of(self, value: Any) -> int:
        """Characters and elements of a value, counted as often as it has them.

        Raises:
            LimitExceeded: it is too large.
        """
        size, waiting = 0, [value]
        while waiting:
            part = waiting.pop()
            size += 1
            if isinstance(part, str | bytes):
                size += len(part)
            elif isinstance(part, list | tuple | set | frozenset):
                size += len(part)
                self.check(size)
                waiting.extend(part)
            elif isinstance(part, dict):
                size += len(part)
                self.check(size)
                waiting.extend(part)
                waiting.extend(part.values())
            self.check(size)
        return size


# -- the environment -------------------------------------------------------------------------------


class _GenerationBlock(ext.Extension):
    """The tag ``{% generation %}``, which marks what the model writes: its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Bounded(NodeTransformer):
    """Sends what makes large values, and loops, through filters of the environment."""

    def visit_For(self, node: Any) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _LOOP)
        loop: nodes.Node = node
        return loop

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        parts = nodes.Tuple(node.nodes, "load", lineno=node.lineno)
        return _filtered(parts, _CONCAT)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, _VALUE) if isinstance(node.arg, nodes.Slice) else node

    def _literal(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") != "load" else _filtered(node, _VALUE)

    visit_List = visit_Tuple = visit_Dict = _literal  # noqa: N815


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Namespace(Namespace):
    """Variables of a template that loops may set; their names have no leading underscore."""

    def __init__(*args: Any, **values: Any) -> None:
        self, *rest = args
        named = dict(*rest, **values)
        for name in named:
            _check_name(name)
        Namespace.__init__(self, named)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"  # its values may be as many as those of nested lists


def _check_name(name: object) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise jinja2.TemplateRuntimeError(f"a namespace has no attribute {name!r:.40}")


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox, with a meter for one run."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, meter: Meter, functions: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constants too are computed in a run, under its meter
            finalize=_unchanged,
            extensions=[_GenerationBlock, ext.loopcontrols],
        )
        self.meter = meter
        self.concat = partial(_joined, meter)  # type: ignore[method-assign]
        for name in _LEFT_OUT:
            self.filters.pop(name, None)
        self.filters |= {name: _counted(found, meter) for name, found in self.filters.items()}
        self.filters |= _guarded_filters(self.filters, meter)
        self.filters[_LOOP] = partial(_Iterations, meter)
        self.filters[_CONCAT] = partial(_concatenated, meter)
        self.filters[_VALUE] = meter.value
        self.globals.pop("lipsum", None)
        self.globals |= {"dict": _new_dict, "namespace": _Namespace, **functions}

    def _generate(
        self,
        source: nodes.Template,
        name: str | None,
        filename: str | None,
        defer_init: bool = False,
    ) -> str:
        bounded = _Bounded().visit(source)
        bounded.set_environment(self)
        return super()._generate(bounded, name, filename, defer_init)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _CHECKS[operator](self.meter, left, right)
        return self.meter.value(super().call_binop(context, operator, left, right))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        meter = __self.meter
        meter.step()
        receiver = getattr(__obj, "__self__", None)
        if isinstance(receiver, str):
            _check_method(meter, receiver, __obj.__name__, args, kwargs)
        return meter.value(super().call(__context, __obj, *args, **kwargs))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        unbounded = attr in {"translate", "maketrans", "to_bytes", "from_bytes"}
        if unbounded or isinstance(obj, bytes | bytearray | memoryview):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def formatted(*args: Any, **kwargs: Any) -> str:
            _check_format(self.meter, value.__self__, [*args, *kwargs.values()], "{")
            return wrapped(*args, **kwargs)

        return formatted


@jinja2.pass_context
def _unchanged(_context: Any, value: Any) -> Any:
    """An output expression, which takes the context so that none is computed at compile time."""
    return value


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


# -- operations ------------------------------------------------------------------------------------


class _Iterations:
    """The items of a loop, with a check of the time before each."""

    def __init__(self, meter: Meter, items: Iterable[Any]) -> None:
        self._meter = meter
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        step = self._meter.step
        for item in self._items:
            step()
            yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]


def _joined(meter: Meter, parts: Iterable[str]) -> str:
    found, size = [], 0
    for part in parts:
        size += len(part)
        meter.check(size)
        found.append(part)
    text: str = meter.value("".join(found))
    return text


def _concatenated(meter: Meter, parts: Iterable[Any]) -> str:
    meter.step()
    return _joined(meter, map(str, parts))


def _check_sum(meter: Meter, left: Any, right: Any) -> None:
    meter.step()
    if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        meter.check(len(left) + len(right))


def _check_product(meter: Meter, left: Any, right: Any) -> None:
    meter.step()
    for value, count in ((left, right), (right, left)):
        if isinstance(count, int) and isinstance(value, str | list | tuple):
            meter.check(meter.size_of(value) * max(count, 0))
            return


def _check_power(meter: Meter, left: Any, right: Any) -> None:
    meter.step()
    if isinstance(left, int) and isinstance(right, int):
        bits = max(left.bit_length(), 1) * max(right, 0)
        if bits > _LARGEST_INTEGER and abs(left) > 1:
            raise LimitExceeded(f"it makes an integer of more than {_LARGEST_INTEGER:,} bits")


def _check_remainder(meter: Meter, left: Any, right: Any) -> None:
    meter.step()
    if isinstance(left, str):
        _check_format(meter, left, [right], "%")


_CHECKS: Final[dict[str, Callable[[Meter, Any, Any], None]]] = {
    "+": _check_sum,
    "*": _check_product,
    "**": _check_power,
    "%": _check_remainder,
}


def _check_format(meter: Meter, text: str, values: Sequence[Any], sign: str) -> None:
    """Check a text with places for values: their number, sizes and widths."""
    meter.width(*(int(digits[:9]) for digits in _NUMBER.findall(text)))
    if (sign == "%" and "*" in text) or (sign == "{" and re.search(r"\{[^}]*\{", text)):
        raise LimitExceeded("it formats with a width that is computed")
    meter.check(len(text) + text.count(sign) * meter.size_of(list(values)))


def _check_join(meter: Meter, separator: str, parts: Any) -> None:
    if isinstance(parts, list | tuple | dict | set | frozenset):
        meter.check(len(separator) * len(parts))


def _check_replace(meter: Meter, text: str, old: Any, new: Any) -> None:
    if isinstance(old, str) and isinstance(new, str):
        meter.check(len(text) + (text.count(old)) * len(new))


def _check_method(
    meter: Meter, text: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    match name:
        case "center" | "ljust" | "rjust" | "zfill":
            meter.width(*args, *kwargs.values())
        case "expandtabs":
            meter.width(*args, *kwargs.values())
            meter.check(text.count("\t") * max((n for n in args if isinstance(n, int)), default=8))
        case "join" if args:
            _check_join(meter, text, args[0])
        case "replace" if len(args) > 1:
            _check_replace(meter, text, args[0], args[1])


# -- filters ---------------------------------------------------------------------------------------


def _counted(function: Callable[..., Any], meter: Meter) -> Callable[..., Any]:
    """A filter whose calls and results are counted."""

    @wraps(function)  # Jinja's marks of what it passes are attributes
    def counted(*args: Any, **kwargs: Any) -> Any:
        meter.step()
        return meter.value(function(*args, **kwargs))

    return counted


def _guarded_filters(
    filters: Mapping[str, Callable[..., Any]], meter: Meter
) -> dict[str, Callable[..., Any]]:
    """Filters that check their arguments first."""

    def guarded(name: str, check: Callable[..., None]) -> Callable[..., Any]:
        function = filters[name]

        @wraps(function)
        def careful(*args: Any, **kwargs: Any) -> Any:
            check(*args, **kwargs)
            return function(*args, **kwargs)

        return careful

    def widths(_value: Any, *args: Any, **kwargs: Any) -> None:
        meter.width(*args, *kwargs.values())

    def indent(value: Any, width: Any = 4, *_: Any, **__: Any) -> None:
        meter.width(width)
        size = len(width) if isinstance(width, str) else int(width)
        meter.check((str(value).count("\n") + 1) * size)

    def join(_context: Any, value: Any, d: Any = "", *_: Any, **__: Any) -> None:
        _check_join(meter, str(d), value)

    def replace(_context: Any, value: Any, old: Any, new: Any, *_: Any, **__: Any) -> None:
        _check_replace(meter, str(value), old, new)

    def formatted(value: Any, *args: Any, **kwargs: Any) -> None:
        _check_format(meter, str(value), [*args, *kwargs.values()], "%")

    def summed(_environment: Any, _value: Any, _attribute: Any = None, start: Any = 0) -> None:
        if not isinstance(start, int | float):
            raise LimitExceeded("it sums what are no numbers")

    found = {name: guarded(name, widths) for name in ("center", "batch", "slice", "round")}
    checks: dict[str, Callable[..., None]] = {"indent": indent, "join": join, "replace": replace}
    checks |= {"format": formatted, "sum": summed}
    found |= {name: guarded(name, check) for name, check in checks.items()}
    return found | {"tojson": _counted(partial(_to_json, meter), meter)}


def _to_json(
    meter: Meter,
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON without Jinja's escapes of HTML, as the templates of models expect it."""
    wide = len(indent) if isinstance(indent, str) else indent or 0
    if not isinstance(wide, int) or not 0 <= wide <= _WIDEST_INDENT:
        raise LimitExceeded(f"it indents JSON by more than {_WIDEST_INDENT}")
    meter.check(meter.size_of(value) * (wide + 1))
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


# -- compiling and running -------------------------------------------------------------------------


def compile_template(source: str) -> CodeType:
    """Compile the text of a template.

    Raises:
        ModelFormatError: it is no template.
    """
    environment = _Environment(Meter(0, 0), {})
    try:
        code: CodeType = environment.compile(source)
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None)
        place = f", line {line}" if line else ""
        raise ModelFormatError(f"the chat template is damaged{place}: {error}"[:400]) from None
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError) as error:
        raise ModelFormatError(f"the chat template can not be compiled: {error!r:.300}") from None
    return code


def run_template(
    code: CodeType,
    meter: Meter,
    functions: Mapping[str, Callable[..., Any]],
    variables: Mapping[str, Any],
) -> str:
    """The text that a template makes.

    Raises:
        LimitExceeded: it exceeds the meter's limits.
        Exception: whatever the template raises.
    """
    environment = _Environment(meter, functions)
    template = jinja2.Template.from_code(environment, code, environment.make_globals(None))
    return _joined(meter, template.generate(variables))
