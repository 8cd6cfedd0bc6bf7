"""The run of a stage by one thread at a point: loops, reductions and scans of that thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from ostinato.backends.common.clike.namespace import CNamespace
from ostinato.backends.common.clike.statements import evaluated, interleaves
from ostinato.backends.common.clike.values import CValue
from ostinato.lower.loopir.dependences import roots, written_buffers
from ostinato.lower.loopir.nodes import Reduce, Scan, Store, extent_of
from ostinato.variables import prod, provably_less

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from ostinato.backends.common.clike.dialect import Dialect
    from ostinato.backends.common.clike.scalars import Scalars
    from ostinato.backends.common.clike.scopes import Scope
    from ostinato.backends.common.clike.values import Code
    from ostinato.backends.common.clike.writer import Writer
    from ostinato.dtypes import DType
    from ostinato.lower.loopir.nodes import Stage, Statement
    from ostinato.variables import Symbol

__all__ = ["PointCode", "Running", "run_in_order"]

_NAMESPACE = CNamespace()


class Running(Protocol):
    """The state of a reduction in a thread."""

    def add(self, scope: Scope) -> None:
        """Take the value at a point in."""

    def result(self, scope: Scope) -> None:
        """Make the state the value that refs of ``scope`` find."""


class PointCode(ABC):
    """Code under construction in which threads run statements at points.

    Attributes:
        code: the writer and the dialect, for values.
        dialect: the language.
        writer: the statements.
        scalars: writes expressions and accesses.
    """

    code: Code
    dialect: Dialect
    writer: Writer
    scalars: Scalars

    @abstractmethod
    def dtype(self, number: int) -> DType:
        """The element type of an argument or a temp."""

    @abstractmethod
    def variable(self, letter: str, value: str, type_: str) -> str:
        """A new local variable that may be assigned to."""

    @abstractmethod
    def loop(self, axis: Symbol, scope: Scope) -> AbstractContextManager[Scope]:
        """A loop of one thread over the points of an axis."""

    def evaluate(self, statements: Sequence[Statement], scope: Scope) -> None:
        """Everything that the statements read, if none reads what one before it writes."""
        if not interleaves(statements):
            for statement in statements:
                for root in evaluated(statement):
                    self.scalars.value(root, scope)


def run_in_order(
    code: PointCode, stage: Stage, scope: Scope, start: Callable[[Reduce], Running]
) -> None:
    """One thread runs a stage at a point; its reductions become refs of ``scope``.

    Args:
        code: the kernel.
        stage: the statements.
        scope: of the point.
        start: makes the state of a reduction of nothing yet.
    """
    running = {s: start(s) for s in stage.statements if isinstance(s, Reduce)}
    _loops(code, stage, stage.axes, scope, running, {})
    for reduction in running.values():
        reduction.result(scope)


def _loops(
    code: PointCode,
    stage: Stage,
    axes: Sequence[Symbol],
    scope: Scope,
    running: dict[Reduce, Running],
    sums: dict[Scan, str],
) -> None:
    if len(axes) == min(len(stage.axes), 1):  # in front of the loop that they run along
        sums = {s: _start_scan(code, s) for s in stage.statements if isinstance(s, Scan)}
    if not axes:
        _body(code, stage, scope if not stage.axes else scope.child(), running, sums)
        return
    if provably_less(0, prod(map(extent_of, axes))):
        starts = [root for s in stage.statements for root in roots(s)]
        code.scalars.hoist(starts, scope, frozenset(axes) | written_buffers(stage))
    with code.loop(axes[0], scope) as inside:
        _loops(code, stage, axes[1:], inside, running, sums)


def _body(
    code: PointCode,
    stage: Stage,
    scope: Scope,
    running: dict[Reduce, Running],
    sums: dict[Scan, str],
) -> None:
    code.evaluate(stage.statements, scope)
    for statement in stage.statements:
        match statement:
            case Reduce():
                running[statement].add(scope)
            case Store():
                code.scalars.store(statement, code.dtype(statement.buffer), scope)
            case Scan():
                _scan(code, statement, sums[statement], scope)


def _start_scan(code: PointCode, scan: Scan) -> str:
    neutral = code.dialect.literal(scan.dtype, scan.neutral)
    return code.variable("s", neutral, code.dialect.register_type(scan.dtype))


def _scan(code: PointCode, scan: Scan, name: str, scope: Scope) -> None:
    before = CValue(code.code, name, scan.dtype)
    value = code.scalars.value(scan.value, scope)
    after = getattr(_NAMESPACE, scan.combine)(before, value)
    # The element is written from a copy where it is the sum so far, which is a variable.
    written = before if scan.exclusive else after
    code.scalars.put(scan.buffer, code.dtype(scan.buffer), scan.index, written, scope)
    code.writer.line(f"{name} = {after.text};")
